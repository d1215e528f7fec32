"""How far each part of the run is: bars on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

LINE_INTERVAL_S = 2.0
"""Between two lines of progress where there is no terminal."""


class Part:
    """One thing that goes on in the run: how far it is, and how fast it went.

    ``before`` is what an interrupted run had done already; it counts as done, not as speed.
    """

    def __init__(self, name: str, total: int, *, before: int = 0) -> None:
        self.name = name
        self.total = total
        self.before = before
        self.done = before
        self.note = ""
        self._lock = threading.Lock()
        self._first: float | None = None
        self._last = 0.0

    def began(self) -> None:
        """The clock of the rate starts here, or else with the first progress."""
        self._first = perf_counter()

    def reach(self, done: int, note: str = "") -> None:
        """``done`` of the total are done by now."""
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
        """How much of it is done, 0 to 1."""
        return self.done / self.total if self.total else 1.0

    @property
    def seconds(self) -> float:
        """From the beginning of this part to its last progress."""
        return 0.0 if self._first is None else max(self._last - self._first, 0.0)

    @property
    def rate(self) -> float:
        """A second, in this run."""
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0


class Board:
    """Shows the parts of a run side by side."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._parts: list[Part] = []
        self._began = perf_counter()
        self._line_due_s = LINE_INTERVAL_S

    def add(self, part: Part) -> Part:
        self._parts.append(part)
        return part

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Keep the bars on the terminal for as long as the block runs."""
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
        """Call it often; it draws when it is time to."""
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
