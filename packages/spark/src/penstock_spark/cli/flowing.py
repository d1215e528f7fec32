"""Shows the progress of a pipeline's steps: a table at a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock_core.printable import plain
from penstock_server.cli.shared.output import duration, note
from penstock_server.cli.shared.progress import is_visible

if TYPE_CHECKING:
    from penstock_spark.pipelines.step import Progress

LINES_EVERY_S: Final = 10.0
"""Seconds between two lines about the progress of a step if the output is not a terminal."""


class RunDisplay(Protocol):
    """Shows the state changes and the progress of a run."""

    def told(self, step: str, text: str) -> None:
        """Show a change of a step's state."""
        ...

    def moved(self, progress: Sequence[Progress]) -> None:
        """Show the progress of all steps."""
        ...


class Lines:
    """Prints a line for each change of state and, every ``every_s`` seconds, a line for each step
    that has read rows since its previous line."""

    def __init__(self, every_s: float = LINES_EVERY_S) -> None:
        self._every_s = every_s
        self._written_at_s = perf_counter()
        self._written_rows: dict[str, int] = {}

    def told(self, step: str, text: str) -> None:
        note(f"{step}: {text}")

    def moved(self, progress: Sequence[Progress]) -> None:
        if perf_counter() - self._written_at_s < self._every_s:
            return
        self._written_at_s = perf_counter()
        for step_progress in progress:
            if step_progress.rows != self._written_rows.get(step_progress.step, 0):
                self._written_rows[step_progress.step] = step_progress.rows
                figures = [f"{name} {text}" for name, text in _facts(step_progress) if text]
                note(f"{step_progress.step}: {', '.join(figures)}")


class LiveTable:
    """Draws a table of all steps on standard error, and erases it at the end of the run."""

    def __init__(self, live: Any) -> None:
        self._live = live

    def told(self, step: str, text: str) -> None:
        self._live.console.print(plain(f"{step}: {text}"), highlight=False, markup=False)

    def moved(self, progress: Sequence[Progress]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        table.add_column("step")
        for name, _ in _facts(progress[0]) if progress else ():
            table.add_column(name, justify="right")
        table.add_column("")
        for step_progress in progress:
            table.add_row(
                step_progress.step,
                *(text for _, text in _facts(step_progress)),
                Text(plain(step_progress.text)),
            )
        self._live.update(table)


@contextmanager
def displayed() -> Iterator[RunDisplay]:
    """Show a run on standard error while the ``with`` block runs: as a table at a terminal, as
    lines elsewhere."""
    if not is_visible():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live as Screen

    with Screen(console=Console(file=sys.stderr), transient=True, refresh_per_second=4) as live:
        yield LiveTable(live)


def _facts(progress: Progress) -> list[tuple[str, str]]:
    """Return the name and the text of each figure of a step; the text of an unknown figure is
    empty."""
    rows = f"{progress.rows:,}" + (f" of {progress.total:,}" if progress.total else "")
    return [
        ("rows in", rows),
        ("in/s", f"{progress.rows_per_s:,.0f}" if progress.rows_per_s else ""),
        ("rows out", "" if progress.rows_out is None else f"{progress.rows_out:,}"),
        ("late", f"{progress.rows_late:,}" if progress.rows_late else ""),
        ("out/s", f"{progress.rows_out_per_s:,.0f}" if progress.rows_out_per_s else ""),
        ("batch", "" if progress.batch is None else f"{progress.batch:,}"),
        ("took", "" if progress.batch_ms is None else duration(progress.batch_ms)),
        ("behind", "" if progress.lag_events is None else f"{progress.lag_events:,}"),
        ("by", "" if progress.lag_ms is None else duration(progress.lag_ms)),
    ]
