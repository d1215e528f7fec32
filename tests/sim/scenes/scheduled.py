"""Events with a time of delivery: published once, never too early, and not at all if cancelled (SEM
X4)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Arrived, Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 2_500


class Scheduled:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        type = random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type,
            retain_consumed=True,
            storage=spindles(type, random.choice((0, 10))),
        )
        self._waiting = Ledger("later")
        """Its ids are those of the schedule."""
        self._ledger = Ledger("later")
        self._ledger.offered = self._waiting.offered
        self._receipts = Receipts("late", self._ledger)
        self._publishers = [
            Publisher(world, self._waiting, name, compose=self._events, publishes=6)
            for name in ("p", "q")
        ]
        self._due_us: dict[bytes, int] = {}
        self._cancelling: set[bytes] = set()
        self._cancelled: set[bytes] = set()
        """Events whose cancellation was confirmed."""

    async def prepare(self) -> None:
        await self._world.create("later", self._definition)
        await self._world.create_durable("later", "late")
        await self._check_times()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        worker = Worker(
            self._world,
            self._receipts,
            self._is_done,
            quiet=quiet,
            durable="late",
            window=self._world.random.randint(1, 6),
        )
        worker.inspect = self._check_delivered
        group.create_task(worker.run())
        if not quiet:
            group.create_task(self._canceller())

    def _check_delivered(self, arrived: Arrived) -> None:
        for data in arrived.datas:
            assert data not in self._cancelled, f"{data!r} was cancelled, and delivered"
            assert self._due_us[data] <= self._world.now_us, f"{data!r} came before its time"

    async def _is_done(self) -> bool:
        if not all(publisher.is_done for publisher in self._publishers):
            return False
        info = await self._world.realm.describe_channel("later")
        return not info.scheduled and await self._world.is_consumed("later", "late")

    async def _canceller(self) -> None:
        world = self._world
        while True:
            await pass_time(world.random.expovariate(2))
            event_ids = self._waiting.ids
            if not event_ids:
                continue
            event_id = world.random.choice(event_ids)
            data = self._waiting.content[event_id]
            self._cancelling.add(data)
            try:
                schedule = await world.realm.schedule_of(ChannelId(world.numbers["later"]))
                assert schedule is not None, "events wait"
                purge = world.realm.subscriptions.purge
                count = await purge(schedule.channel, event_id, event_id, selector="")
            except PenstockError:
                return
            if count:
                self._cancelled.add(data)
            world.note(f"cancelled {count} of {event_id}")

    async def check(self) -> None:
        published = await self._check_times()
        for event_id in self._waiting.ids:
            data = self._waiting.content[event_id]
            is_accounted_for = data in published or data in self._cancelling
            assert is_accounted_for, f"{data!r} was never published"

    async def _check_times(self) -> set[bytes]:
        rows = await stored(self._world, "later")
        published = {row.data for row in rows}
        assert len(published) == len(rows), "something was published twice"
        assert not published & self._cancelled, "something was cancelled, and is there"
        for row in rows:
            self._ledger.check_content(row.event_id, row.data)
            assert row.origin is None, "it comes from no other channel"
            assert self._due_us[row.data] <= row.published_us, f"{row.data!r} came too early"
        return published

    def _events(self, draw: Random, label: str) -> list[Event]:
        """Compose events; a retry has the same times of delivery."""
        datas = [f"{label}/{i}".encode() for i in range(draw.randint(1, 4))]
        for data in datas:
            after_us = draw.randint(1, _LATEST_MS) * 1_000 + draw.randrange(1_000)
            self._due_us.setdefault(data, self._world.now_us + after_us)
        return [
            Event(data, deliver_at=_EPOCH + timedelta(microseconds=self._due_us[data]))
            for data in datas
        ]
