"""Simulated lives of a realm: ``make sim SEED=4711 LIVES=100``, or ``python -m tests.sim 4711``.

Each seed is a world with a life of its own; on a failure its number says all there is to say.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from penstock_testing.loop import elapsed_s, simulate
from tests.sim.cluster import SCENES as CLUSTER_SCENES
from tests.sim.cluster import ClusterWorld
from tests.sim.cluster_failovers import FailoverWorld
from tests.sim.cluster_mutants import CLUSTER_MUTANTS, cluster_row, noticed_in_a_cluster
from tests.sim.mutants import MUTANTS, noticed, row
from tests.sim.rot import rot_of
from tests.sim.scenes import SCENES
from tests.sim.tally import Tally
from tests.sim.world import World

LINES_MAX = 60
"""Lines of the trace of a failure, unless all of it is asked for."""


def main(arguments: list[str]) -> int:
    asked = _asked(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if asked.mutants:
        return _cluster_mutants() if asked.cluster else _mutants()
    began_s, tally, played = elapsed_s(), Tally(), 0
    for seed in range(asked.seed, asked.seed + asked.lives):
        if asked.cluster or asked.failovers:
            if not _cluster(seed, tally, asked):
                return 1
        elif asked.rot:
            _rot(seed, tally, asked.lives == 1 or asked.verbose)
        else:
            world = World(seed, asked.scene)
            if not _play(world, tally, asked.trace, scenes=asked.scene):
                return 1
            if asked.lives == 1 or asked.verbose:
                _say(f"{seed} {'+'.join(world.names)}: {world.lives} lives, {world.hash}")
        played += 1
        if played % 100 == 0:
            _say(_summary(asked.seed, played, elapsed_s() - began_s))
    _say(_summary(asked.seed, played, elapsed_s() - began_s))
    for line in tally.lines():
        _say(line)
    return 0


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    asked = parser.parse_args(arguments)
    can_play = set(CLUSTER_SCENES if asked.cluster else SCENES)
    if not can_play.issuperset(asked.scene) or (asked.cluster and len(asked.scene) > 1):
        parser.error(f"scenes: {', '.join(sorted(can_play))}; a cluster plays one of them")
    if asked.failovers and (asked.scene or asked.cluster or asked.rot or asked.mutants):
        parser.error("worlds of failovers play nothing else: give --failovers alone")
    return asked


def _mutants() -> int:
    """The table of README.md; exit status 1 when one is not noticed."""
    found = {name: noticed(mutant) for name, mutant in MUTANTS.items()}
    _say("| mistake | noticed by | first seed |\n|---|---|---|")
    for name, mutant in MUTANTS.items():
        _say(row(mutant, found[name]))
    return int(None in found.values())


def _cluster_mutants() -> int:
    """The table of clusters in README.md; exit status 1 when one is not noticed."""
    found = {name: noticed_in_a_cluster(mutant) for name, mutant in CLUSTER_MUTANTS.items()}
    _say("| mistake | theme | first seed |\n|---|---|---|")
    for name, mutant in CLUSTER_MUTANTS.items():
        noticed_at = found[name]
        _say(cluster_row(mutant, noticed_at and noticed_at.seed))
    return int(None in found.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the first one")
    parser.add_argument("--lives", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--scene", action="append", default=[])
    parser.add_argument("--rot", action="store_true", help="worlds whose disk is damaged")
    parser.add_argument("--cluster", action="store_true", help="three nodes over one engine")
    parser.add_argument("--failovers", action="store_true", help="its owner ends fifty times")
    parser.add_argument("--mutants", action="store_true", help="realms with a mistake: who notices")
    parser.add_argument("--trace", action="store_true", help="all that happened, not only its end")
    parser.add_argument("--verbose", action="store_true", help="a line for every seed")
    return parser


def _play(world: World, tally: Tally, whole: bool, scenes: list[str]) -> bool:
    try:
        simulate(world.live(), world.random)
    except Exception as error:  # noqa: BLE001  whatever it is: it belongs to this seed
        lines = [f"{at_s:12.6f} {what}" for at_s, what in world.trace]
        for line in lines if whole else lines[-LINES_MAX:]:
            _say(line)
        _say("".join(traceback.format_exception(_first(error), limit=-6)))
        _say(f"seed {world.seed} failed in life {world.lives} of {'+'.join(world.names)}; again:")
        chosen = "".join(f" --scene {name}" for name in scenes)
        _say(f"  make sim SEED={world.seed} ARGS='--trace{chosen}'")
        return False
    finally:
        tally.add(world)
    if whole:
        for at_s, what in world.trace:
            _say(f"{at_s:12.6f} {what}")
    return True


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cluster(seed: int, tally: Tally, asked: argparse.Namespace) -> bool:
    """A life of three nodes; whether nothing went wrong."""
    whole, played = asked.trace, "failovers" if asked.failovers else "cluster"
    world = ClusterWorld(seed, scene="".join(asked.scene))
    if asked.failovers:
        world = FailoverWorld(seed)
    try:
        found = simulate(world.live(), world.random)
    except Exception as error:  # noqa: BLE001  whatever it is: it belongs to this seed
        for at_s, what in world.trace if whole else world.trace[-LINES_MAX:]:
            _say(f"{at_s:12.6f} {what}")
        _say("".join(traceback.format_exception(_first(error), limit=-6)))
        chosen = "".join(f" --scene {name}" for name in asked.scene)
        _say(f"  make sim SEED={seed} ARGS='--{played} --trace{chosen}'")
        return False
    tally.add_cluster(world)
    for at_s, what in world.trace if whole else ():
        _say(f"{at_s:12.6f} {what}")
    if asked.lives == 1 or asked.verbose:
        _say(f"{seed} {world.theme}, {world.scene}: {world.takeovers} takeovers, {found}")
    return True


def _rot(seed: int, tally: Tally, is_told: bool) -> None:
    with TemporaryDirectory() as directory:
        try:
            found = rot_of(seed, Path(directory))
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--rot")
            raise
    tally.rotten(found.damage.path, is_cut=found.damage.bit is None)
    if is_told:
        _say(f"{seed} {found.damage}: {found.outcome}")


def _summary(first: int, played: int, took_s: float) -> str:
    last = first + played - 1
    return (
        f"seeds {first}-{last}: {played} lived, in {took_s:.1f} s, {played / took_s:.1f} a second"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
