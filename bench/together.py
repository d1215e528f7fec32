"""Several servers under one process, whose processor time is theirs: ``python -m bench.together``.

It ends with all of them when it is told to, and by itself as soon as one of them does.
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


class Part(Struct, frozen=True):
    """One server."""

    command: Sequence[str]
    port: int
    """Where it listens."""
    more: dict[str, str] = {}
    """What it has in its environment besides."""


@contextmanager
def servers_together(parts: Sequence[Part], url: str, directory: Path) -> Iterator[Server]:
    """Start all of them, wait until each listens, and end them."""
    job = msgspec.json.encode(parts).decode()
    command = [sys.executable, "-m", "bench.together", job]
    with server_process(command, parts[0].port, url, directory=directory) as server:
        for part in parts[1:]:
            wait_for_port(server.pid, part.port, directory.parent / "server.log")
        yield server


def main() -> int:
    parts = msgspec.json.decode(sys.argv[1], type=list[Part])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    running: list[subprocess.Popen[bytes]] = []
    try:
        running += map(_started, parts)
        while not over.wait(LOOK_S):
            if any(process.poll() is not None for process in running):
                return 1
    finally:
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what they have stored goes, too
        for process in running:
            process.wait()
    return 0


def _started(part: Part) -> subprocess.Popen[bytes]:
    """In a group of its own, with whatever it starts in turn: some servers come by a script."""
    return subprocess.Popen(part.command, env=os.environ | part.more, start_new_session=True)


if __name__ == "__main__":
    sys.exit(main())
