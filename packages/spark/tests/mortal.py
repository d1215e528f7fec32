"""A realm process that is killed at a chosen disk operation, and is started again each time.

``Mortal`` runs ``python -m packages.spark.tests.mortal DIRECTORY``. That process imports everything
and then forks one realm process after the other, each on the same directory. Such a process is
called a life of the realm. It costs milliseconds, so tests can afford hundreds. The listening
socket stays open: a client that connects between two lives waits for the next one."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final

from penstock import __version__
from penstock_core.vocabulary.ports import Buffer
from penstock_server.bootstrap import native_listener, rules
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import Settings
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import JournalLimits, open_embedded
from penstock_testing.process import search_path

SMALL: Final = SealingLimits(
    segment_bytes_max=64 << 10, journal_bytes_max=32 << 10, interval_s=0.02
)
"""Makes snapshots and segments frequent, so that lives start from them and not only from the
journal."""


ALIVE: Final = "0:0"
"""The doom (``OPERATIONS:SEED``) of a life that its disk does not end."""


class DoomedDisk(RealDisk):
    """Kills the process at one of its writes, syncs or renames: before it, in it or after it."""

    def __init__(self, operations: int, random: Random) -> None:
        """The process is killed at the operation with this number; 0: at none."""
        self._left = operations
        self._random = random

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        when = self._doom()
        if when == "in it":
            data = b"".join(chunks)
            super().pwrite(file, [data[: self._random.randrange(len(data) + 1)]], offset)
            _die()
        super().pwrite(file, chunks, offset)
        if when == "after":
            _die()

    def datasync(self, file: int) -> None:
        when = self._doom()
        super().datasync(file)
        if when:
            _die()

    def rename(self, old: str, new: str, *, replace: bool) -> None:
        when = self._doom()
        super().rename(old, new, replace=replace)
        if when:
            _die()

    def _doom(self) -> str:
        self._left -= 1
        if self._left != 0:
            return ""
        when = self._random.choice(("before", "in it", "after"))
        if when == "before":
            _die()
        return when


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _live(directory: str, door: socket.socket, disk: DoomedDisk) -> None:
    """Serve the realm until the process is killed."""
    clock = SystemClock()
    store = open_embedded(
        directory,
        disk=disk,
        offload=asyncio.to_thread,
        clock=clock,
        identity=lambda: secrets.randbits(64),
        holder="a life",
        limits=JournalLimits(file_bytes_max=64 << 10, allocation_bytes=4 << 10),
    )
    realm = await RunningRealm.open(
        store.journal,
        store.blobs,
        store.pages,
        rules(),
        clock,
        asyncio.to_thread,
        identity="mortal",
        sealing=SMALL,
    )
    listener = native_listener(realm, Settings(), __version__)
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(realm.run())
        tasks.create_task(listener.run(ready))
        await ready.wait()
        while True:
            connected, _ = await loop.sock_accept(door)
            await listener.adopt(connected)


def _fork(directory: str, door: socket.socket, doom: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    operations, seed = map(int, doom.split(":"))
    os.dup2(
        os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
    )  # its log must not mix with our lines
    try:
        asyncio.run(_live(directory, door, DoomedDisk(operations, Random(seed))))
    finally:
        traceback.print_exc()
        os._exit(1)  # the life was not killed: our parent counts it as failed


def _print_line(line: object) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _import_ahead() -> None:
    """Import what a realm imports only when it is opened or logs. Otherwise each life would, and
    that would be most of its cost."""
    importlib.import_module("structlog")
    rules()


def main(directory: str) -> None:
    """Fork lives of a realm, as commands on the standard input demand: ``doom OPERATIONS:SEED ...``
    kills the current life and lists where the next ones are killed, ``kill`` only kills the current
    one. The first line of the output is the port; the others tell how a life ended, or ``done``
    after a command."""
    door = socket.create_server(("127.0.0.1", 0), backlog=128)
    door.setblocking(False)  # noqa: FBT003 - positional-only
    _print_line(door.getsockname()[1])
    dooms: list[str] = []
    _import_ahead()
    gc.freeze()
    pid = _fork(directory, door, ALIVE)
    while True:
        life = os.pidfd_open(pid)
        ready, _, _ = select.select([life, sys.stdin], [], [])
        os.close(life)
        if sys.stdin in ready:
            commands = os.read(sys.stdin.fileno(), 1 << 16).decode()
            os.kill(pid, signal.SIGKILL)
            if not commands:
                return
            for line in commands.splitlines():
                dooms = line.split()[1:] if line.startswith("doom") else dooms
        _, status = os.waitpid(pid, 0)
        _print_line("killed" if os.WIFSIGNALED(status) else "failed")
        if sys.stdin in ready:
            _print_line("done")
        pid = _fork(directory, door, dooms.pop(0) if dooms else ALIVE)


class Mortal:
    """The realm, as tests see it."""

    def __init__(self, directory: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": search_path()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "packages.spark.tests.mortal", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.killed = self.failed = 0
        """Number of ended lives."""
        self.url = f"penstock://127.0.0.1:{int(self._line())}"

    def doom(self, dooms: Sequence[tuple[int, int]]) -> None:
        """Kill this life. ``dooms`` has, for each of the next lives, the number of the disk
        operation at which it is killed, and a seed."""
        self._command("doom " + " ".join(f"{operations}:{seed}" for operations, seed in dooms))

    def kill(self) -> None:
        """Kill this life now."""
        self._command("kill")

    def _command(self, line: str) -> None:
        assert self._process.stdin is not None, "the process was started with a pipe"
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        while (end := self._line()) != "done":
            self._count(end)

    def _line(self) -> str:
        assert self._process.stdout is not None, "the process was started with a pipe"
        return self._process.stdout.readline().strip()

    def _count(self, end: str) -> None:
        assert end in ("killed", "failed"), f"the process ended: {end!r}"
        self.killed += end == "killed"
        self.failed += end == "failed"

    def __enter__(self) -> Mortal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process, and count the ends of lives that it still reports."""
        ends, _ = self._process.communicate(timeout=60)
        for end in ends.split():
            self._count(end)
        assert error is not None or not self.failed, "a life of the realm ended by itself"


if __name__ == "__main__":
    main(sys.argv[1])
