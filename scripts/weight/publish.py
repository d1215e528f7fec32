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
MEASURED = 25


class Trip(NamedTuple):
    """What happened while a publish was awaited."""

    calls: tuple[tuple[tuple[str, str], ...], ...]
    """By thread: the file and the function of every call, in order."""

    @property
    def called(self) -> int:
        """Calls of Python functions of the package. A coroutine that goes on is called again, as
        the interpreter counts."""
        return sum(map(len, self.calls))

    @property
    def moves(self) -> int:
        """How often the next call on the same thread is in another file."""
        return sum(one[0] != other[0] for calls in self.calls for one, other in pairwise(calls))

    @property
    def files(self) -> int:
        return len({file for calls in self.calls for file, _ in calls})


class Recorder:
    """Writes down which functions of the packages are called, on every thread that starts later."""

    def __init__(self, folder: Path) -> None:
        self._prefix = f"{folder}/"
        self._calls: dict[int, list[tuple[str, str]]] = {}
        self._is_on = False

    def __enter__(self) -> Recorder:
        threading.setprofile(self._heard)
        sys.setprofile(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        self._calls = {}
        self._is_on = True

    def stop(self) -> Trip:
        """What was called since ``start``."""
        self._is_on = False
        return Trip(tuple(tuple(calls) for calls in self._calls.values()))

    def _heard(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        if code.co_filename.startswith(self._prefix):
            calls = self._calls.setdefault(threading.get_ident(), [])
            calls.append((code.co_filename.partition("/src/")[2], code.co_qualname))


def trip_of_a_publish(*, warming: int = WARMING, measured: int = MEASURED) -> Trip:
    """One publish by an asyncio client to an embedded realm that stores what it gets: the kind of
    trip that most of those measured were, for now and then a timer of the realm runs meanwhile."""
    with Recorder(PACKAGES) as recorder, tempfile.TemporaryDirectory() as folder:
        trips = asyncio.run(
            _published(Path(folder) / "realm", recorder, warming, measured=measured)
        )
    most = Counter((trip.called, trip.moves) for trip in trips).most_common(1)[0][0]
    return next(trip for trip in trips if (trip.called, trip.moves) == most)


async def _published(data: Path, recorder: Recorder, warming: int, measured: int) -> list[Trip]:
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
    """Show the calls in order, a line for each stay in a file."""
    for number, calls in enumerate(trip.calls, 1):
        show(f"thread {number}")
        stays: list[tuple[str, list[str]]] = []
        for file, function in calls:
            if not stays or stays[-1][0] != file:
                stays.append((file, []))
            stays[-1][1].append(function)
        for file, functions in stays:
            show(f"  {file}: {', '.join(functions)}")
