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
        """Whether the archive gets the filtered ones by way of ``some`` as well."""
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
        found = await self._check_copies()
        self._ledger.holds([(row.event_id, row.data) for row in found])

    async def _check_copies(self) -> list[Found]:
        """Source and copies belong together, however the last life ended."""
        source = await stored(self._world, "source")
        some = await stored(self._world, "some")
        archive = await stored(self._world, "archive")
        wanted = [row for row in source if _number(row.data) < _COPIED_BELOW]
        _same("some", Counter(map(_way, some)), Counter(_copy("source", row) for row in wanted))
        copies = Counter(_copy("source", row) for row in source)
        if self._is_chained:
            copies.update(_copy("some", row, before=("source",)) for row in some)
        _same("archive", Counter(map(_way, archive)), copies)
        return source


Way = tuple[str, int, tuple[str, ...], bytes]
"""Where a copy was before: the store, its id there, the whole path; and its content."""


def _way(row: Found) -> Way:
    assert row.origin is not None, "a copy says where it comes from"
    assert row.origin["cause"] == "join"
    origin = row.origin
    return origin["store"], origin["event_id"], tuple(origin["path"]), row.data


def _copy(store: str, row: Found, before: tuple[str, ...] = ()) -> Way:
    return store, row.event_id, (*before, store), row.data


def _same(store: str, found: Counter[Way], wanted: Counter[Way]) -> None:
    missing, strange = sorted(wanted - found), sorted(found - wanted)
    assert not missing, f"{store} has no copy of {missing}"
    assert not strange, f"{store} has {strange}, copies of nothing or once too often"


def _number(data: bytes) -> int:
    return int(data.rpartition(b"=")[2])


def _events(draw: Random, label: str) -> list[Event]:
    numbers = [draw.randrange(4) for _ in range(draw.randint(1, 4))]
    return [
        Event(f"{label}/{i} n={n}".encode(), properties={"n": n}) for i, n in enumerate(numbers)
    ]
