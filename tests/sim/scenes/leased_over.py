"""Consumers over HTTP of a durable over a pattern: a lease has events of several channels, one of
which is made in each life, while they wait (SEM H4). The scene ``leased`` plays them."""

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
"""From then on what a lease holds has gone back, whatever is rounded."""
PATIENT_MS = 20_000
"""How long the one consumer of a quiet life waits: it has to be woken before."""

Ids = dict[str, list[int]]
"""By channel."""


class HeldOver(NamedTuple):
    """A lease as its client knows it."""

    lease: str
    ids: Ids
    got_us: int
    asked_us: int


class Shop:
    """A channel of the pattern, which is made while others wait for it."""

    def __init__(self, over: OverPattern, name: str) -> None:
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
    """Knows nothing but what it was answered."""

    def __init__(self, over: OverPattern, *, quiet: bool) -> None:
        self._over = over
        self._world = over.world
        self._quiet = quiet

    async def run(self) -> None:
        """Until all is done, or for ever."""
        while True:
            held = await self._fetch()
            if held is not None:
                await self._work(held)
            elif await self._over.is_done():
                return

    async def _fetch(self) -> HeldOver | None:
        """A batch; None where nothing came, or the client has hung up."""
        world, random = self._world, self._world.random
        wait_ms = PATIENT_MS if self._quiet else 300
        asked = FetchFromPattern(
            PATTERN, DURABLE, random.randint(1, 6), lease_ms=LEASE_MS, wait_ms=wait_ms
        )
        asked_us = world.clock.now_us()
        hangs_up = not self._quiet and random.random() < 0.2
        fetch = world.realm.leases.fetch_from_pattern
        try:
            async with asyncio.timeout(random.uniform(0, 0.3) if hangs_up else None):
                told: Fetched = await fetch(asked, "", "sim", selector=None, check=lambda _: None)
        except TimeoutError:
            return None  # what had been taken goes back untried
        await self._heard()
        if not told.lease:
            if self._quiet:
                self._over.nothing_was_there()
            return None
        return HeldOver(told.lease, self._got(told), world.clock.now_us(), asked_us=asked_us)

    def _got(self, told: Fetched) -> Ids:
        found: Ids = {}
        for batch, opened in zip(told.batches, told.channels, strict=True):
            events = list(batch)
            ids = [event.event_id for event in events if event.event_id is not None]
            counts = {i: e.redelivery_count for i, e in zip(ids, events, strict=True)}
            receipts = self._over.receipts(opened.name)
            receipts.delivered(ids, [event.data for event in events], counts)
            found.setdefault(opened.name, []).extend(ids)
        assert _many(found) == told.count, f"{found} for {told.count} events"
        self._world.note(f"leased over a pattern {found}")
        return found

    async def _heard(self) -> None:
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: nobody hears what it says without power

    async def _work(self, held: HeldOver) -> None:
        random = self._world.random
        self._over.leases.append(held)
        if self._quiet:
            await self._acknowledge(held, held.ids)
            return
        way = random.random()
        if way < 0.1:
            self._over.going_back(held.ids)
            return  # it has died, or never got its answer
        if way < 0.5:
            await pass_time(random.uniform(0, 2.5 * LEASE_MS / 1_000))
        back, kept = held.ids, held.ids
        if way > 0.8:
            back = {name: ids[: random.randint(0, len(ids))] for name, ids in held.ids.items()}
            back = {name: ids for name, ids in back.items() if ids}
            kept = {name: ids[len(back.get(name, ())) :] for name, ids in held.ids.items()}
            await self._roll_back(held, back)
        if kept := {name: ids for name, ids in kept.items() if ids}:
            await self._acknowledge(held, kept)

    async def _roll_back(self, held: HeldOver, ids: Ids) -> None:
        if not ids:
            return
        atleast = self._over.going_back(ids)
        try:
            await self._ask(held, ids, "roll_back")
        except LeaseEnded:
            return
        for name, counts in atleast.items():
            self._over.receipts(name).went_back(counts)

    async def _acknowledge(self, held: HeldOver, ids: Ids) -> None:
        """Perhaps the answer is lost: then it asks again, and is answered as the first time."""
        world, over = self._world, self._over
        is_late = world.clock.now_us() > held.got_us + LATE_US
        for name, own in ids.items():
            over.receipts(name).asking(own, world.now_us)
        try:
            if not self._quiet and world.random.random() < 0.3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(world.random.uniform(0, 0.02)):
                        await self._ask(held, ids, "ack")
            told = await self._ask(held, ids, "ack")
        except LeaseEnded:
            early = world.clock.now_us() - held.asked_us < 1_000 * LEASE_MS
            assert not early, f"lease of {held.ids} ended before its time"
            over.going_back(ids)
            return
        assert not is_late, f"{ids} were acknowledged too late, and that was taken"
        assert told.count == _many(ids), f"{told.count} of {ids} are acknowledged"
        for name, own in ids.items():
            over.receipts(name).answered(own, world.now_us)
        world.note(f"acked over a pattern {ids}")

    async def _ask(self, held: HeldOver, ids: Ids, how: How) -> Settled:
        told = await self._over.settle(held.lease, ids, how)
        await self._heard()
        return told


