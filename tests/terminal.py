"""Commands that run as if a user had started them at a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.testing import CliRunner


class TerminalRunner(CliRunner):
    """Runs commands whose standard input and standard error seem to be a terminal. ``input`` has
    what the user types."""

    @contextmanager
    def isolation(self, *args: Any, **options: Any) -> Iterator[Any]:
        with super().isolation(*args, **options) as streams:
            for stream in (sys.stdin, sys.stderr):
                stream.isatty = lambda: True  # type: ignore[method-assign]  # the runner's stream
            yield streams
