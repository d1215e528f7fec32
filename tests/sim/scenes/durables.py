"""Channels with durables of several kinds, in spindles and in single files (SEM D, S, E6)."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest, FromId
from penstock_testing.loop import pass_time
from tests.sim.clients import Outlet, Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts

if TYPE_CHECKING:
    from tests.sim.world import World

DURABLES = {
    ("keep", "team"): "shared",
    ("work", "pair"): "shared",
    ("work", "one"): "exclusive",
    ("file", "crew"): "shared",
}


class Durables:
    def __init__(self, world: World) -> None:
        self._world = world
        spindles = world.random.choice((0, 25))
        self._definitions = {
            "keep": Definition(
                type="persistent",
                retain_consumed=True,
                storage=Storage(events_per_spindle=spindles),
            ),
            "work": Definition(type="mixed", storage=Storage(events_per_spindle=7)),
            "file": Definition(type="mixed", storage=Storage(events_per_spindle=0)),
        }
        self._ledgers = {name: Ledger(name) for name in self._definitions}
        self._publishers = [
            Publisher(world, ledger, name, compose=_events, interval_s=0.05)
            for ledger in self._ledgers.values()
            for name in ("p", "q")
        ]
        self._receipts = {
            (store, name): Receipts(name, self._ledgers[store], counted=kind == "shared")
            for (store, name), kind in DURABLES.items()
        }
        self._read: list[int] = []
        """Ids that the reader of ``keep`` has received."""

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        for (store, name), kind in DURABLES.items():
            await self._world.create_durable(store, name, kind)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        random = self._world.random
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for (store, name), receipts in self._receipts.items():
            for _ in range(2 if receipts.counted else 1):
                worker = Worker(
                    self._world,
                    receipts,
                    partial(self._is_done, store, name),
                    quiet=quiet,
                    durable=name,
                    in_order=DURABLES[store, name] == "exclusive",
                    window=random.randint(1, 6) if receipts.counted else None,
                )
                group.create_task(worker.run())
        group.create_task(self._reader())
        if not quiet:
            group.create_task(self._administrator())

    def _is_published(self, store: str) -> bool:
        return all(
            publisher.is_done for publisher in self._publishers if publisher.ledger.store == store
        )

    async def _is_done(self, store: str, name: str) -> bool:
        return self._is_published(store) and await self._world.is_consumed(store, name)

    async def _reader(self) -> None:
        """Read ``keep`` across power cuts, without missing or repeating an event (SEM E6)."""
        read, ledger = self._read, self._ledgers["keep"]
        outlet = Outlet(f"reader-{self._world.sessions}")
        subscriptions = self._world.realm.subscriptions
        start = FromId(read[-1] + 1) if read else FromEarliest()
        opened = await subscriptions.subscribe(
            ChannelId(self._world.numbers["keep"]), start, outlet, credit=20
        )
        while not self._is_published("keep") or len(read) < len(ledger.ids):
            try:
                arrived = await outlet.take()
            except TimeoutError:
                continue
            for event_id, data in zip(arrived.ids, arrived.datas, strict=True):
                assert event_id == len(read), f"{event_id} came after {len(read)} events"
                ledger.check_content(event_id, data)
                read.append(event_id)
            subscriptions.credit(opened.number, len(arrived.ids))

    async def _administrator(self) -> None:
        """Request maintenance at random times, needed or not."""
        world = self._world
        while True:
            await pass_time(world.random.expovariate(1))
            try:
                done = await world.realm.maintain(world.random.choice(sorted(self._definitions)))
            except PenstockError:
                return
            world.note(f"maintained {done.reason}")

    async def check(self) -> None:
        """Check that exactly the promised events are stored, once and in order, and that consumed
        ones have left."""
        rows = await stored(self._world, "keep")
        self._ledgers["keep"].check_complete([(row.event_id, row.data) for row in rows])
        for (store, name), receipts in self._receipts.items():
            missed = set(self._ledgers[store].ids) - receipts.seen
            assert not missed, f"{name} of {store} was never given {sorted(missed)}"
            lost = receipts.given_back
            assert not lost, f"{sorted(lost)} of {store} were given back, and never came again"
        for store in ("work", "file"):
            info = await self._world.realm.describe_channel(store)
            assert info.events == 0, "all durables have acknowledged everything (SEM D6)"
            assert info.counters.published == len(self._ledgers[store].ids)


def _events(draw: Random, label: str) -> list[Event]:
    datas = [f"{label}/{i}".encode() * draw.randint(1, 4) for i in range(draw.randint(1, 6))]
    if draw.random() < 0.5:
        return [Event(data) for data in datas]
    return [Event(data, properties={"price": float(len(data))}) for data in datas]
