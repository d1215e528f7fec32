"""Runs several servers as children of one process, ``python -m bench.together``, so that the
processor time of all of them is measured together.

The process ends all servers when it is requested to end, or as soon as one of them ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from bench.processes import server_process, wait_for_port
from bench.shape import Server

LOOK_S: Final = 0.2
"""Seconds between two checks of the servers."""


class Part(Struct, frozen=True):
    """One server."""

    command: Sequence[str]
    port: int
    """The port that it listens on."""
    more: dict[str, str] = {}
    """Variables that are added to its environment."""


@contextmanager
def servers_together(parts: Sequence[Part], url: str, directory: Path) -> Iterator[Server]:
    """Start all servers, wait until each listens, and end them after the block."""
    job = msgspec.json.encode(parts).decode()
    command = [sys.executable, "-m", "bench.together", job]
    with server_process(command, parts[0].port, url, directory=directory) as server:
        for part in parts[1:]:
            wait_for_port(server.pid, part.port, directory.parent / "server.log")
        yield server


def main() -> int:
    """Run the servers. Return the exit status, which is 1 if a server ended by itself."""
    parts = msgspec.json.decode(sys.argv[1], type=list[Part])
    stop_requested = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop_requested.set())
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += map(_started, parts)
        while not stop_requested.wait(LOOK_S):
            if any(process.poll() is not None for process in running):
                return 1
    finally:
        for process in running:
            # The servers need no time to end in order, because their data are removed, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in running:
            process.wait()
    return 0


def _started(part: Part) -> subprocess.Popen[bytes]:
    """Start a server in a new process group, which includes the processes that it starts: some
    servers are started by a script."""
    return subprocess.Popen(part.command, env=os.environ | part.more, start_new_session=True)


if __name__ == "__main__":
    sys.exit(main())
