"""Lives of three nodes over one engine. To repeat one: ``make sim SEED=7 ARGS=--cluster``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock_testing.engine import NoAnswer
from penstock_testing.loop import pass_time, simulate, simulated
from tests.sim import cluster
from tests.sim.cluster import ALONE, SCENES, THEMES, ClusterWorld, cluster_life_of
from tests.sim.cluster_machines import ClusterMachine, Way
from tests.sim.cluster_mutants import CLUSTER_MUTANTS, cluster_row, noticed_in_a_cluster
from tests.sim.cluster_oracles import check_log
from tests.sim.cluster_stage import WIRED_SCENES
from tests.sim.world import WIRED

README = Path(__file__).with_name("README.md")
LATER = [range(n, n + 5) for n in range(13, 23, 5)]
"""Each life takes about a second; `make sim` plays many more."""


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LATER, ids=str)
def test_nothing_promised_is_lost_and_nothing_comes_twice(seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            cluster_life_of(seed)
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--cluster")
            raise


def test_the_seeds_that_are_run_play_every_theme_and_scene() -> None:
    worlds = [ClusterWorld(seed) for seeds in LATER for seed in seeds]

    assert {world.theme for world in worlds} == set(THEMES)
    assert {world.scene for world in worlds} == set(SCENES)


def test_all_scenes_whose_clients_are_programs_play_in_a_cluster() -> None:
    assert set(WIRED_SCENES) == WIRED


@pytest.mark.slow
def test_connections_between_clients_and_nodes_break_in_worlds_of_that_theme() -> None:
    """Each world draws only some of the kinds."""
    kinds = set[str]()
    for seed in range(1, 5):
        world = ClusterWorld(seed, "network", ALONE)
        simulate(world.live(), world.random)
        happened = {what for _, what in world.trace if what.startswith("network: ")}
        kinds |= {what.removeprefix("network: ").partition(",")[0] for what in happened}

    assert len(kinds - {"open", "quick", "healed"}) >= 4
    assert "healed" in kinds


@pytest.mark.parametrize(
    ("way", "is_done"),
    [("both ways", False), ("on the way there", False), ("on the way back", True)],
)
@simulated
async def test_a_machine_is_cut_off_from_the_engine(way: Way, is_done: bool) -> None:
    world = ClusterWorld(1)
    world.machines = {"n1": ClusterMachine(world, "n1")}
    link, done = world.machines["n1"].link, list[int]()
    link.cut(5.0, way)

    with pytest.raises(NoAnswer):
        await link(lambda: done.append(1))
    await pass_time(5.0)
    await link(lambda: done.append(2))

    assert done == ([1, 2] if is_done else [2])


@pytest.mark.slow
def test_a_seed_tells_the_whole_story() -> None:
    assert cluster_life_of(3) == cluster_life_of(3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_a_mistake_is_noticed_within_a_few_lives(name: str) -> None:
    mutant = CLUSTER_MUTANTS[name]

    assert noticed_in_a_cluster(mutant, mutant.first) is not None


@pytest.mark.slow
def test_a_snapshot_that_differs_from_the_log_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def without_its_last_block(world: ClusterWorld) -> None:
        frames = world.log.all_frames
        last = max(frame.block for frame in frames if frame.kind == "data")
        frames[:] = [frame for frame in frames if frame.kind != "data" or frame.block != last]
        await check_log(world)

    monkeypatch.setattr(cluster, "check_log", without_its_last_block)

    with pytest.raises(AssertionError, match="snapshot and tail differ from the log"):
        cluster_life_of(1, scene=ALONE)


def test_the_readme_lists_every_mistake() -> None:
    section = README.read_text().partition("## Clusters\n")[2]
    listed = re.findall(r"^\| .+ \| [a-z ]+ \| \d+ \|$", section, re.MULTILINE)

    assert listed == [cluster_row(mutant, mutant.first) for mutant in CLUSTER_MUTANTS.values()]
