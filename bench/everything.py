"""``python -m bench --all``: every shape in one run, which can be interrupted after each cell."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bench import store
from bench.catalogue import caption_of, everything
from bench.plan import (
    RULE,
    PlannedCase,
    PlannedCell,
    as_table,
    fitted,
    in_order,
    left_out,
    seconds_of,
)
from bench.processes import runs_end_after
from bench.report import LEFT_OUT, Cell, Result
from bench.running import FAILED, chosen, now, run_once
from bench.shape import Figures, Shape, ours_in
from bench.store import Environment, FullRun, Refused
from bench.surroundings import CHANGED, IDLE_TIMEOUT_S, wait_until_idle

HOURS: Final = 2.7
QUICK_HOURS: Final = 0.2
"""The usual time budget of a quick run."""
HOURS_MAX: Final = 100.0
RUN_S: Final = 300.0
"""Longest time of the work of one run."""
TRUST_S: Final = 300.0
"""The pace counts as usual for this time in addition to the time that has passed."""
PACES: Final = (0.3, 4.0)
"""Smallest and largest ratio of the time that runs take and their estimate."""

Run = Callable[[Shape, PlannedCase, str], Figures | str]
"""Measures one run of a contender; returns its figures, or the reason why there are none."""


class Choice(Struct, frozen=True):
    """The part of everything that one call measures."""

    shapes: Sequence[str] = ()
    """Names of shapes; all if empty."""
    peers: Sequence[str] = ()
    """Peers that are measured with Penstock; all if empty."""
    text: str = ""
    """Text in the label and level of each case."""
    runs: int = 3

    def select(
        self, shapes: Mapping[str, Shape], cases: Sequence[PlannedCase]
    ) -> list[PlannedCase]:
        """Return the chosen cases with the chosen contenders, in the order of measurement."""
        return in_order(
            replace(
                case,
                cells=tuple(
                    cell
                    for cell in case.cells
                    if cell.contender in chosen(shapes[case.shape], self.peers)
                ),
            )
            for case in cases
            if (not self.shapes or case.shape in self.shapes)
            and self.text in f"{case.case.label} {case.case.durability}"
        )


def opened(
    file: Path,
    environment: Environment,
    *,
    hours: float,
    quick: bool,
    resumes: bool,
    measures: bool = True,
) -> FullRun:
    """Return the stored run to continue, or a new one. A run that is only planned may have any
    code. Raises ``Refused``."""
    if not 0 < hours <= HOURS_MAX:
        raise Refused(f"--hours is {hours}; allowed are numbers above 0, up to {HOURS_MAX:g}")
    if measures and not quick and (not environment.commit or environment.commit.endswith(CHANGED)):
        raise Refused(
            f"the measured code is of commit {environment.commit or 'unknown'}: figures need a "
            "commit; commit the changes, or try the run with --quick"
        )
    if not file.exists() or not (resumes or measures):
        return FullRun(
            environment,
            now(),
            load=round(os.getloadavg()[0], 2),
            hours=hours,
            rule=RULE,
            is_quick=quick,
        )
    if not resumes:
        raise Refused(f"{file} exists: continue it with --resume, or remove it")
    stored = store.read(file)
    if not isinstance(stored, FullRun):
        raise Refused(f"{file} has shapes that were measured one by one: use another file")
    if stored.is_quick != quick:
        size = "with" if stored.is_quick else "without"
        raise Refused(f"{file} was measured {size} --quick: use another file")
    if differences := store.differences(stored.environment, environment):
        raise Refused(
            f"{file} is of another commit or machine ({'; '.join(differences)}): use another file"
        )
    stored.environment, stored.hours = environment, hours
    return stored


class Everything:
    """The progress of a run of everything.

    ``run`` measures one run of a contender, ``wait`` waits for an idle machine, and ``clock``
    returns seconds.
    """

    def __init__(
        self,
        file: Path,
        full: FullRun,
        shapes: Mapping[str, Shape],
        cases: Sequence[PlannedCase],
        *,
        run: Run | None = None,
        wait: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._file = file
        self._full = full
        self._shapes = shapes
        self._cases = cases
        self._run = run or _run
        self._wait = wait or _waited(quick=full.is_quick)
        self._clock = clock
        self._counted_at_s = clock()

    @property
    def pace(self) -> float:
        """Measured time divided by estimated time so far."""
        estimated_s = sum(
            cell.run_s * len(stored.runs)
            for case in self._cases
            for cell in case.cells
            if (stored := self._stored(case, cell.contender)) is not None
        )
        pace = (self._full.spent_s + TRUST_S) / (estimated_s + TRUST_S)
        return min(max(pace, PACES[0]), PACES[1])

    def remaining(self) -> list[PlannedCase]:
        """Return the cases that are not complete, reduced so that they fit the rest of the time.

        A case that has begun keeps the numbers of runs of its beginning.
        """
        unfinished = [case for case in self._cases if not self._is_complete(case)]
        begun = [case for case in unfinished if self._has_begun(case)]
        budget_s = max(0.0, self._full.hours * 3_600 - self._full.spent_s) / self.pace
        resumed = [self._as_begun(case) for case in begun]
        rest = fitted(
            [case for case in unfinished if case not in begun], budget_s - seconds_of(resumed)
        )
        return [*resumed, *rest]

    def plan(self) -> str:
        """Return the plan of the remaining cases as text."""
        plan = self.remaining()
        unfinished = {_key(case): case for case in self._cases}
        cuts = left_out(
            [unfinished[_key(case)] for case in plan if not self._has_begun(case)],
            [case for case in plan if not self._has_begun(case)],
        )
        minutes = self._full.spent_s / 60
        lines = [as_table(plan, self.pace), f"time so far: {minutes:.0f} minutes"]
        if cuts:
            lines += [f"To fit {self._full.hours:g} hours:", *cuts, RULE]
        return "\n".join(lines)

    def measure(self) -> bool:
        """Measure what remains. Return whether no run failed."""
        with runs_end_after(RUN_S):
            before: PlannedCase | None = None
            for case in self._next_cases():
                if before is not None and before.shape != case.shape:
                    _close(self._shapes[before.shape])
                before = case
                self._measure(case)
            if before is not None:
                _close(self._shapes[before.shape])
        self._record_left_out(self.remaining())
        return not any(
            cell.missing.startswith(FAILED)
            for result in self._full.results
            for cell in result.cells
        )

    def _next_cases(self) -> Iterator[PlannedCase]:
        """Yield the next case until the plan is complete; the plan follows the measured pace. A
        case is yielded once, even if a run of it failed."""
        tried: set[tuple[str, str, str]] = set()
        while True:
            plan = [case for case in self.remaining() if _key(case) not in tried and case.runs]
            if not plan:
                return
            minutes = seconds_of(plan) * self.pace / 60
            print(f"{len(plan)} cases left, about {minutes:.0f} minutes", file=sys.stderr)
            tried.add(_key(plan[0]))
            yield plan[0]

    def _measure(self, case: PlannedCase) -> None:
        busy = self._wait()
        result = self._result_of(case)
        result = self._replace(result, busy={**result.busy, _text(case): round(busy, 2)})
        for planned in case.cells:
            self._begin(result, case, planned)
        self._save()
        for turn in range(max(cell.runs for cell in case.cells)):
            for planned in case.cells:
                cell = self._stored(case, planned.contender)
                if cell is None or cell.missing or not turn == len(cell.runs) < cell.planned:
                    continue
                started_s = self._clock()
                done = self._run(self._shapes[case.shape], case, planned.contender)
                if isinstance(done, str):
                    self._put(result, replace(cell, missing=done))
                else:
                    cell.runs.append(done)
                    cell.took_s.append(round(self._clock() - started_s, 1))
                self._save()

    def _begin(self, result: Result, case: PlannedCase, planned: PlannedCell) -> None:
        """Store a cell without runs, or the one of an earlier call without the reason why it had no
        further runs."""
        stored, missing = self._stored(case, planned.contender), "" if planned.runs else LEFT_OUT
        if stored is not None:
            self._put(result, replace(stored, missing=missing, planned=planned.runs))
            return
        result.cells.append(
            Cell(
                case.case.label,
                case.case.durability,
                planned.contender,
                runs=[],
                missing=missing,
                planned=planned.runs,
            )
        )

    def _record_left_out(self, plan: Sequence[PlannedCase]) -> None:
        """Store the cells of the cases that nothing remains of."""
        for case in plan:
            if not case.runs and not self._has_begun(case):
                result = self._result_of(case)
                for planned in case.cells:
                    self._begin(result, case, planned)
        self._save()

    def _save(self) -> None:
        moment_s = self._clock()
        self._full.spent_s += moment_s - self._counted_at_s
        self._counted_at_s = moment_s
        store.write(self._file, self._full)

    def _is_complete(self, case: PlannedCase) -> bool:
        """Return whether each contender has its runs, or a reason that will not change in this
        run. Runs that failed are repeated, and cases that were left out are planned again."""
        cells = [self._stored(case, cell.contender) for cell in case.cells]
        if all(cell is None or cell.missing == LEFT_OUT for cell in cells):
            return False
        return all(
            cell is not None
            and (
                len(cell.runs) >= cell.planned
                if not cell.missing
                else not cell.missing.startswith(FAILED)
            )
            for cell in cells
        )

    def _has_begun(self, case: PlannedCase) -> bool:
        cells = [self._stored(case, cell.contender) for cell in case.cells]
        return any(cell is not None and cell.missing != LEFT_OUT for cell in cells)

    def _as_begun(self, case: PlannedCase) -> PlannedCase:
        """Return a case that has begun with the numbers of runs of its beginning; contenders that
        are new in it get as many as the others."""
        stored = {cell.contender: self._stored(case, cell.contender) for cell in case.cells}
        most = max(cell.planned for cell in stored.values() if cell is not None)
        return replace(
            case,
            cells=tuple(
                replace(
                    cell, runs=most if (kept := stored[cell.contender]) is None else kept.planned
                )
                for cell in case.cells
            ),
        )

    def _stored(self, case: PlannedCase, contender: str) -> Cell | None:
        return next(
            (
                cell
                for result in self._full.results
                if result.shape == case.shape
                for cell in result.cells
                if (cell.case, cell.durability, cell.contender)
                == (case.case.label, case.case.durability, contender)
            ),
            None,
        )

    def _result_of(self, case: PlannedCase) -> Result:
        """Return the result of the shape of a case, which is new before its first case."""
        for result in self._full.results:
            if result.shape == case.shape:
                return result
        shape = self._shapes[case.shape]
        result = Result(
            shape.name,
            shape.title,
            shape.figure,
            higher_is_better=shape.higher_is_better,
            machine="",
            at=now(),
            versions={},
            cells=[],
            ours=ours_in(shape),
            caption=caption_of(shape.name, quick=self._full.is_quick),
        )
        self._full.results.append(result)
        return result

    def _replace(self, result: Result, busy: Mapping[str, float]) -> Result:
        new = replace(result, busy=busy)
        self._full.results[self._full.results.index(result)] = new
        return new

    @staticmethod
    def _put(result: Result, cell: Cell) -> None:
        """Replace the cell of the same contender in the same case."""
        keys = [(one.case, one.durability, one.contender) for one in result.cells]
        result.cells[keys.index((cell.case, cell.durability, cell.contender))] = cell


def plan_of(
    full: FullRun, choice: Choice, measured: FullRun | None
) -> tuple[Mapping[str, Shape], list[PlannedCase]]:
    """Return the shapes and the chosen cases of a run, in the order of measurement. ``measured`` is
    an earlier run whose times replace the estimates."""
    shapes, cases = everything(quick=full.is_quick, runs=choice.runs, measured=measured)
    return shapes, choice.select(shapes, cases)


def _run(shape: Shape, case: PlannedCase, contender: str) -> Figures | str:
    return run_once(shape, case.case, contender)


def _waited(*, quick: bool) -> Callable[[], float]:
    """Return the wait before a case; a quick run does not wait."""
    return lambda: wait_until_idle(0.0 if quick else IDLE_TIMEOUT_S)


def _close(shape: Shape) -> None:
    """End what a shape keeps running between its cases."""
    close = getattr(shape, "close", None)
    if close is not None:
        close()


def _key(case: PlannedCase) -> tuple[str, str, str]:
    return case.shape, case.case.label, case.case.durability


def _text(case: PlannedCase) -> str:
    return f"{case.case.label} {case.case.durability}".strip()
