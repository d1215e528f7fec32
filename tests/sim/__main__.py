"""Simulated lives of a realm: ``make sim SEED=4711 LIVES=100``, or ``python -m tests.sim 4711``.

Each seed is a world with its own life. The seed of a failure is all that is needed to repeat it.
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
"""Lines of the trace that a failure prints, unless ``--trace`` is set."""


def main(arguments: list[str]) -> int:
    options = _parse_options(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    if options.mutants:
        return _cluster_mutants() if options.cluster else _mutants()
    began_s, tally, played = elapsed_s(), Tally(), 0
    for seed in range(options.seed, options.seed + options.lives):
        if options.cluster or options.failovers:
            if not _cluster(seed, tally, options):
                return 1
        elif options.rot:
            _rot(seed, tally, options.lives == 1 or options.verbose)
        else:
            world = World(seed, options.scene)
            if not _play(world, tally, options.trace, scenes=options.scene):
                return 1
            if options.lives == 1 or options.verbose:
                _print_line(f"{seed} {'+'.join(world.names)}: {world.lives} lives, {world.hash}")
        played += 1
        if played % 100 == 0:
            _print_line(_summary(options.seed, played, elapsed_s() - began_s))
    _print_line(_summary(options.seed, played, elapsed_s() - began_s))
    for line in tally.lines():
        _print_line(line)
    return 0


def _parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(arguments)
    can_play = set(CLUSTER_SCENES if options.cluster else SCENES)
    if not can_play.issuperset(options.scene) or (options.cluster and len(options.scene) > 1):
        parser.error(f"scenes: {', '.join(sorted(can_play))}; a cluster plays one of them")
    if options.failovers and (options.scene or options.cluster or options.rot or options.mutants):
        parser.error("worlds of failovers play nothing else: give --failovers alone")
    return options


def _mutants() -> int:
    """Print the table of README.md. Return exit status 1 if a mutant is not noticed."""
    noticed_by_name = {name: noticed(mutant) for name, mutant in MUTANTS.items()}
    _print_line("| mistake | noticed by | first seed |\n|---|---|---|")
    for name, mutant in MUTANTS.items():
        _print_line(row(mutant, noticed_by_name[name]))
    return int(None in noticed_by_name.values())


def _cluster_mutants() -> int:
    """Print the table of clusters in README.md. Return exit status 1 if a mutant is not noticed."""
    noticed_by_name = {
        name: noticed_in_a_cluster(mutant) for name, mutant in CLUSTER_MUTANTS.items()
    }
    _print_line("| mistake | theme | first seed |\n|---|---|---|")
    for name, mutant in CLUSTER_MUTANTS.items():
        result = noticed_by_name[name]
        _print_line(cluster_row(mutant, result and result.seed))
    return int(None in noticed_by_name.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0, help="the first seed")
    parser.add_argument(
        "--lives", type=int, default=1, help="number of seeds, played one after the other"
    )
    parser.add_argument("--scene", action="append", default=[])
    parser.add_argument("--rot", action="store_true", help="worlds whose disk is damaged")
    parser.add_argument("--cluster", action="store_true", help="three nodes over one engine")
    parser.add_argument(
        "--failovers", action="store_true", help="clusters whose owner ends fifty times"
    )
    parser.add_argument(
        "--mutants", action="store_true", help="realms with a mistake: which scene notices"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print the whole trace, not only its end"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every seed")
    return parser


def _play(world: World, tally: Tally, prints_all: bool, scenes: list[str]) -> bool:
    try:
        simulate(world.live(), world.random)
    except Exception as error:  # noqa: BLE001  any error belongs to this seed
        lines = [f"{at_s:12.6f} {what}" for at_s, what in world.trace]
        for line in lines if prints_all else lines[-LINES_MAX:]:
            _print_line(line)
        _print_line("".join(traceback.format_exception(_innermost(error), limit=-6)))
        _print_line(
            f"seed {world.seed} failed in life {world.lives} of {'+'.join(world.names)}; again:"
        )
        chosen = "".join(f" --scene {name}" for name in scenes)
        _print_line(f"  make sim SEED={world.seed} ARGS='--trace{chosen}'")
        return False
    finally:
        tally.add(world)
    if prints_all:
        for at_s, what in world.trace:
            _print_line(f"{at_s:12.6f} {what}")
    return True


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cluster(seed: int, tally: Tally, options: argparse.Namespace) -> bool:
    """Play the life of three nodes. Return whether it had no failure."""
    prints_all, option = options.trace, "failovers" if options.failovers else "cluster"
    world = ClusterWorld(seed, scene="".join(options.scene))
    if options.failovers:
        world = FailoverWorld(seed)
    try:
        trace_hash = simulate(world.live(), world.random)
    except Exception as error:  # noqa: BLE001  any error belongs to this seed
        for at_s, what in world.trace if prints_all else world.trace[-LINES_MAX:]:
            _print_line(f"{at_s:12.6f} {what}")
        _print_line("".join(traceback.format_exception(_innermost(error), limit=-6)))
        chosen = "".join(f" --scene {name}" for name in options.scene)
        _print_line(f"  make sim SEED={seed} ARGS='--{option} --trace{chosen}'")
        return False
    tally.add_cluster(world)
    for at_s, what in world.trace if prints_all else ():
        _print_line(f"{at_s:12.6f} {what}")
    if options.lives == 1 or options.verbose:
        _print_line(
            f"{seed} {world.theme}, {world.scene}: {world.takeovers} takeovers, {trace_hash}"
        )
    return True


def _rot(seed: int, tally: Tally, is_verbose: bool) -> None:
    with TemporaryDirectory() as directory:
        try:
            result = rot_of(seed, Path(directory))
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--rot")
            raise
    tally.add_damage(result.damage.path, is_cut=result.damage.bit is None)
    if is_verbose:
        _print_line(f"{seed} {result.damage}: {result.outcome}")


def _summary(first: int, played: int, took_s: float) -> str:
    last = first + played - 1
    return (
        f"seeds {first}-{last}: {played} lived, in {took_s:.1f} s, {played / took_s:.1f} a second"
    )


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
