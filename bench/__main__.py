"""``python -m bench SHAPE... [--peer NAME]... [--json FILE]``, ``report`` and ``install``."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from bench import jars, mqtt_peers
from bench.plots import draw
from bench.processes import ROOT, sources_at, sources_of
from bench.report import Cell, Result, between_marks, markdown
from bench.shape import OURS, Case, Figures, Missing, Shape, ours_in, peers, shapes
from bench.summary import SUMMARY, summary

RUNS = 3
FAILED = "failed: "
BEFORE = f"{OURS}, before"
"""Name of the contender that is Penstock of another checkout."""
DOCS = ROOT / "docs"
PAGE = DOCS / "benchmarks.md"
MEASURED = DOCS / "benchmarks.json"
PICTURES = DOCS / "benchmarks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run shapes or write the page from stored results. Return the exit status."""
    options = _parser().parse_args(arguments)
    # The exception of `sys.exit` ends the contexts of the servers, which stops them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.shapes == ["report"]:
        return _report(options.json or MEASURED)
    if options.shapes[:1] == ["install"]:
        return _install(options.shapes[1:])
    if options.before and not sources_of(options.before):
        print(f"{options.before} is not a checkout: it has no packages", file=sys.stderr)
        return 2
    shapes_by_name = shapes()
    if unknown := [name for name in options.shapes if name.upper() not in shapes_by_name]:
        print(
            f"no shape {', '.join(unknown)}; there are {', '.join(shapes_by_name)}", file=sys.stderr
        )
        return 2
    rivals = sorted({name for shape in shapes_by_name.values() for name in shape.contenders})
    if unknown := [name for name in options.peer if name not in rivals]:
        print(f"no peer {', '.join(unknown)}; there are {', '.join(rivals)}", file=sys.stderr)
        return 2
    usual = [shape for shape in shapes_by_name.values() if _is_clustered(shape) == options.cluster]
    chosen = [shapes_by_name[name.upper()] for name in options.shapes] or usual
    runs = options.runs or (1 if options.quick else RUNS)
    has_failed = False
    done = {result.shape for result in _kept(options.json)} if options.resume else set()
    for shape in chosen:
        if shape.name in done:
            continue
        if options.events and hasattr(shape, "events"):
            shape.events = options.events
        wanted = _Wanted(options.case, options.quick, options.seconds)
        result = measure(shape, options.peer, runs, wanted=wanted, earlier=options.before)
        print(markdown(result), flush=True)
        if options.json is not None:
            _keep(options.json, result)
        has_failed |= any(cell.missing.startswith(FAILED) for cell in result.cells)
    return int(has_failed)


class _Wanted(NamedTuple):
    """Filter and size of the cases to run."""

    only: str = ""
    quick: bool = False
    seconds: float = 0.0

    def cases(self, shape: Shape) -> list[Case]:
        return [
            self._sized(case)
            for case in shape.cases(quick=self.quick)
            if self.only in f"{case.label} {case.durability}"
        ]

    def _sized(self, case: Case) -> Case:
        if not self.seconds or "seconds" not in case.parameters:
            return case
        return replace(case, parameters={**case.parameters, "seconds": self.seconds})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m bench",
        description="Compare Penstock's speed with other servers on this machine.",
    )
    parser.add_argument(
        "shapes",
        nargs="*",
        metavar="SHAPE",
        help="S1, ... (default: all); or report: write docs/benchmarks.md from the JSON file; or "
        "install kafka|artemis|qpid-jms|rumqttd|amqtt: fetch these peers or clients",
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
        help="number of events, for shapes without a fixed number (S12, S12P, S22A, S22L)",
    )
    parser.add_argument(
        "--seconds", type=float, help="duration of a run, for shapes without a fixed duration"
    )
    parser.add_argument("--resume", action="store_true", help="skip shapes that the JSON file has")
    parser.add_argument(
        "--quick", action="store_true", help="tiny runs that only show that every shape works"
    )
    return parser


