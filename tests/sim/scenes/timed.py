"""What depends on the time, while the clock jumps under the realm and between its lives: a time to
live and times of delivery (SEM T1, X4)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_testing.loop import pass_time
from tests.sim.clients import Found, Publisher, stored
from tests.sim.promises import Ledger

if TYPE_CHECKING:
    from tests.sim.world import World

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TTL_MS = 2_000
_COARSE_US = _TTL_MS
"""Publishes so close together, a thousandth of their time to live, leave together."""
_LATEST_MS = 2_500
_START_US = 2_000_000
"""A realm has begun to serve within this time."""


class Times(Struct, frozen=True):
    published_us: int
    latest_us: int
    """No event before it was published later than this."""
    counts_from_us: int
    """Its TTL runs from here on, or from its publish: less, where the realm was started again under
    a clock that was behind (SEM T1)."""


class Timed:
    """The realm's time is that of its clock, which stands still where the machine's is set back."""

    def __init__(self, world: World) -> None:
        type = world.random.choice(("persistent", "mixed", "paged"))
        self._world = world
        self._short = Definition(type=type, ttl=_TTL_MS)
        self._long = Definition(type=type)
        self._briefly, self._waiting = Ledger("briefly"), Ledger("punctual")
        """Ids of the second one are those of the store where events wait."""
        self._publishers = [
            Publisher(world, self._briefly, "p", compose=_plain, publishes=12),
            Publisher(world, self._waiting, "q", compose=self._scheduled, publishes=8),
        ]
        self._due_us: dict[bytes, int] = {}
        self._seen: dict[int, Times] = {}
        """By id, of every event that was ever seen in time."""
        self._first_id = 0
        """First id published in the realm's present life."""

    async def prepare(self) -> None:
        await self._world.create("briefly", self._short)
        await self._world.create("punctual", self._long)
        began_us = self._world.clock.now_us() - _START_US
        self._count_from(began_us)
        await self._look()
        self._count_from(began_us)  # also what was not seen in earlier lives
        info = await self._world.realm.describe_channel("briefly")
        self._first_id = info.last_event_id + 1

    def _count_from(self, began_us: int) -> None:
        for event_id, times in self._seen.items():
            counts_from_us = min(times.counts_from_us, began_us)
            self._seen[event_id] = replace(times, counts_from_us=counts_from_us)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        group.create_task(self._watch())

    async def _watch(self) -> None:
        """Until all is done, or for ever."""
        while True:
            await pass_time(self._world.random.expovariate(4))
            await self._look()
            info = await self._world.realm.describe_channel("punctual")
            if all(publisher.is_done for publisher in self._publishers) and not info.scheduled:
                return

    async def _look(self) -> set[bytes]:
        before_us = self._world.clock.now_us()
        brief, punctual = [await stored(self._world, name) for name in ("briefly", "punctual")]
        if self._world.is_dark:
            return set()
        self._check_lives(before_us, brief)
        return self._check_due(punctual)

    def _check_lives(self, before_us: int, found: list[Found]) -> None:
        """None too long; and none too short, as far as the time has ever come (SEM T1).

        What was published under a clock that was ahead counts as published when the realm starts
        again under the right one.
        """
        ttl_us, latest_us = _TTL_MS * 1_000, self._world.latest_us
        for row in found:
            self._briefly.is_content(row.event_id, row.data)
            times = Times(row.published_us, latest_us, row.published_us)
            known = self._seen.setdefault(row.event_id, times)
            assert known.published_us == row.published_us, f"{row.event_id} has another time now"
            over_us = before_us - known.latest_us - ttl_us
            assert over_us < 0, f"{row.event_id} has expired {over_us / 1e6} s ago, and is seen"
        mine = [row.published_us for row in found if row.event_id >= self._first_id]
        assert mine == sorted(mine), f"the realm's time went back: {mine}"
        there = {row.event_id for row in found}
        since_us = latest_us - ttl_us + _COARSE_US
        early = [i for i, times in self._seen.items() if times.counts_from_us > since_us]
        assert there.issuperset(early), f"{sorted(set(early) - there)} have left before their time"

    def _check_due(self, found: list[Found]) -> set[bytes]:
        """Published once each, and none before its time (SEM X4)."""
        datas = {row.data for row in found}
        assert len(datas) == len(found), "something was published twice"
        for row in found:
            assert self._due_us[row.data] <= row.published_us, f"{row.data!r} came too early"
        return datas

    async def check(self) -> None:
        there = await self._look()
        late = [data for i in self._waiting.ids if (data := self._waiting.content[i]) not in there]
        assert not late, f"{late} were never published"

    def _scheduled(self, draw: Random, label: str) -> list[Event]:
        """A retry is for the same time."""
        datas = [f"{label}/{i}".encode() for i in range(draw.randint(1, 4))]
        for data in datas:
            after_us = draw.randint(1, _LATEST_MS) * 1_000 + draw.randrange(1_000)
            self._due_us.setdefault(data, self._world.clock.now_us() + after_us)
        return [
            Event(data, deliver_at=_EPOCH + timedelta(microseconds=self._due_us[data]))
            for data in datas
        ]


def _plain(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
