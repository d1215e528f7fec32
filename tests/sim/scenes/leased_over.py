"""HTTP consumers of a durable over a pattern: a lease has events of several channels, and each life
creates a further channel while the consumers wait (SEM H4). The scene ``leased`` plays them."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock_core.api.consuming import (
    Fetched,
    FetchFromPattern,
    How,
    LeasedEvents,
    Settled,
    SettlePatternLease,
)
from penstock_core.api.patterns import CreatePatternDurable
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import LeaseEnded, NameAlreadyBound, PenstockError
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher
from tests.sim.promises import Ledger, Receipts

if TYPE_CHECKING:
    from tests.sim.world import World

PATTERN, DURABLE = "shops/*", "crew"
LEASE_MS = 500
LATE_US = 1_020 * LEASE_MS
"""Time after which the events of a lease have certainly gone back, even with rounding."""
PATIENT_MS = 20_000
"""The wait of the only consumer of a quiet life; new events must wake it earlier."""

Ids = dict[str, list[int]]
"""Ids by channel."""


class HeldPatternLease(NamedTuple):
    """A lease over a pattern as its client knows it."""

    lease: str
    ids: Ids
    received_us: int
    requested_us: int


class Shop:
    """A channel of the pattern, created while consumers already wait for it."""

    def __init__(self, over: PatternLeases, name: str) -> None:
        self.name = name
        self.ledger = Ledger(name)
        self.receipts = Receipts(name, self.ledger, remote=True)
        self.publisher = Publisher(over.world, self.ledger, "p", compose=_events, publishes=4)
        self._over = over

    async def run(self) -> None:
        world = self._over.world
        while self.name not in world.numbers:
            await pass_time(world.random.uniform(0, 2))
            with contextlib.suppress(PenstockError):
                await world.create(self.name, self._over.definition)
        await self.publisher.run()


class PatternConsumer:
    """A consumer that knows only the answers to its requests."""

    def __init__(self, over: PatternLeases, *, quiet: bool) -> None:
        self._over = over
        self._world = over.world
        self._quiet = quiet

    async def run(self) -> None:
        """Consume until all is done, or for ever."""
        while True:
            held = await self._fetch()
            if held is not None:
                await self._work(held)
            elif await self._over.is_done():
                return

    async def _fetch(self) -> HeldPatternLease | None:
        """Fetch a batch. Return None if it is empty or the client has hung up."""
        world, random = self._world, self._world.random
        wait_ms = PATIENT_MS if self._quiet else 300
        request = FetchFromPattern(
            PATTERN, DURABLE, random.randint(1, 6), lease_ms=LEASE_MS, wait_ms=wait_ms
        )
        requested_us = world.clock.now_us()
        hangs_up = not self._quiet and random.random() < 0.2
        fetch = world.realm.leases.fetch_from_pattern
        try:
            async with asyncio.timeout(random.uniform(0, 0.3) if hangs_up else None):
                fetched: Fetched = await fetch(
                    request, "", "sim", selector=None, check=lambda _: None
                )
        except TimeoutError:
            return None  # events that were already taken go back without a delivery
        await self._wait_if_dark()
        if not fetched.lease:
            if self._quiet:
                self._over.check_none_missed()
            return None
        return HeldPatternLease(
            fetched.lease, self._ids_of(fetched), world.clock.now_us(), requested_us=requested_us
        )

    def _ids_of(self, fetched: Fetched) -> Ids:
        ids_by_channel: Ids = {}
        for batch, opened in zip(fetched.batches, fetched.channels, strict=True):
            events = list(batch)
            ids = [event.event_id for event in events if event.event_id is not None]
            counts = {i: e.redelivery_count for i, e in zip(ids, events, strict=True)}
            receipts = self._over.receipts(opened.name)
            receipts.delivered(ids, [event.data for event in events], counts)
            ids_by_channel.setdefault(opened.name, []).extend(ids)
        assert _count(ids_by_channel) == fetched.count, (
            f"{ids_by_channel} for {fetched.count} events"
        )
        self._world.note(f"leased over a pattern {ids_by_channel}")
        return ids_by_channel

    async def _wait_if_dark(self) -> None:
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: a realm without power sends no answers

    async def _work(self, held: HeldPatternLease) -> None:
        random = self._world.random
        self._over.leases.append(held)
        if self._quiet:
            await self._acknowledge(held, held.ids)
            return
        way = random.random()
        if way < 0.1:
            self._over.rollback_requested(held.ids)
            return  # the client has ended, or never received the answer
        if way < 0.5:
            await pass_time(random.uniform(0, 2.5 * LEASE_MS / 1_000))
        returned, kept = held.ids, held.ids
        if way > 0.8:
            returned = {name: ids[: random.randint(0, len(ids))] for name, ids in held.ids.items()}
            returned = {name: ids for name, ids in returned.items() if ids}
            kept = {name: ids[len(returned.get(name, ())) :] for name, ids in held.ids.items()}
            await self._roll_back(held, returned)
        if kept := {name: ids for name, ids in kept.items() if ids}:
            await self._acknowledge(held, kept)

    async def _roll_back(self, held: HeldPatternLease, ids: Ids) -> None:
        if not ids:
            return
        lowest_counts = self._over.rollback_requested(ids)
        try:
            await self._settle(held, ids, "roll_back")
        except LeaseEnded:
            return
        for name, counts in lowest_counts.items():
            self._over.receipts(name).rollback_answered(counts)

    async def _acknowledge(self, held: HeldPatternLease, ids: Ids) -> None:
        """Acknowledge events, sometimes twice, as if the first answer was lost: both answers must
        agree."""
        world, leases = self._world, self._over
        is_late = world.clock.now_us() > held.received_us + LATE_US
        for name, channel_ids in ids.items():
            leases.receipts(name).ack_requested(channel_ids, world.now_us)
        try:
            if not self._quiet and world.random.random() < 0.3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(world.random.uniform(0, 0.02)):
                        await self._settle(held, ids, "ack")
            settled = await self._settle(held, ids, "ack")
        except LeaseEnded:
            early = world.clock.now_us() - held.requested_us < 1_000 * LEASE_MS
            assert not early, f"lease of {held.ids} ended before its time"
            leases.rollback_requested(ids)
            return
        assert not is_late, f"{ids} were acknowledged too late, and that was taken"
        assert settled.count == _count(ids), f"{settled.count} of {ids} are acknowledged"
        for name, channel_ids in ids.items():
            leases.receipts(name).ack_answered(channel_ids, world.now_us)
        world.note(f"acked over a pattern {ids}")

    async def _settle(self, held: HeldPatternLease, ids: Ids, how: How) -> Settled:
        settled = await self._over.settle(held.lease, ids, how)
        await self._wait_if_dark()
        return settled


class PatternLeases:
    """The part of the scene that uses a durable over a pattern."""

    def __init__(self, world: World, definition: Definition) -> None:
        self.world = world
        self.definition = definition
        self.shops: dict[str, Shop] = {}
        self.leases: list[HeldPatternLease] = []
        """All leases of this life of the realm."""

    async def prepare(self) -> None:
        create = CreatePatternDurable(PATTERN, DURABLE, "shared", start=FromEarliest())
        with contextlib.suppress(NameAlreadyBound):
            await self.world.realm.pattern_durables.create(create)
        for name in self.shops:
            await self.world.create(name, self.definition)
        leases, self.leases = self.leases, []
        for held in leases[-10:]:
            await self._check_ended(held)

    async def _check_ended(self, held: HeldPatternLease) -> None:
        """Check that a lease of the life before has ended: only acknowledgements already done are
        answered as done."""
        try:
            settled = await self.settle(held.lease, held.ids, "ack")
        except LeaseEnded:
            return
        for name, ids in held.ids.items():
            missed = set(ids) - set(self.receipts(name).requested)
            assert not missed, f"{missed} were never acknowledged, and are answered as if they were"
        assert settled.count == _count(held.ids), "all of them"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        name = f"shops/{len(self.shops)}"
        self.shops[name] = Shop(self, name)
        for shop in self.shops.values():
            group.create_task(shop.run())
        for _ in range(1 if quiet else 2):
            group.create_task(PatternConsumer(self, quiet=quiet).run())

    async def settle(self, lease: str, ids: Ids, how: How) -> Settled:
        chosen = {
            name: LeasedEvents(IdSet.from_ids(sorted(channel_ids)).spans)
            for name, channel_ids in ids.items()
        }
        request = SettlePatternLease(PATTERN, DURABLE, lease, how=how, channels=chosen)
        return await self.world.realm.leases.settle(request, "", lambda _: None)

    def receipts(self, name: str) -> Receipts:
        return self.shops[name].receipts

    def rollback_requested(self, ids: Ids) -> dict[str, dict[int, int]]:
        return {
            name: self.receipts(name).rollback_requested(channel_ids)
            for name, channel_ids in ids.items()
        }

    def check_none_missed(self) -> None:
        """Check, after the only consumer waited in vain, that no event is unrequested."""
        for name, shop in self.shops.items():
            unrequested = set(shop.ledger.ids) - set(shop.receipts.requested)
            assert not unrequested, (
                f"a consumer waits, and is not told of {sorted(unrequested)} on {name}"
            )

    async def is_done(self) -> bool:
        for name, shop in self.shops.items():
            if not (shop.publisher.is_done and await self.world.is_consumed(name, DURABLE)):
                return False
        return True

    async def check(self) -> None:
        """Check that all events were delivered and have left."""
        for name, shop in self.shops.items():
            missed = set(shop.ledger.ids) - shop.receipts.seen
            assert not missed, f"{PATTERN} was never given {sorted(missed)} of {name}"
            info = await self.world.realm.describe_channel(name, "channel")
            assert info.events == 0, f"everything of {name} is acknowledged"


def _count(ids: Ids) -> int:
    return sum(map(len, ids.values()))


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
