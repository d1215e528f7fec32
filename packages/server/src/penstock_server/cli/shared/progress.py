"""Shows the progress of long operations at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProgressDisplay(Protocol):
    """A display of how much of an operation is done."""

    def show(self, done: int) -> None:
        """Show that ``done`` of the total is done."""
        ...


class _Silent:
    def show(self, done: int) -> None:
        pass


def is_visible() -> bool:
    """Return whether standard error is a terminal, where a progress bar is visible."""
    return sys.stderr.isatty()


@contextmanager
def progress(work: str, total: int) -> Iterator[ProgressDisplay]:
    """Show a bar on standard error if that is a terminal and ``total`` is not 0; remove it at the
    end."""
    if not total or not is_visible():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(work, total=total)

        class Bar:
            def show(self, done: int) -> None:
                bars.update(task, completed=done)

        yield Bar()
