"""Kill child processes when this process ends in any way."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

_END_S: Final = 60.0
"""Seconds that the guard process gets to end."""
# Each line replaces the processes of the previous line; after an empty line none is killed.
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
    """Kills processes when this one ends without having closed the guard.

    The guard is a separate process that reads lines with process ids. Its standard input closes
    when this process ends.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C on the terminal must not end it
            text=True,
        )

    def set_pids(self, pids: Sequence[int]) -> None:
        """Set the processes to kill, in place of the earlier ones."""
        assert self._process.stdin is not None, "the guard is started with a pipe"
        with contextlib.suppress(BrokenPipeError):  # the guard itself was killed
            print(*pids, file=self._process.stdin, flush=True)

    def close(self) -> None:
        """End the guard without killing any process."""
        self.set_pids(())
        assert self._process.stdin is not None, "the guard is started with a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(_END_S)
