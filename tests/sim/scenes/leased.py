"""Consumers over HTTP (SEM H): they fetch under leases, hang up, end with events in flight, are too
late, lose answers and repeat requests, while the clock jumps and the realm fails."""

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
from tests.sim.scenes.leased_over import PatternLeases
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

LEASE_MS = 500
LATE_US = 1_020 * LEASE_MS
"""Time after which the events of a lease have certainly gone back, even with rounding."""
STORES = {
    ("tickets", "team"): "shared",
    ("tickets", "line"): "serial",
    ("tickets", "sole"): "exclusive",
    ("orders", ""): "queue",
}


class HeldLease(NamedTuple):
    """A lease as its client knows it."""

    lease: str
    ids: list[int]
    received_us: int
    requested_us: int
    """The realm's time when the client requested it, in µs."""


class Consumer:
    """A consumer that knows only the answers to its requests."""

    def __init__(self, scene: Leased, receipts: Receipts, durable: str, *, quiet: bool) -> None:
        self._world = scene.world
        self._scene = scene
        self._receipts = receipts
        self._durable = durable
        self._quiet = quiet

    async def run(self) -> None:
        """Consume until all is done, or for ever."""
        while True:
            fetched = await self._fetch()
            if fetched is None:
                if await self._scene.is_done(self._receipts.ledger.store, self._durable):
                    return
                continue
            await self._work(fetched)

    async def _fetch(self) -> HeldLease | None:
        """Fetch a batch. Return None if it is empty or the client has hung up."""
        world, random = self._world, self._world.random
        number = ChannelId(world.numbers[self._receipts.ledger.store])
        request = FetchEvents(
            number, self._durable, random.randint(1, 5), lease_ms=LEASE_MS, wait_ms=300
        )
        requested_us = world.clock.now_us()
        hangs_up = not self._quiet and random.random() < 0.2
        try:
            async with asyncio.timeout(random.uniform(0, 0.3) if hangs_up else None):
                fetched: Fetched = await world.realm.leases.fetch(
                    request, "", "sim", selector=None, check=lambda: None
                )
        except TimeoutError:
            return None  # events that were already taken go back without a delivery
        except DurableInUse:
            await pass_time(0.05)
            return None
        await self._wait_if_dark()
        if not fetched.lease:
            return None
        events = [event for batch in fetched.batches for event in batch]
        ids = [event.event_id for event in events if event.event_id is not None]
        counts = {i: e.redelivery_count for i, e in zip(ids, events, strict=True)}
        assert len(ids) == fetched.count == len(set(ids)), f"{ids} for {fetched.count} events"
        self._receipts.delivered(ids, [event.data for event in events], counts)
        world.note(f"leased {self._receipts.name} {ids}")
        return HeldLease(fetched.lease, ids, world.clock.now_us(), requested_us=requested_us)

    async def _wait_if_dark(self) -> None:
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: a realm without power sends no answers

    async def _work(self, held: HeldLease) -> None:
        random = self._world.random
        self._scene.leases.append((self._durable, self._receipts, held))
        if self._quiet:
            await self._acknowledge(held, held.ids, until_us=0)
            return
        until_us, way = 0, random.random()
        if way < 0.1:
            self._receipts.rollback_requested(held.ids)
            return  # the client has ended, or never received the answer
        if way < 0.2:
            until_us = await self._extend(held)
        if way < 0.5:
            await pass_time(random.uniform(0, 2.5 * LEASE_MS / 1_000))
        returned = random.sample(held.ids, random.randint(0, len(held.ids))) if way > 0.8 else []
        if returned and not await self._roll_back(held, sorted(returned)):
            return
        if kept := [event_id for event_id in held.ids if event_id not in returned]:
            await self._acknowledge(held, kept, until_us=until_us)

    async def _extend(self, held: HeldLease) -> int:
        """Extend the lease. Return its new end in µs, or 0 if it has already ended."""
        realm, number = self._world.realm, self._number
        request = ExtendLease(
            number, self._durable, held.lease, chosen=LeasedEvents(), time_ms=4 * LEASE_MS
        )
        try:
            await realm.leases.extend(request, "")
        except LeaseEnded:
            self._check_not_early(held, 0)
            return 0
        return self._world.clock.now_us() + 4_040 * LEASE_MS

    async def _roll_back(self, held: HeldLease, ids: list[int]) -> bool:
        lowest_counts = self._receipts.rollback_requested(ids)
        delay_ms = self._world.random.choice((None, None, 60, 400))
        try:
            await self._settle(held, ids, "roll_back", delay_ms=delay_ms)
        except LeaseEnded:  # the clock was set forward in the meantime
            self._check_not_early(held, 0)
            return False
        self._receipts.rollback_answered(lowest_counts)
        # a later acknowledgement of this durable must not cover these events
        return self._durable != "sole"

    async def _acknowledge(self, held: HeldLease, ids: list[int], *, until_us: int) -> None:
        """Acknowledge events, sometimes twice, as if the first answer was lost: both answers must
        agree."""
        world, receipts = self._world, self._receipts
        requested_us = world.clock.now_us()
        is_late = requested_us > max(held.received_us + LATE_US, until_us)
        receipts.ack_requested(ids, world.now_us)
        try:
            if not self._quiet and world.random.random() < 0.3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(world.random.uniform(0, 0.02)):
                        await self._settle(held, ids, "ack")
            settled = await self._settle(held, ids, "ack")
        except LeaseEnded:
            self._check_not_early(held, until_us)
            receipts.rollback_requested(ids)
            return
        assert not is_late, f"{ids} were acknowledged too late, and that was taken"
        assert settled.count == len(ids), f"{settled.count} of {ids} are acknowledged"
        receipts.ack_answered(ids, world.now_us)
        world.note(f"acked {receipts.name} {ids}")
        if world.random.random() < 0.3:
            repeated = await self._settle(held, ids, "ack")
            assert repeated.count == len(ids), "asked again, it is answered differently"

    def _check_not_early(self, held: HeldLease, until_us: int) -> None:
        early = self._world.clock.now_us() - held.requested_us < 1_000 * LEASE_MS
        assert not early or until_us, f"lease of {held.ids} ended before its time"

    async def _settle(
        self, held: HeldLease, ids: list[int], how: str, delay_ms: int | None = None
    ) -> Settled:
        chosen = LeasedEvents(IdSet.from_ids(sorted(ids)).spans)
        settle = SettleLease(
            self._number,
            self._durable,
            held.lease,
            how=how,  # type: ignore[arg-type]  # one of the three ways to settle
            chosen=chosen,
            delay_ms=delay_ms,
        )
        settled = await self._world.realm.leases.settle(settle, "", lambda _: None)
        await self._wait_if_dark()
        return settled

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
            for (store, name), kind in STORES.items()
        }
        self.leases: list[tuple[str, Receipts, HeldLease]] = []
        """All leases of this life of the realm."""
        self._over = PatternLeases(world, self._definitions["tickets"])

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self.world.create(name, definition)
        for (store, name), kind in STORES.items():
            if name:
                await self.world.create_durable(store, name, kind)
        leases, self.leases = self.leases, []
        for durable, receipts, held in leases[-10:]:
            await self._check_ended(durable, receipts, held)
        await self._over.prepare()

    async def _check_ended(self, durable: str, receipts: Receipts, held: HeldLease) -> None:
        """Check that a lease of the life before has ended: only acknowledgements already done are
        answered as done."""
        number = ChannelId(self.world.numbers[receipts.ledger.store])
        for chosen in (LeasedEvents(), LeasedEvents(IdSet.from_ids(sorted(held.ids)).spans)):
            request = SettleLease(number, durable, held.lease, how="ack", chosen=chosen)
            try:
                settled = await self.world.realm.leases.settle(request, "", lambda _: None)
            except LeaseEnded:
                continue
            assert chosen.spans is not None, f"the lease of {held.ids} has outlived its realm"
            missed = set(held.ids) - set(receipts.requested)
            assert not missed, f"{missed} were never acknowledged, and are answered as if they were"
            assert settled.count == len(held.ids), "all of them"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for (_, name), receipts in self._receipts.items():
            for _ in range(2):
                group.create_task(Consumer(self, receipts, name, quiet=quiet).run())
        self._over.start(group, quiet=quiet)

    async def is_done(self, store: str, name: str) -> bool:
        if not all(
            publisher.is_done for publisher in self._publishers if publisher.ledger.store == store
        ):
            return False
        return await self.world.is_consumed(store, name)

    async def check(self) -> None:
        """Check that every client received and settled every event, and that all events have
        left."""
        for (store, _), receipts in self._receipts.items():
            unsettled = set(self._ledgers[store].ids) - set(receipts.requested)
            assert not unsettled, (
                f"{receipts.name} has not settled {sorted(unsettled)}, and is done"
            )
            missed = set(self._ledgers[store].ids) - receipts.seen
            assert not missed, f"{receipts.name} of {store} was never given {sorted(missed)}"
        tickets = await self.world.realm.describe_channel("tickets", "channel")
        orders = await self.world.realm.describe_channel("orders", "queue")
        assert (tickets.events, orders.events) == (0, 0), "everything is acknowledged"
        await self._over.check()


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
