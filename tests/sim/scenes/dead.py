"""A channel that overflows and expires events, and the store for those it loses unconsumed.

Every event is in exactly one place: live, consumed, purged, dead, or redriven (SEM T6, T7, T10).
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Found, Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts

if TYPE_CHECKING:
    from tests.sim.world import World

DURABLES = {"one": "", "few": "n < 2"}
SLACK_US = 100_000
"""Tolerance for deliveries under way when an event expires."""
_WANTED_BY_FEW = 2


class Dead:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        self._is_mixed = random.random() < 0.5
        self._definition = Definition(
            type="mixed" if self._is_mixed else "persistent",
            ttl=random.choice((0, 300, 900)),
            capacity=random.choice((6, 15)),
            dead_event_store="dead",
            storage=Storage(events_per_spindle=random.choice((0, 9))),
        )
        self._store = Definition(
            type="persistent",
            kind=random.choice(("channel", "queue")),
            storage=Storage(events_per_spindle=random.choice((0, 12))),
        )
        self._ledger = Ledger("short")
        self._publishers = [
            Publisher(world, self._ledger, name, compose=self._events, publishes=10)
            for name in ("p", "q")
        ]
        names = random.choice(((), ("one",), ("one", "few")))
        self._receipts = {name: Receipts(name, self._ledger) for name in names}
        self._in_memory: set[bytes] = set()
        """Events that are kept in memory only, and may be lost in a restart."""
        self._own_ttl: set[bytes] = set()
        self._purging: list[range] = []
        self._purged: set[int] = set()
        """Confirmed events in ranges whose purge was answered."""
        self._died: set[int] = set()
        """Events that were seen dead or redriven."""

    async def prepare(self) -> None:
        await self._world.create("again", Definition(type="persistent"))
        await self._world.create("dead", self._store)
        await self._world.create("short", self._definition)
        for name in self._receipts:
            await self._world.create_durable("short", name, selector=DURABLES[name])
        await self._check_places()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for name, receipts in self._receipts.items():
            worker = Worker(
                self._world,
                receipts,
                partial(self._is_done, name),
                quiet=quiet,
                durable=name,
                window=self._world.random.randint(1, 6),
                settles_apart=True,
            )
            group.create_task(worker.run())
        if not quiet:
            group.create_task(self._administrator())

    async def _is_done(self, name: str) -> bool:
        published = all(publisher.is_done for publisher in self._publishers)
        return published and await self._world.is_consumed("short", name)

    async def _administrator(self) -> None:
        """Purge, edit or redrive at random times, until the disk fails."""
        random = self._world.random
        while True:
            await pass_time(random.expovariate(1.5))
            act = random.choice((self._purge, self._edit, self._redrive))
            try:
                await act()
            except PenstockError:
                return

    async def _edit(self) -> None:
        """Change how long and how many events are kept (SEM C3)."""
        world, random = self._world, self._world.random
        ttl, capacity = random.choice((0, 200, 900)), random.choice((4, 8, 15))
        await world.realm.edit_channel(
            "short", replace(self._definition, ttl=ttl, capacity=capacity)
        )
        world.note(f"edited ttl {ttl} capacity {capacity}")

    async def _redrive(self) -> None:
        selector = self._world.random.choice(("", "n >= 2"))
        done = await self._world.realm.redrive("dead", "again", selector)
        self._world.note(f"redrove {done.moved} {selector}")

    async def _purge(self) -> None:
        event_ids = self._ledger.ids
        if not event_ids:
            return
        first = self._world.random.choice(event_ids[-10:])  # SEM T9
        ids = range(first, first + self._world.random.randint(1, 4))
        self._purging.append(ids)
        purge = self._world.realm.subscriptions.purge
        count = await purge(ChannelId(self._world.numbers["short"]), ids[0], ids[-1], selector="")
        self._purged.update(set(ids) & set(event_ids))
        self._world.note(f"purged {count} of {ids}")

    # --- the checks ------------------------------------------------------------------------

    async def check(self) -> None:
        live, dead, again = await self._check_places()
        for event_id in self._ledger.ids:
            if event_id in dead:
                self._check_dead(event_id, dead[event_id])
            elif event_id in live:
                assert event_id not in self._purged, f"event {event_id} was purged, and is there"
            elif self._ledger.content[event_id] not in again:
                assert self._may_be_gone(event_id), f"event {event_id} is nowhere"
        if not self._is_mixed:
            info = await self._world.realm.describe_channel("short")
            assert info.counters.dead == len(dead) + len(again), f"dead: {info.counters.dead}"

    async def _check_places(self) -> tuple[set[int], dict[int, Found], set[bytes]]:
        """Return the live, dead and redriven events. Checks that no event is in two places."""
        dead_before = await self._dead()
        live = await self._live()
        dead = await self._dead()  # events may have died in the meantime
        rows = await stored(self._world, "again")
        again = {row.data for row in rows}
        assert len(again) == len(rows), "something was redriven twice"
        duplicates = live & set(dead_before)
        assert not duplicates, f"events {sorted(duplicates)} are live and dead"
        unmoved = {row.data for row in dead.values()} | {self._ledger.content[i] for i in live}
        assert not unmoved & again, "something was redriven, and is where it was"
        lost = {i for i in self._died - set(dead) if self._ledger.content[i] not in again}
        assert not lost, f"events {sorted(lost)} were dead, and are nowhere"
        self._died |= set(dead)
        return live, dead, again

    async def _live(self) -> set[int]:
        """Return the live ids. Checks that they fit the capacity and that none is too old (SEM T1,
        T3)."""
        rows = await stored(self._world, "short")
        info = await self._world.realm.describe_channel("short")
        ttl_us, capacity = info.definition.ttl * 1_000, info.definition.capacity
        assert len(rows) <= capacity, f"{len(rows)} events are live, of {capacity}"
        for row in rows:
            self._ledger.check_content(row.event_id, row.data)
            age_us = self._world.now_us - row.published_us
            has_own_ttl = self._is_mixed and row.data in self._own_ttl
            assert has_own_ttl or not ttl_us or age_us < ttl_us + SLACK_US, (
                f"{age_us} us, of {ttl_us}"
            )
        return {row.event_id for row in rows}

    async def _dead(self) -> dict[int, Found]:
        dead: dict[int, Found] = {}
        for row in await stored(self._world, "dead"):
            assert row.origin is not None, "it says where it comes from"
            assert row.origin["store"] == "short"
            event_id = row.origin["event_id"]
            assert event_id not in dead, f"event {event_id} is dead twice"
            self._ledger.check_content(event_id, row.data)
            dead[event_id] = row
        return dead

    def _may_be_gone(self, event_id: int) -> bool:
        if any(event_id in ids for ids in self._purging):
            return True
        data = self._ledger.content[event_id]
        if data in self._in_memory and self._ledger.lives[event_id] < self._world.lives:
            return True
        interested = [receipts for name, receipts in self._receipts.items() if _wants(name, data)]
        return bool(interested) and all(event_id in receipts.requested for receipts in interested)

    def _check_dead(self, event_id: int, row: Found) -> None:
        """Check that a dead event was unconsumed when it left, and names the durables that missed
        it (SEM T6)."""
        assert row.origin is not None, "dead events have one"
        assert row.origin["cause"] in ("expired", "evicted"), f"died of {row.origin['cause']}"
        missed = set(row.origin["durables"] or ())
        left_us = round(row.origin["at"].timestamp() * 1_000_000)
        for name, receipts in self._receipts.items():
            if name in missed:
                assert _wants(name, row.data), f"{name} never wanted event {event_id}"
                acked_us = receipts.acked.get(event_id, left_us)
                assert acked_us >= left_us, f"{name} had acknowledged event {event_id}"
            elif _wants(name, row.data):
                asked_us = receipts.requested.get(event_id, left_us + 1)
                assert asked_us <= left_us, f"{name} had not acknowledged event {event_id}"
        assert bool(missed) == bool(self._receipts), f"event {event_id} was missed by {missed}"

    def _events(self, draw: Random, label: str) -> list[Event]:
        events = []
        for i in range(draw.randint(1, 5)):
            number = draw.randrange(4)
            lasts = not self._is_mixed or draw.random() < 0.8
            data = f"{label}/{i} n={number}".encode()
            if not lasts:
                self._in_memory.add(data)
            ttl = draw.choice((0, 0, 100, 2_000))
            if ttl:
                self._own_ttl.add(data)
            events.append(Event(data, properties={"n": number}, persistent=lasts, ttl=ttl))
        return events


def _wants(name: str, data: bytes) -> bool:
    return name != "few" or int(data.rpartition(b"=")[2]) < _WANTED_BY_FEW
