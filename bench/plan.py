"""The order of a run of everything, its estimated time, and what is left out to fit a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bench.shape import Case

SUMMARY, RIVAL, LEADING, OTHER = range(4)
"""Ranks of cells: in the summary; of Penstock and the main peer; of another peer in a leading case
of its shape; of another peer in other cases."""
RULE: Final = (
    "If the estimated time exceeds the budget, cells are left out until it fits, from the least "
    "important shape on: first peers other than the main one in the minor cases of a shape, then "
    "the second and third runs of these peers, then these peers in all cases, then the second and "
    "third runs of Penstock and the main peer, then whole cases. Rows of the summary stay."
)
"""The rule of :func:`fitted`, for the page."""


class PlannedCell(Struct, frozen=True):
    """One contender in one case."""

    contender: str
    rank: int
    run_s: float
    """Estimated seconds of one run; 0 if the contender cannot take part, so that its reason stays
    in the table."""
    runs: int

    @property
    def seconds(self) -> float:
        """Estimated seconds of all runs."""
        return self.run_s * self.runs


class PlannedCase(Struct, frozen=True):
    """A case with its contenders, which take turns."""

    shape: str
    importance: int
    """Place of its shape; 0 is the most important one."""
    case: Case
    cells: tuple[PlannedCell, ...]

    @property
    def seconds(self) -> float:
        """Estimated seconds of all cells."""
        return sum(cell.seconds for cell in self.cells)

    @property
    def is_in_summary(self) -> bool:
        """Whether the summary has a row of it."""
        return any(cell.rank == SUMMARY for cell in self.cells)

    @property
    def runs(self) -> int:
        """Number of runs of all contenders that can take part."""
        return sum(cell.runs for cell in self.cells if cell.run_s)


def in_order(cases: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return the cases in the order of their measurement: those of the summary first, then shape by
    shape, so that an interrupted run has the most important rows."""
    return sorted(cases, key=lambda case: (not case.is_in_summary, case.importance))


def seconds_of(cases: Iterable[PlannedCase]) -> float:
    """Return the estimated seconds of all cases."""
    return sum(case.seconds for case in cases)


def fitted(cases: Sequence[PlannedCase], budget_s: float) -> list[PlannedCase]:
    """Return the cases, in the same order, with fewer runs in some cells, so that they take at most
    ``budget_s``. Cells without runs are left out. See :data:`RULE`.

    The summary is never reduced, even if it takes longer.
    """
    reduced = list(cases)
    for is_concerned, runs in STEPS:
        for importance in sorted({case.importance for case in cases}, reverse=True):
            if seconds_of(reduced) <= budget_s:
                return reduced
            reduced = [
                _with_runs(case, is_concerned, runs) if case.importance == importance else case
                for case in reduced
            ]
    return reduced


STEPS: Final[Sequence[tuple[Callable[[PlannedCell], bool], int]]] = (
    (lambda cell: cell.rank == OTHER, 0),
    (lambda cell: cell.rank == LEADING, 1),
    (lambda cell: cell.rank == LEADING, 0),
    (lambda cell: cell.rank == RIVAL, 1),
    (lambda cell: cell.rank == RIVAL, 0),
)
"""The cells that each step of :data:`RULE` concerns, and the runs that it leaves them."""


def left_out(before: Sequence[PlannedCase], after: Sequence[PlannedCase]) -> list[str]:
    """Return a sentence for each shape that has fewer runs in the second plan than in the first."""
    sentences = []
    pairs = sorted(zip(before, after, strict=True), key=lambda pair: pair[0].importance)
    for shape, of_shape in groupby(pairs, key=lambda pair: pair[0].shape):
        cut = [(old, new) for old, new in of_shape if old.runs != new.runs]
        omitted = [old.case.label for old, new in cut if not new.runs]
        absent = [
            cell.contender
            for old, new in cut
            if new.runs
            for cell, kept in zip(old.cells, new.cells, strict=True)
            if cell.runs and not kept.runs
        ]
        fewer = [
            cell.contender
            for old, new in cut
            for cell, kept in zip(old.cells, new.cells, strict=True)
            if 0 < kept.runs < cell.runs
        ]
        parts = [
            f"{text} {', '.join(dict.fromkeys(names))}"
            for text, names in (
                ("no measurement of", omitted),
                ("in some cases without", absent),
                ("fewer runs of", fewer),
            )
            if names
        ]
        if parts:
            sentences.append(f"{shape}: {'; '.join(parts)}")
    return sentences


def as_table(cases: Sequence[PlannedCase], pace: float = 1.0) -> str:
    """Return the plan as text: a line for each shape in the order of importance, and the total.

    ``pace`` is the measured time divided by the estimated time so far.
    """
    lines = [f"{'shape':8}{'cases':>7}{'cells':>7}{'runs':>6}{'minutes':>9}"]
    by_importance = sorted(cases, key=lambda case: case.importance)
    for shape, of_shape in groupby(by_importance, key=lambda case: case.shape):
        lines.append(_line(shape, [*of_shape], pace))
    return "\n".join([*lines, _line("total", cases, pace)])


def _line(name: str, cases: Sequence[PlannedCase], pace: float) -> str:
    measured = [case for case in cases if case.runs]
    cells = sum(bool(cell.runs and cell.run_s) for case in measured for cell in case.cells)
    runs, minutes = sum(case.runs for case in measured), seconds_of(cases) * pace / 60
    return f"{name:8}{len(measured):>7}{cells:>7}{runs:>6}{minutes:>9.1f}"


def _with_runs(
    case: PlannedCase, is_concerned: Callable[[PlannedCell], bool], runs: int
) -> PlannedCase:
    cells = (
        replace(cell, runs=min(cell.runs, runs)) if cell.run_s and is_concerned(cell) else cell
        for cell in case.cells
    )
    return replace(case, cells=tuple(cells))
