"""What a demonstration has started ends with it, even if it was killed and could end nothing.

A process of its own (``python -m penstock.demo.orphans``) reads lines with process ids from its
standard input. When that closes, whoever has written is gone: it kills the processes of the last
line.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Final

END_TIMEOUT_S: Final = 60.0


class OrphanGuard:
    """Kills processes when this one is gone without having closed the guard."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
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
        self._process.wait(END_TIMEOUT_S)


def kill_at_end(lines: Iterable[str]) -> None:
    """Read to the end, then kill the processes of the last line that are still there."""
    last = ""
    for line in lines:
        last = line
    for pid in last.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    kill_at_end(sys.stdin)
