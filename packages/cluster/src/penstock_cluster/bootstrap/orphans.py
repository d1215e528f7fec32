"""Ends processes that this one has started when it is gone, however it has ended."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_END_S: Final = 60.0
_GUARD: Final = """
import os, signal, sys
last = ""
for last in sys.stdin:
    pass
for pid in last.split():
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class OrphanGuard:
    """Kills processes when this one is gone without having closed the guard.

    A process of its own reads lines with process ids. When its standard input closes, whoever has
    written is gone.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD],
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C on a terminal is not for it
            text=True,
        )

    def keep(self, pids: Sequence[int]) -> None:
        """Kill these, and none that were named before."""
        assert self._process.stdin is not None, "it was opened with a pipe"
        with contextlib.suppress(BrokenPipeError):  # somebody has killed the guard itself
            print(*pids, file=self._process.stdin, flush=True)

    def close(self) -> None:
        """Kill nothing; end the guard."""
        self.keep(())
        assert self._process.stdin is not None, "it was opened with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(_END_S)
