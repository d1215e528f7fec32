"""``python -m bench SHAPE... [--peer NAME]... [--json FILE] [--quick]``, and ``report``."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.processes import ROOT
from bench.report import OURS, Cell, Result, between_marks, markdown
from bench.shape import Case, Figures, Missing, Shape, peers, shapes

RUNS = 3
PAGE = ROOT / "docs" / "benchmarks.md"
MEASURED = ROOT / "docs" / "benchmarks.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run shapes, or write what was measured into the page. The exit status."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended, too
    if given.shapes == ["report"]:
        _write_page(given.json or MEASURED)
        return 0
    known = shapes()
    if unknown := [name for name in given.shapes if name.upper() not in known]:
        print(f"no shape {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    rivals = sorted({name for shape in known.values() for name in shape.contenders})
    if unknown := [name for name in given.peer if name not in rivals]:
        print(f"no peer {', '.join(unknown)}; there are {', '.join(rivals)}", file=sys.stderr)
        return 2
    chosen = [known[name.upper()] for name in given.shapes] or list(known.values())
    runs = given.runs or (1 if given.quick else RUNS)
    results = []
    for shape in chosen:
        if given.events and hasattr(shape, "events"):
            shape.events = given.events
        result = measure(shape, given.peer, runs, only=given.case, quick=given.quick)
        print(markdown(result))
        results.append(result)
    if given.json is not None:
        _keep(given.json, results)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench", description="Penstock's speed beside its peers'.")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="S1, ...; or: report")
    parser.add_argument("--peer", action="append", default=[], help="only these, and Penstock")
    parser.add_argument("--case", default="", help="only cases with this in their label")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    parser.add_argument("--runs", type=int, help=f"runs a cell (default {RUNS})")
    parser.add_argument("--events", type=int, help="how many, where a shape leaves it open: S12")
    parser.add_argument("--quick", action="store_true", help="tiny: does it run at all?")
    return parser


def measure(
    shape: Shape, wanted: Sequence[str], runs: int, *, only: str = "", quick: bool = False
) -> Result:
    """All cases of a shape; the contenders of a case take turns, so that noise hits all."""
    contenders = [name for name in shape.contenders if not wanted or name == OURS or name in wanted]
    before, cells = machine(), []
    for case in shape.cases(quick=quick):
        if only not in f"{case.label} {case.durability}":
            continue
        figures: dict[str, list[Figures]] = {name: [] for name in contenders}
        missing: dict[str, str] = {}
        for _ in range(runs):
            for name in contenders:
                if name not in missing:
                    _run(shape, case, name, figures[name], missing)
        cells += [
            Cell(case.label, case.durability, name, figures[name], missing.get(name, ""))
            for name in contenders
        ]
    return Result(
        shape.name,
        shape.title,
        shape.figure,
        shape.higher_is_better,
        before,
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        _versions(contenders),
        cells,
    )


def _run(
    shape: Shape, case: Case, contender: str, figures: list[Figures], missing: dict[str, str]
) -> None:
    print(f"{shape.name} {case.label} {case.durability} {contender}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        try:
            figures.append(shape.run(case, contender, Path(directory)))
        except Missing as reason:
            missing[contender] = str(reason)


def machine() -> str:
    """What it runs on, as far as the system tells."""
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


def _versions(contenders: Sequence[str]) -> dict[str, str]:
    known = peers()
    return {
        name: known[name].version()
        for name in contenders
        if name in known and not known[name].missing()
    }


def _keep(file: Path, results: Sequence[Result]) -> None:
    """Put ``results`` into ``file`` beside those of other shapes."""
    kept = {result.shape: result for result in _kept(file)}
    kept |= {result.shape: result for result in results}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(list(kept.values()))) + b"\n")


def _kept(file: Path) -> list[Result]:
    return msgspec.json.decode(file.read_bytes(), type=list[Result]) if file.exists() else []


def _write_page(file: Path) -> None:
    tables = {result.shape: markdown(result) for result in _kept(file)}
    PAGE.write_text(between_marks(PAGE.read_text(), tables))


if __name__ == "__main__":
    sys.exit(main())
