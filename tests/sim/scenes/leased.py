"""Consumers over HTTP (SEM H): they fetch under leases, hang up, die with what they hold, are too
late, lose answers and ask again, while the clock jumps and the realm dies."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock_core.api.consuming import (
    ExtendLease,
    Fetched,
    FetchEvents,
    LeasedEvents,
    Settled,
    SettleLease,
)
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse, LeaseEnded
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher
from tests.sim.promises import Ledger, Receipts
from tests.sim.scenes.leased_over import OverPattern
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS = 500
LATE_US = 1_020 * LEASE_MS
"""From then on what it holds has gone back, whatever is rounded."""
WHERE = {
    ("tickets", "team"): "shared",
    ("tickets", "line"): "serial",
    ("tickets", "sole"): "exclusive",
    ("orders", ""): "queue",
}


class Held(NamedTuple):
    """A lease as its client knows it."""

    lease: str
    ids: list[int]
    got_us: int
    asked_us: int
    """The realm's time when it asked."""


class Consumer:
    """Knows nothing but what it was answered."""

    def __init__(self, scene: Leased, receipts: Receipts, durable: str, *, quiet: bool) -> None:
        self._world = scene.world
        self._scene = scene
        self._receipts = receipts
        self._durable = durable
        self._quiet = quiet

    async def run(self) -> None:
        """Until all is done, or for ever."""
        while True:
            fetched = await self._fetch()
            if fetched is None:
                if await self._scene.is_done(self._receipts.ledger.store, self._durable):
                    return
                continue
            await self._work(fetched)

    async def _fetch(self) -> Held | None:
        """A batch; None where nothing came, or the client has hung up."""
        world, random = self._world, self._world.random
        number = ChannelId(world.numbers[self._receipts.ledger.store])
        asked = FetchEvents(
            number, self._durable, random.randint(1, 5), lease_ms=LEASE_MS, wait_ms=300
        )
        asked_us = world.clock.now_us()
        hangs_up = not self._quiet and random.random() < 0.2
        try:
            async with asyncio.timeout(random.uniform(0, 0.3) if hangs_up else None):
                told: Fetched = await world.realm.leases.fetch(
                    asked, "", "sim", selector=None, check=lambda: None
                )
        except TimeoutError:
            return None  # what had been taken goes back untried
        except DurableInUse:
            await pass_time(0.05)
            return None
        await self._heard()
        if not told.lease:
            return None
        events = [event for batch in told.batches for event in batch]
        ids = [event.event_id for event in events if event.event_id is not None]
        counts = {i: e.redelivery_count for i, e in zip(ids, events, strict=True)}
        assert len(ids) == told.count == len(set(ids)), f"{ids} for {told.count} events"
        self._receipts.delivered(ids, [event.data for event in events], counts)
        world.note(f"leased {self._receipts.name} {ids}")
        return Held(told.lease, ids, world.clock.now_us(), asked_us=asked_us)

    async def _heard(self) -> None:
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: nobody hears what it says without power

    async def _work(self, held: Held) -> None:
        random = self._world.random
        self._scene.leases.append((self._durable, self._receipts, held))
        if self._quiet:
            await self._acknowledge(held, held.ids, until_us=0)
            return
        until_us, way = 0, random.random()
        if way < 0.1:
            self._receipts.going_back(held.ids)
            return  # it has died, or never got its answer
        if way < 0.2:
            until_us = await self._extend(held)
        if way < 0.5:
            await pass_time(random.uniform(0, 2.5 * LEASE_MS / 1_000))
        back = random.sample(held.ids, random.randint(0, len(held.ids))) if way > 0.8 else []
        if back and not await self._roll_back(held, sorted(back)):
            return
        if kept := [event_id for event_id in held.ids if event_id not in back]:
            await self._acknowledge(held, kept, until_us=until_us)

    async def _extend(self, held: Held) -> int:
        """Until when it may have its events now; 0: it was too late to ask."""
        realm, number = self._world.realm, self._number
        asked = ExtendLease(
            number, self._durable, held.lease, chosen=LeasedEvents(), time_ms=4 * LEASE_MS
        )
        try:
            await realm.leases.extend(asked, "")
        except LeaseEnded:
            self._refused(held, 0)
            return 0
        return self._world.clock.now_us() + 4_040 * LEASE_MS

    async def _roll_back(self, held: Held, ids: list[int]) -> bool:
        atleast = self._receipts.going_back(ids)
        delay_ms = self._world.random.choice((None, None, 60, 400))
        try:
            await self._ask(held, ids, "roll_back", delay_ms=delay_ms)
        except LeaseEnded:  # the clock was set forward meanwhile
            self._refused(held, 0)
            return False
        self._receipts.went_back(atleast)
        return self._durable != "sole"  # an acknowledgement that follows covers no earlier ones

    async def _acknowledge(self, held: Held, ids: list[int], *, until_us: int) -> None:
        """Perhaps the answer is lost: then it asks again, and is answered as the first time."""
        world, receipts = self._world, self._receipts
        asked_us = world.clock.now_us()
        is_late = asked_us > max(held.got_us + LATE_US, until_us)
        receipts.asking(ids, world.now_us)
        try:
            if not self._quiet and world.random.random() < 0.3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(world.random.uniform(0, 0.02)):
                        await self._ask(held, ids, "ack")
            told = await self._ask(held, ids, "ack")
        except LeaseEnded:
            self._refused(held, until_us)
            receipts.going_back(ids)
            return
        assert not is_late, f"{ids} were acknowledged too late, and that was taken"
        assert told.count == len(ids), f"{told.count} of {ids} are acknowledged"
        receipts.answered(ids, world.now_us)
        world.note(f"acked {receipts.name} {ids}")
        if world.random.random() < 0.3:
            again = await self._ask(held, ids, "ack")
            assert again.count == len(ids), "asked again, it is answered differently"

    def _refused(self, held: Held, until_us: int) -> None:
        early = self._world.clock.now_us() - held.asked_us < 1_000 * LEASE_MS
        assert not early or until_us, f"lease of {held.ids} ended before its time"

    async def _ask(
        self, held: Held, ids: list[int], how: str, delay_ms: int | None = None
    ) -> Settled:
        chosen = LeasedEvents(IdSet.from_ids(sorted(ids)).spans)
        settle = SettleLease(
            self._number,
            self._durable,
            held.lease,
            how=how,  # type: ignore[arg-type]  # one of the three
            chosen=chosen,
            delay_ms=delay_ms,
        )
        told = await self._world.realm.leases.settle(settle, "", lambda _: None)
        await self._heard()
        return told

    @property
    def _number(self) -> ChannelId:
        return ChannelId(self._world.numbers[self._receipts.ledger.store])


