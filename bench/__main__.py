"""``python -m bench SHAPE... [--peer NAME]... [--json FILE]``, ``report`` and ``install``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import http_peers, jars, mqtt_peers, store
from bench.everything import HOURS, QUICK_HOURS, Choice, Everything, opened, plan_of
from bench.page import DOCS, write_page
from bench.processes import ROOT, sources_of
from bench.report import markdown
from bench.running import FAILED, Wanted, measure
from bench.shape import Missing, Shape, shapes
from bench.slower import without_reason
from bench.store import FullRun, Refused
from bench.surroundings import environment

RUNS = 3
RUNS_MAX = 100
MEASURED = DOCS / "benchmarks.json"
"""The results of the page."""
EVERYTHING = ROOT / "build" / "benchmarks.json"
"""The results of a run of everything, unless ``--json`` names another file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run shapes or write the page from stored results. Return the exit status."""
    options = _parser().parse_args(arguments)
    # The exception of `sys.exit` ends the contexts of the servers, which stops them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.shapes == ["report"]:
            return _report(options.json or MEASURED)
        if options.shapes[:1] == ["install"]:
            return _install(options.shapes[1:])
        _check(options)
        return _everything(options) if options.all else _shape_by_shape(options)
    except Refused as error:
        print(error, file=sys.stderr)
        return 2


def _check(options: argparse.Namespace) -> None:
    """Raise ``Refused`` if an option has an unknown value, or does not go with the others."""
    if options.plan and not options.all:
        raise Refused("--plan shows the plan of --all: add --all")
    if options.all and (options.before or options.events or options.seconds):
        raise Refused("--all has its own sizes: leave out --before, --events and --seconds")
    if options.before and not sources_of(options.before):
        raise Refused(f"{options.before} is not a checkout: it has no packages")
    shapes_by_name = shapes()
    if unknown := [name for name in options.shapes if name.upper() not in shapes_by_name]:
        raise Refused(f"no shape {', '.join(unknown)}; there are {', '.join(shapes_by_name)}")
    rivals = sorted({name for shape in shapes_by_name.values() for name in shape.contenders})
    if unknown := [name for name in options.peer if name not in rivals]:
        raise Refused(f"no peer {', '.join(unknown)}; there are {', '.join(rivals)}")
    if options.runs is not None and not 1 <= options.runs <= RUNS_MAX:
        raise Refused(f"--runs is {options.runs}; allowed are 1 to {RUNS_MAX}")


def _shape_by_shape(options: argparse.Namespace) -> int:
    """Run the chosen shapes, each with its own date and machine."""
    shapes_by_name = shapes()
    usual = [shape for shape in shapes_by_name.values() if _is_clustered(shape) == options.cluster]
    wanted_shapes = [shapes_by_name[name.upper()] for name in options.shapes] or usual
    runs = options.runs or (1 if options.quick else RUNS)
    kept = [] if options.json is None else store.shape_results(options.json)
    done = {result.shape for result in kept} if options.resume else set()
    has_failed = False
    for shape in wanted_shapes:
        if shape.name in done:
            continue
        if options.events and hasattr(shape, "events"):
            shape.events = options.events
        wanted = Wanted(options.case, options.quick, options.seconds)
        result = measure(shape, options.peer, runs, wanted=wanted, earlier=options.before)
        print(markdown(result), flush=True)
        if options.json is not None:
            store.keep(options.json, result)
        has_failed |= any(cell.missing.startswith(FAILED) for cell in result.cells)
    return int(has_failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Compare Penstock's speed with other servers on this machine.",
    )
    parser.add_argument(
        "shapes",
        nargs="*",
        metavar="SHAPE",
        help="S1, ... (default: all); or report: write docs/benchmarks.md and the table of "
        "the README from the JSON file; or install "
        "kafka|artemis|qpid-jms|rumqttd|amqtt|nsqd: fetch "
        "these peers or clients",
    )
    parser.add_argument(
        "--cluster", action="store_true", help="run the shapes of clusters (C1, ...) by default"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        help="only Penstock and this peer; repeat for several",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="also measure Penstock of this checkout of the repository, with the dependencies "
        "installed here",
    )
    parser.add_argument("--case", default="", help="only cases whose label contains this text")
    parser.add_argument("--json", type=Path, help="add the results to this file")
    parser.add_argument("--runs", type=int, help=f"runs per cell (default {RUNS})")
    parser.add_argument(
        "--events",
        type=int,
        help="number of events, for shapes without a fixed number (S6, S8, S12, S12P, S22A, S22L)",
    )
    parser.add_argument(
        "--seconds", type=float, help="duration of a run, for shapes without a fixed duration"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip shapes that the JSON file has; with --all, runs that it has",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="run all shapes, also those of clusters and of Spark, as one run of one commit on one "
        f"machine, into --json (default {EVERYTHING.relative_to(ROOT)})",
    )
    parser.add_argument(
        "--hours",
        type=float,
        help=f"time budget of --all (default {HOURS}, or {QUICK_HOURS} with --quick); what does "
        "not fit is left out by a rule",
    )
    parser.add_argument(
        "--plan", action="store_true", help="only print what --all would measure, with its time"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny runs that only show that every shape works"
    )
    return parser


def _is_clustered(shape: Shape) -> bool:
    return shape.name.startswith("C")


def _everything(options: argparse.Namespace) -> int:
    """Run all shapes as one, or print the plan."""
    file = options.json or EVERYTHING
    usual_hours = QUICK_HOURS if options.quick else HOURS
    full = opened(
        file,
        environment(),
        hours=options.hours if options.hours is not None else usual_hours,
        quick=options.quick,
        resumes=options.resume,
        measures=not options.plan,
    )
    choice = Choice(
        shapes=[name.upper() for name in options.shapes],
        peers=options.peer,
        text=options.case,
        runs=options.runs or (1 if options.quick else RUNS),
    )
    earlier = store.read(MEASURED)
    shapes_by_name, cases = plan_of(full, choice, earlier if isinstance(earlier, FullRun) else None)
    run = Everything(file, full, shapes_by_name, cases)
    print(run.plan(), flush=True)
    if options.plan:
        return 0
    is_whole = run.measure()
    print(f"python -m bench report --json {file} writes the page", flush=True)
    return int(not is_whole)


def _report(file: Path) -> int:
    """Write the page, its pictures and the table of the README from the results in ``file``, which
    become those of the page."""
    stored = store.read(file)
    if isinstance(stored, FullRun) and stored.is_quick:
        raise Refused(f"{file} is of a run with --quick, whose figures mean nothing")
    if unexplained := without_reason(store.results_of(stored)):
        print(
            "rows below 1 need a reason in bench/slower.py:",
            *unexplained,
            sep="\n",
            file=sys.stderr,
        )
        return 1
    write_page(stored)
    if file != MEASURED:
        store.write(MEASURED, stored)
    return 0


def _install(names: Sequence[str]) -> int:
    """Fetch peers and clients that come as Java archives, crates, Python packages or Go modules."""
    installers = (
        dict.fromkeys(jars.WANTED, jars.install)
        | dict.fromkeys(mqtt_peers.FETCHED, mqtt_peers.install)
        | dict.fromkeys(http_peers.BUILT, http_peers.install)
    )
    if not names or set(names) - installers.keys():
        print(f"install one of {', '.join(installers)}", file=sys.stderr)
        return 2
    try:
        for name in names:
            print(installers[name](name))
    except (Missing, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
