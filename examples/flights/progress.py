"""Shows the progress of each part: bars on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

LINE_INTERVAL_S = 2.0
"""Seconds between two lines of progress if there is no terminal."""


class Part:
    """The progress and speed of one part of the run.

    ``before`` is the number that an interrupted run had done already; it counts as done, but not
    towards the speed.
    """

    def __init__(self, name: str, total: int, *, before: int = 0) -> None:
        self.name = name
        self.total = total
        self.before = before
        self.done = before
        self.note = ""
        self._lock = threading.Lock()
        self._first: float | None = None
        """Time of the beginning."""
        self._last = 0.0
        """Time of the last progress."""

    def began(self) -> None:
        """Start measuring the speed; without this call, measuring starts with the first
        progress."""
        self._first = perf_counter()

    def reach(self, done: int, note: str = "") -> None:
        """Set the number of the total that is done; called on the thread of any part."""
        with self._lock:
            now = perf_counter()
            if self._first is None:
                self._first = now
            if done != self.done:
                self._last = now
            self.done = done
            self.note = note or self.note

    @property
    def share(self) -> float:
        """The fraction that is done, 0 to 1."""
        return self.done / self.total if self.total else 1.0

    @property
    def seconds(self) -> float:
        """Seconds from the beginning of this part to its last progress."""
        return 0.0 if self._first is None else max(self._last - self._first, 0.0)

    @property
    def rate(self) -> float:
        """Number done per second in this run."""
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0


class Board:
    """Shows the progress of all parts together."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._parts: list[Part] = []
        self._began = perf_counter()
        self._line_due_s = LINE_INTERVAL_S

    def add(self, part: Part) -> Part:
        """Add a part, and return it."""
        self._parts.append(part)
        return part

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bars on the terminal until the block ends."""
        if not self._console.is_terminal:
            yield
            return
        columns = (
            TextColumn("  {task.description:<16}"),
            BarColumn(bar_width=14),
            TextColumn("{task.completed:>7,}{task.percentage:>4.0f}%"),
            TextColumn("[dim]{task.fields[rate]:>9} {task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, auto_refresh=False) as bars:
            self._bars = bars
            for part in self._parts:
                self._tasks[part.name] = bars.add_task(
                    part.name, total=part.total, rate="", note=""
                )
            try:
                yield
            finally:
                self.refresh()
                self._bars = None

    def refresh(self) -> None:
        """Draw the progress if it is due; may be called often."""
        if self._bars is not None:
            self._draw(self._bars)
            return
        elapsed_s = perf_counter() - self._began
        if not self._console.is_terminal and elapsed_s >= self._line_due_s:
            self._line_due_s = elapsed_s + LINE_INTERVAL_S
            self._print_line(elapsed_s)

    def _draw(self, bars: Progress) -> None:
        for part in self._parts:
            bars.update(
                self._tasks[part.name],
                completed=part.done,
                rate=f"{part.rate:,.0f}/s" if part.rate else "",
                note=part.note,
            )
        bars.refresh()

    def _print_line(self, elapsed_s: float) -> None:
        states = [f"{part.name} {part.share:.0%}" for part in self._parts]
        self._console.print(f"  {elapsed_s:5.1f} s  " + " | ".join(states), soft_wrap=True)