class Leased:
    def __init__(self, world: World) -> None:
        random = world.random
        type = random.choice(("persistent", "mixed", "paged"))
        self.world = world
        self._definitions = {
            "tickets": Definition(type=type, storage=spindles(type, random.choice((0, 9)))),
            "orders": Definition(type=type, kind="queue"),
        }
        self._ledgers = {name: Ledger(name) for name in self._definitions}
        self._publishers = [
            Publisher(world, ledger, "p", compose=_events, publishes=8)
            for ledger in self._ledgers.values()
        ]
        self._receipts = {
            (store, name): Receipts(
                name or store, self._ledgers[store], counted=kind != "exclusive", remote=True
            )
            for (store, name), kind in WHERE.items()
        }
        self.leases: list[tuple[str, Receipts, Held]] = []
        """All there were in this life of the realm."""
        self._over = OverPattern(world, self._definitions["tickets"])

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self.world.create(name, definition)
        for (store, name), kind in WHERE.items():
            if name:
                await self.world.create_durable(store, name, kind)
        leases, self.leases = self.leases, []
        for durable, receipts, held in leases[-10:]:
            await self._is_over(durable, receipts, held)
        await self._over.prepare()

    async def _is_over(self, durable: str, receipts: Receipts, held: Held) -> None:
        """A lease of the life before has ended: only what was done is answered as done."""
        number = ChannelId(self.world.numbers[receipts.ledger.store])
        for chosen in (LeasedEvents(), LeasedEvents(IdSet.from_ids(sorted(held.ids)).spans)):
            asked = SettleLease(number, durable, held.lease, how="ack", chosen=chosen)
            try:
                told = await self.world.realm.leases.settle(asked, "", lambda _: None)
            except LeaseEnded:
                continue
            assert chosen.spans is not None, f"the lease of {held.ids} has outlived its realm"
            missed = set(held.ids) - set(receipts.asked)
            assert not missed, f"{missed} were never acknowledged, and are answered as if they were"
            assert told.count == len(held.ids), "all of them"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for (_, name), receipts in self._receipts.items():
            for _ in range(2):
                group.create_task(Consumer(self, receipts, name, quiet=quiet).run())
        self._over.start(group, quiet=quiet)

    async def is_done(self, store: str, name: str) -> bool:
        if not all(each.is_done for each in self._publishers if each.ledger.store == store):
            return False
        return await self.world.is_consumed(store, name)

    async def check(self) -> None:
        """All that was promised was given to everybody, and has left."""
        for (store, _), receipts in self._receipts.items():
            unasked = set(self._ledgers[store].ids) - set(receipts.asked)
            assert not unasked, f"{receipts.name} has not settled {sorted(unasked)}, and is done"
            missed = set(self._ledgers[store].ids) - receipts.seen
            assert not missed, f"{receipts.name} of {store} was never given {sorted(missed)}"
        tickets = await self.world.realm.describe_channel("tickets", "channel")
        orders = await self.world.realm.describe_channel("orders", "queue")
        assert (tickets.events, orders.events) == (0, 0), "everything is acknowledged"
        await self._over.check()


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
