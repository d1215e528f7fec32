"""Rules that depend on the time, while the clock jumps during and between the lives of the realm:
times to live and times of delivery (SEM T1, X4)."""

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
"""Events published this close together, a thousandth of their time to live, expire together."""
_LATEST_MS = 2_500
_START_US = 2_000_000
"""A realm serves within this time after its start."""


class Times(Struct, frozen=True):
    published_us: int
    latest_us: int
    """No earlier event was published later than this."""
    counts_from_us: int
    """The TTL counts from this time or from the publish, whichever is earlier; the time is earlier
    if the realm was restarted under a clock that was set back (SEM T1)."""


class Timed:
    """Compares events with the realm's time, which stands still while the machine's clock is
    behind."""

    def __init__(self, world: World) -> None:
        type = world.random.choice(("persistent", "mixed", "paged"))
        self._world = world
        self._short = Definition(type=type, ttl=_TTL_MS)
        self._long = Definition(type=type)
        self._briefly, self._waiting = Ledger("briefly"), Ledger("punctual")
        """Ids of the second one are those of the schedule."""
        self._publishers = [
            Publisher(world, self._briefly, "p", compose=_plain, publishes=12),
            Publisher(world, self._waiting, "q", compose=self._scheduled, publishes=8),
        ]
        self._due_us: dict[bytes, int] = {}
        self._times: dict[int, Times] = {}
        """Times by id, of every event seen before its end."""
        self._first_id = 0
        """The first id published in the current life of the realm."""

    async def prepare(self) -> None:
        await self._world.create("briefly", self._short)
        await self._world.create("punctual", self._long)
        began_us = self._world.clock.now_us() - _START_US
        self._count_from(began_us)
        await self._check_stored()
        self._count_from(began_us)  # again, for events that no earlier life has seen
        info = await self._world.realm.describe_channel("briefly")
        self._first_id = info.last_event_id + 1

    def _count_from(self, began_us: int) -> None:
        for event_id, times in self._times.items():
            counts_from_us = min(times.counts_from_us, began_us)
            self._times[event_id] = replace(times, counts_from_us=counts_from_us)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        group.create_task(self._watch())

    async def _watch(self) -> None:
        """Check the stored events now and then, until all is done."""
        while True:
            await pass_time(self._world.random.expovariate(4))
            await self._check_stored()
            info = await self._world.realm.describe_channel("punctual")
            if all(publisher.is_done for publisher in self._publishers) and not info.scheduled:
                return

    async def _check_stored(self) -> set[bytes]:
        before_us = self._world.clock.now_us()
        brief, punctual = [await stored(self._world, name) for name in ("briefly", "punctual")]
        if self._world.is_dark:
            return set()
        self._check_lives(before_us, brief)
        return self._check_due(punctual)

    def _check_lives(self, before_us: int, rows: list[Found]) -> None:
        """Check that no event is seen too long or expires too early, by the latest time ever
        reached (SEM T1).

        An event published under a clock that was ahead counts as published when the realm starts
        again under the right one.
        """
        ttl_us, latest_us = _TTL_MS * 1_000, self._world.latest_us
        for row in rows:
            self._briefly.check_content(row.event_id, row.data)
            times = Times(row.published_us, latest_us, row.published_us)
            times_before = self._times.setdefault(row.event_id, times)
            assert times_before.published_us == row.published_us, (
                f"{row.event_id} has another time now"
            )
            overdue_us = before_us - times_before.latest_us - ttl_us
            assert overdue_us < 0, (
                f"{row.event_id} has expired {overdue_us / 1e6} s ago, and is seen"
            )
        published_in_life = [row.published_us for row in rows if row.event_id >= self._first_id]
        assert published_in_life == sorted(published_in_life), (
            f"the realm's time went back: {published_in_life}"
        )
        stored_ids = {row.event_id for row in rows}
        since_us = latest_us - ttl_us + _COARSE_US
        early = [i for i, times in self._times.items() if times.counts_from_us > since_us]
        assert stored_ids.issuperset(early), (
            f"{sorted(set(early) - stored_ids)} have left before their time"
        )

    def _check_due(self, rows: list[Found]) -> set[bytes]:
        """Check that each event was published once, and none before its time (SEM X4)."""
        datas = {row.data for row in rows}
        assert len(datas) == len(rows), "something was published twice"
        for row in rows:
            assert self._due_us[row.data] <= row.published_us, f"{row.data!r} came too early"
        return datas

    async def check(self) -> None:
        published = await self._check_stored()
        late = [
            data for i in self._waiting.ids if (data := self._waiting.content[i]) not in published
        ]
        assert not late, f"{late} were never published"

    def _scheduled(self, draw: Random, label: str) -> list[Event]:
        """Compose events; a retry has the same times of delivery."""
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
