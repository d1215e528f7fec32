"""Measures shapes: one run of a contender, and all cases of a shape in turns."""

from __future__ import annotations

import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from msgspec.structs import replace

from bench.processes import sources_at
from bench.report import Cell, Result
from bench.shape import OURS, Case, Figures, Missing, Shape, ours_in, peers
from bench.surroundings import processor

FAILED: Final = "failed: "
"""Beginning of ``missing`` of a cell whose run failed."""
BEFORE: Final = f"{OURS}, before"
"""Name of the contender that is Penstock of another checkout."""


class Wanted(NamedTuple):
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


def measure(
    shape: Shape,
    peers_wanted: Sequence[str],
    runs: int,
    wanted: Wanted,
    earlier: Path | None = None,
) -> Result:
    """Run all cases of a shape. Contenders of a case take turns, so that noise affects all of them.

    ``earlier`` is another checkout whose Penstock is measured too.
    """
    contenders = chosen(shape, peers_wanted)
    if earlier is not None and OURS in contenders:
        contenders.insert(contenders.index(OURS) + 1, BEFORE)
    before, cells = machine(), []
    for case in wanted.cases(shape):
        figures: dict[str, list[Figures]] = {name: [] for name in contenders}
        missing: dict[str, str] = {}
        for _ in range(runs):
            for name in contenders:
                if name not in missing:
                    done = run_once(shape, case, name, earlier=earlier)
                    if isinstance(done, str):
                        missing[name] = done
                    else:
                        figures[name].append(done)
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
        at=now(),
        versions=_versions(shape, contenders),
        cells=cells,
        ours=ours_in(shape),
    )


def chosen(shape: Shape, peers_wanted: Sequence[str]) -> list[str]:
    """Return Penstock and those of ``peers_wanted`` that take part in a shape; all its contenders
    if that is empty."""
    return [
        name
        for name in shape.contenders
        if not peers_wanted or name in (OURS, ours_in(shape), *peers_wanted)
    ]


def run_once(
    shape: Shape, case: Case, contender: str, earlier: Path | None = None
) -> Figures | str:
    """Measure one run. Return its figures, or the reason why there are none; it begins with
    :data:`FAILED` if the run failed."""
    print(f"{shape.name} {case.label} {case.durability} {contender}", file=sys.stderr)
    name: str = contender
    sources: AbstractContextManager[None] = nullcontext()
    if contender == BEFORE and earlier is not None:
        name, sources = OURS, sources_at(earlier)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory, sources:
        try:
            return shape.run(case, name, Path(directory))
        except Missing as reason:
            return str(reason)
        except Exception as error:  # noqa: BLE001  the other runs must not end with it
            print(error, file=sys.stderr)
            return FAILED + _last_line(error)


def _last_line(error: Exception) -> str:
    """Return the last line of an error that has a text; the frame of an exception group has
    none."""
    lines = [line.strip(" |+-") for line in str(error).splitlines()]
    return next((line for line in reversed(lines) if line), type(error).__name__)


def machine() -> str:
    """Return the system, processor, load and Python version of this machine."""
    return (
        f"{platform.system()} {platform.release().partition('-')[0]}, {processor()}, "
        f"{os.cpu_count()} cores (load before the run {os.getloadavg()[0]:.1f}), "
        f"Python {platform.python_version()}"
    )


def now() -> str:
    """Return the date and time, for the page."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def _versions(shape: Shape, contenders: Sequence[str]) -> dict[str, str]:
    peers_by_name, own_versions = peers(), getattr(shape, "versions", None)
    if own_versions is not None:
        return {name: text for name, text in own_versions().items() if name in contenders}
    return {
        name: peers_by_name[name].version()
        for name in contenders
        if name in peers_by_name and not peers_by_name[name].missing()
    }
