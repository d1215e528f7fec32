"""Joins, filtered and into an archive: each event has exactly its copies (SEM L1, L3)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameAlreadyBound
from tests.sim.clients import Found, Publisher, stored
from tests.sim.promises import Ledger
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

_COPIED_BELOW = 2


class Joined:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        rows = random.choice((0, 10))
        storage = spindles("persistent", rows)
        self._definitions = {
            "source": Definition(type="persistent", storage=storage),
            "some": Definition(type=random.choice(("persistent", "mixed")), storage=storage),
        }
        archive = random.choice(("persistent", "paged"))
        self._definitions["archive"] = Definition(
            type=archive, kind="queue", storage=spindles(archive, rows)
        )
        self._joins = [("source", "some", f"n < {_COPIED_BELOW}"), ("source", "archive", "")]
        self._is_chained = random.random() < 0.5
        """Whether the archive also receives the filtered copies from ``some``."""
        if self._is_chained:
            self._joins.append(("some", "archive", ""))
        self._ledger = Ledger("source")
        self._publishers = [
            Publisher(world, self._ledger, name, compose=_events, publishes=8)
            for name in ("p", "q")
        ]

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        for source, destination, selector in self._joins:
            with contextlib.suppress(NameAlreadyBound):
                await self._world.realm.joins.create(
                    source, destination, selector, destination == "archive"
                )
        await self._check_copies()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())

    async def check(self) -> None:
        rows = await self._check_copies()
        self._ledger.check_complete([(row.event_id, row.data) for row in rows])

    async def _check_copies(self) -> list[Found]:
        """Check that source and copies match, however the last life ended."""
        source = await stored(self._world, "source")
        some = await stored(self._world, "some")
        archive = await stored(self._world, "archive")
        expected = [row for row in source if _number(row.data) < _COPIED_BELOW]
        _check_equal(
            "some",
            Counter(map(_origin_of, some)),
            Counter(_expected_origin("source", row) for row in expected),
        )
        copies = Counter(_expected_origin("source", row) for row in source)
        if self._is_chained:
            copies.update(_expected_origin("some", row, path=("source",)) for row in some)
        _check_equal("archive", Counter(map(_origin_of, archive)), copies)
        return source


Way = tuple[str, int, tuple[str, ...], bytes]
"""Origin of a copy: the store, the id there and the whole path; and the copy's data."""


def _origin_of(row: Found) -> Way:
    assert row.origin is not None, "a copy says where it comes from"
    assert row.origin["cause"] == "join"
    origin = row.origin
    return origin["store"], origin["event_id"], tuple(origin["path"]), row.data


def _expected_origin(store: str, row: Found, path: tuple[str, ...] = ()) -> Way:
    return store, row.event_id, (*path, store), row.data


def _check_equal(store: str, actual: Counter[Way], expected: Counter[Way]) -> None:
    missing, unexpected = sorted(expected - actual), sorted(actual - expected)
    assert not missing, f"{store} has no copy of {missing}"
    assert not unexpected, f"{store} has {unexpected}, copies of nothing or once too often"


def _number(data: bytes) -> int:
    return int(data.rpartition(b"=")[2])


def _events(draw: Random, label: str) -> list[Event]:
    numbers = [draw.randrange(4) for _ in range(draw.randint(1, 4))]
    return [
        Event(f"{label}/{i} n={n}".encode(), properties={"n": n}) for i, n in enumerate(numbers)
    ]
