"""A realm process that is killed at any operation of its disk, and starts again by itself.

``Mortal`` runs ``python -m packages.spark.tests.mortal DIRECTORY``, which has everything imported
and forks one life of the realm after the other: a life costs milliseconds, so tests can afford
hundreds. The listening socket outlives them all; whoever connects in between waits for the next
life."""

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
"""Snapshots and segments come often: lives begin with them as well as with the journal."""


ALIVE: Final = "0:0"
"""A life that ends when it is told to."""


class DoomedDisk(RealDisk):
    """Ends the process by force at one of its writes or syncs: before it, in it or after it."""

    def __init__(self, operations: int, random: Random) -> None:
        """``operations`` until then; 0: it lives."""
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
    """One life of the realm: it ends by force."""
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
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # its log is no line of ours
    try:
        asyncio.run(_live(directory, door, DoomedDisk(operations, Random(seed))))
    finally:
        traceback.print_exc()
        os._exit(1)  # a life that ends otherwise is a failure: the next one is not doomed


def _say(line: object) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def _import_ahead() -> None:
    """What a realm imports when it is opened or logs: each life would do so by itself, which is
    most of what it costs."""
    importlib.import_module("structlog")
    rules()


def main(directory: str) -> None:
    """Lives of a realm, as the lines of the standard input say: ``doom OPERATIONS:SEED ...``
    ends one and says how the next ones end, ``kill`` only ends one. Each line of the output is an
    end."""
    door = socket.create_server(("127.0.0.1", 0), backlog=128)
    door.setblocking(False)  # noqa: FBT003 - positional-only
    _say(door.getsockname()[1])
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
        _say("killed" if os.WIFSIGNALED(status) else "failed")
        if sys.stdin in ready:
            _say("done")
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
        """End this life; the next ones end after so many operations of the disk, by a seed."""
        self._tell("doom " + " ".join(f"{operations}:{seed}" for operations, seed in dooms))

    def kill(self) -> None:
        """End this life now."""
        self._tell("kill")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        while (end := self._line()) != "done":
            self._count(end)

    def _line(self) -> str:
        assert self._process.stdout is not None, "it is a pipe"
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
        """End it, and count its ends."""
        ends, _ = self._process.communicate(timeout=60)
        for end in ends.split():
            self._count(end)
        assert error is not None or not self.failed, "a life of the realm ended by itself"


if __name__ == "__main__":
    main(sys.argv[1])
