"""The calls of one publish, counted while it runs: client and realm in one process, warmed up."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import penstock

PACKAGES = Path(__file__).parents[2] / "packages"
WARMING = 200
"""Number of publishes before the measurement."""
MEASURED = 25
"""Number of measured publishes."""


class Trip(NamedTuple):
    """The function calls during one awaited publish."""

    calls: tuple[tuple[tuple[str, str], ...], ...]
    """The file and the function of every call of each thread, in order."""

    @property
    def called(self) -> int:
        """Number of calls of Python functions of the packages. Each resumption of a coroutine
        counts as a call, as in the interpreter."""
        return sum(map(len, self.calls))

    @property
    def moves(self) -> int:
        """Number of calls whose predecessor on the same thread is in another file."""
        return sum(
            one[0] != next_call[0] for calls in self.calls for one, next_call in pairwise(calls)
        )

    @property
    def files(self) -> int:
        """Number of files with a called function."""
        return len({file for calls in self.calls for file, _ in calls})


class Recorder:
    """Records the calls of functions of the packages, on this thread and on threads that start
    within the block."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._calls: dict[int, list[tuple[str, str]]] = {}
        self._is_on = False

    def __enter__(self) -> Recorder:
        threading.setprofile(self._record_call)
        sys.setprofile(self._record_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        """Start a new recording."""
        self._calls = {}
        self._is_on = True

    def stop(self) -> Trip:
        """Return the calls since :meth:`start`."""
        self._is_on = False
        return Trip(tuple(tuple(calls) for calls in self._calls.values()))

    def _record_call(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; the interpreter calls this for each event of its profiler."""
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._prefix):
            calls = self._calls.setdefault(threading.get_ident(), [])
            calls.append((code.co_filename.partition("/src/")[2], code.co_qualname))


def trip_of_a_publish(*, warming: int = WARMING, measured: int = MEASURED) -> Trip:
    """Return the calls of one publish by an asyncio client to an embedded realm that stores events.

    Several publishes are measured, because a timer of the realm sometimes runs during one. The
    result is a publish with the most frequent numbers of calls and moves.
    """
    with Recorder(PACKAGES) as recorder, tempfile.TemporaryDirectory() as folder:
        trips = asyncio.run(
            _published(Path(folder) / "realm", recorder, warming, measured=measured)
        )
    most = Counter((trip.called, trip.moves) for trip in trips).most_common(1)[0][0]
    return next(trip for trip in trips if (trip.called, trip.moves) == most)


async def _published(data: Path, recorder: Recorder, warming: int, measured: int) -> list[Trip]:
    """Return the calls of each of ``measured`` publishes, after ``warming`` others."""
    async with penstock.aio.Realm(data) as realm, realm.connect() as session:
        channel = await session.channels.create("measured")
        for _ in range(warming):
            await channel.publish(b"x", properties={"price": 9.5})
        trips = []
        for _ in range(measured):
            recorder.start()
            await channel.publish(b"x", properties={"price": 9.5})
            trips.append(recorder.stop())
    return trips


def walk(trip: Trip, show: Callable[[str], object] = print) -> None:
    """Show the calls in order, with one line for adjacent calls in the same file."""
    for number, calls in enumerate(trip.calls, 1):
        show(f"thread {number}")
        stays: list[tuple[str, list[str]]] = []
        for file, function in calls:
            if not stays or stays[-1][0] != file:
                stays.append((file, []))
            stays[-1][1].append(function)
        for file, functions in stays:
            show(f"  {file}: {', '.join(functions)}")
