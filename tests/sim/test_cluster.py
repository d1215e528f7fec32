"""Lives of three nodes over one engine. One of them again: ``make sim SEED=7 ARGS=--cluster``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.sim.cluster import THEMES, ClusterWorld, cluster_life_of
from tests.sim.cluster_mutants import CLUSTER_MUTANTS, cluster_row, noticed_in_a_cluster

README = Path(__file__).with_name("README.md")
LATER = [range(n, n + 5) for n in range(0, 20, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", LATER, ids=str)
def test_nothing_promised_is_lost_and_nothing_comes_twice(seeds: Sequence[int]) -> None:
    for seed in seeds:
        try:
            cluster_life_of(seed)
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--cluster")
            raise


def test_the_seeds_that_are_run_play_every_theme() -> None:
    assert {ClusterWorld(seed).theme for seeds in LATER for seed in seeds} == set(THEMES)


@pytest.mark.slow
def test_a_seed_tells_the_whole_story() -> None:
    assert cluster_life_of(3) == cluster_life_of(3)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLUSTER_MUTANTS)
def test_a_mistake_is_noticed_within_a_few_lives(name: str) -> None:
    assert noticed_in_a_cluster(CLUSTER_MUTANTS[name]) is not None


def test_the_readme_lists_every_mistake() -> None:
    section = README.read_text().partition("## Clusters\n")[2]
    listed = re.findall(r"^(\| [^|]+ \| [a-z ]+ \| )\d+ \|$", section, re.MULTILINE)

    mutants = CLUSTER_MUTANTS.values()
    assert listed == [cluster_row(mutant, None).removesuffix("nobody |") for mutant in mutants]