def measure(
    shape: Shape,
    peers_wanted: Sequence[str],
    runs: int,
    wanted: _Wanted,
    earlier: Path | None = None,
) -> Result:
    """Run all cases of a shape. Contenders of a case take turns, so that noise affects all of them.

    ``earlier`` is another checkout whose Penstock is measured too.
    """
    contenders = [
        name
        for name in shape.contenders
        if not peers_wanted or name in (OURS, ours_in(shape), *peers_wanted)
    ]
    if earlier is not None and OURS in contenders:
        contenders.insert(contenders.index(OURS) + 1, BEFORE)
    before, cells = machine(), []
    for case in wanted.cases(shape):
        figures: dict[str, list[Figures]] = {name: [] for name in contenders}
        missing: dict[str, str] = {}
        for _ in range(runs):
            for name in contenders:
                if name not in missing:
                    _run(shape, case, name, figures=figures[name], missing=missing, earlier=earlier)
        cells += [
            Cell(
                case.label, case.durability, name, runs=figures[name], missing=missing.get(name, "")
            )
            for name in contenders
        ]
    return Result(
        shape.name,
        shape.title,
        shape.figure,
        higher_is_better=shape.higher_is_better,
        machine=before,
        at=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        versions=_versions(shape, contenders),
        cells=cells,
        ours=ours_in(shape),
    )


def _is_clustered(shape: Shape) -> bool:
    return shape.name.startswith("C")


def _run(
    shape: Shape,
    case: Case,
    contender: str,
    figures: list[Figures],
    missing: dict[str, str],
    earlier: Path | None,
) -> None:
    print(f"{shape.name} {case.label} {case.durability} {contender}", file=sys.stderr)
    name: str = contender
    sources: AbstractContextManager[None] = nullcontext()
    if contender == BEFORE and earlier is not None:
        name, sources = OURS, sources_at(earlier)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, sources:
        try:
            figures.append(shape.run(case, name, Path(directory)))
        except Missing as reason:
            missing[contender] = str(reason)
        except (RuntimeError, subprocess.SubprocessError) as error:
            print(error, file=sys.stderr)
            missing[contender] = FAILED + str(error).strip().rpartition("\n")[2]


def machine() -> str:
    """Return the system, processor, load and Python version of this machine."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return (
        f"{platform.system()} {platform.release().partition('-')[0]}, {model}, "
        f"{os.cpu_count()} cores (load before the run {os.getloadavg()[0]:.1f}), "
        f"Python {platform.python_version()}"
    )


def _versions(shape: Shape, contenders: Sequence[str]) -> dict[str, str]:
    peers_by_name, own_versions = peers(), getattr(shape, "versions", None)
    if own_versions is not None:
        return {name: text for name, text in own_versions().items() if name in contenders}
    return {
        name: peers_by_name[name].version()
        for name in contenders
        if name in peers_by_name and not peers_by_name[name].missing()
    }


def _keep(file: Path, result: Result) -> None:
    """Store the result of a shape in ``file``; results of other shapes stay."""
    kept = {kept.shape: kept for kept in _kept(file)} | {result.shape: result}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(list(kept.values()))) + b"\n")


def _kept(file: Path | None) -> list[Result]:
    if file is None or not file.exists():
        return []
    return msgspec.json.decode(file.read_bytes(), type=list[Result])


def _report(file: Path) -> int:
    """Write the tables of the results in ``file`` into the page, and their pictures."""
    results = _kept(file)
    parts = {SUMMARY: summary(results)}
    for result in results:
        picture = draw(result, PICTURES)
        parts[result.shape] = markdown(result)
        if picture is not None:
            link = picture.relative_to(DOCS).as_posix()
            parts[result.shape] += f"\n![{result.shape}: {result.title}]({link})\n"
    PAGE.write_text(between_marks(PAGE.read_text(), parts))
    return 0


def _install(names: Sequence[str]) -> int:
    """Fetch peers and clients that come as Java archives, crates or Python packages."""
    installable = (*jars.WANTED, *mqtt_peers.FETCHED)
    if not names or set(names) - set(installable):
        print(f"install one of {', '.join(installable)}", file=sys.stderr)
        return 2
    try:
        for name in names:
            print((jars if name in jars.WANTED else mqtt_peers).install(name))
    except (Missing, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