class OverPattern:
    """What the scene plays of patterns."""

    def __init__(self, world: World, definition: Definition) -> None:
        self.world = world
        self.definition = definition
        self.shops: dict[str, Shop] = {}
        self.leases: list[HeldOver] = []
        """All there were in this life of the realm."""

    async def prepare(self) -> None:
        made = CreatePatternDurable(PATTERN, DURABLE, "shared", start=FromEarliest())
        with contextlib.suppress(NameAlreadyBound):
            await self.world.realm.pattern_durables.create(made)
        for name in self.shops:
            await self.world.create(name, self.definition)
        leases, self.leases = self.leases, []
        for held in leases[-10:]:
            await self._is_over(held)

    async def _is_over(self, held: HeldOver) -> None:
        """A lease of the life before has ended: only what was done is answered as done."""
        try:
            told = await self.settle(held.lease, held.ids, "ack")
        except LeaseEnded:
            return
        for name, ids in held.ids.items():
            missed = set(ids) - set(self.receipts(name).asked)
            assert not missed, f"{missed} were never acknowledged, and are answered as if they were"
        assert told.count == _many(held.ids), "all of them"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        name = f"shops/{len(self.shops)}"
        self.shops[name] = Shop(self, name)
        for shop in self.shops.values():
            group.create_task(shop.run())
        for _ in range(1 if quiet else 2):
            group.create_task(PatternConsumer(self, quiet=quiet).run())

    async def settle(self, lease: str, ids: Ids, how: How) -> Settled:
        chosen = {
            name: LeasedEvents(IdSet.from_ids(sorted(own)).spans) for name, own in ids.items()
        }
        asked = SettlePatternLease(PATTERN, DURABLE, lease, how=how, channels=chosen)
        return await self.world.realm.leases.settle(asked, "", lambda _: None)

    def receipts(self, name: str) -> Receipts:
        return self.shops[name].receipts

    def going_back(self, ids: Ids) -> dict[str, dict[int, int]]:
        return {name: self.receipts(name).going_back(own) for name, own in ids.items()}

    def nothing_was_there(self) -> None:
        """The only consumer has waited in vain: there is nothing that nobody has asked for."""
        for name, shop in self.shops.items():
            there = set(shop.ledger.ids) - set(shop.receipts.asked)
            assert not there, f"a consumer waits, and is not told of {sorted(there)} on {name}"

    async def is_done(self) -> bool:
        for name, shop in self.shops.items():
            if not (shop.publisher.is_done and await self.world.is_consumed(name, DURABLE)):
                return False
        return True

    async def check(self) -> None:
        """All that was promised was given to somebody, and has left."""
        for name, shop in self.shops.items():
            missed = set(shop.ledger.ids) - shop.receipts.seen
            assert not missed, f"{PATTERN} was never given {sorted(missed)} of {name}"
            found = await self.world.realm.describe_channel(name, "channel")
            assert found.events == 0, f"everything of {name} is acknowledged"


def _many(ids: Ids) -> int:
    return sum(map(len, ids.values()))


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
