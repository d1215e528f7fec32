"""Load that makes a takeover long: a large channel with many durables, and many sessions that
reconnect at once.

``python -m tests.faults.cluster.crowd URL MQTT FOLDER sessions.COUNT`` holds this many sessions
until SIGTERM, each with a subscription at the end of the channel, and writes to a file in FOLDER
when a session is back after an interruption. The arguments are those of
:mod:`tests.faults.clients`; MQTT is not used.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

import penstock
from penstock import aio
from penstock.client.sync.sync import Session
from tests.faults.cluster.pauses import Played
from tests.faults.phases import RECONNECT_S

DIARY: Final = "sessions.back"
PROGRAM: Final = ("tests.faults.cluster.crowd",)
LARGE: Final = "large"
DURABLES: Final = 200
EVENT: Final = b"x" * 100
ROWS: Final = 10_000
"""Number of events in one publish."""
OPENING: Final = 20
"""Number of sessions that are opened at once."""
_POLL_S: Final = 0.05


def fill(session: Session, events: int) -> None:
    """Create the large channel with this many events, all of them outstanding at each durable."""
    channel = session.channels.create(LARGE, type="persistent")
    for number in range(DURABLES):
        channel.durables.create(f"durable-{number}", type="shared")
    for first in range(0, events, ROWS):
        count = min(ROWS, events - first)
        data = pa.array([EVENT] * count, pa.binary())
        channel.publish_table(pa.table({"data": data, "number": range(first, first + count)}))


def wait_for_connections(url: str, connections: int, patience_s: float) -> None:
    """Wait until the realm has at least this many connections in addition to this one. Raises
    ``AssertionError``."""
    pause = threading.Event()
    with penstock.connect(url, reconnect_timeout=patience_s) as session:
        for _ in range(int(patience_s / _POLL_S)):
            if session.info().connections > connections:
                return
            pause.wait(_POLL_S)
    raise AssertionError(f"after {patience_s:g} s some of {connections} connections are not back")


def back_after_s(diary: Path, played: Sequence[Played]) -> list[float]:
    """Return for each fault the seconds from its begin until the last interrupted session was back;
    0 if no session was interrupted."""
    times = sorted(int(line) for line in diary.read_text().splitlines())
    return [
        max(
            (
                time_ns - fault.began_ns
                for time_ns in times
                if fault.began_ns <= time_ns <= fault.ended_ns
            ),
            default=0,
        )
        / 1e9
        for fault in played
    ]


async def _hold(url: str, diary: Path, count: int) -> None:
    file = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def record_return(error: penstock.PenstockError | None) -> None:
        if error is None:
            os.write(file, f"{time.monotonic_ns()}\n".encode())

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    opening = asyncio.Semaphore(OPENING)
    async with asyncio.TaskGroup() as sessions:
        for _ in range(count):
            sessions.create_task(_visit(url, record_return, opening, ended=ended))


async def _visit(
    url: str,
    on_interruption: Callable[[penstock.PenstockError | None], None],
    opening: asyncio.Semaphore,
    ended: asyncio.Event,
) -> None:
    async with opening:
        session = await aio.connect(url, reconnect_timeout=RECONNECT_S)
    async with session:
        session.on_interruption(on_interruption)
        channel = await session.channels.get(LARGE)
        async with channel.subscribe(start="latest"):
            await ended.wait()


if __name__ == "__main__":
    diary_of_all = Path(sys.argv[3]) / DIARY
    asyncio.run(_hold(sys.argv[1], diary_of_all, int(sys.argv[4].rpartition(".")[2])))
