"""Publishing that is paused and resumed: publishes of clients are refused and leave no trace
meanwhile; due events, joins, consumers and administration continue (SEM X5)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    NameAlreadyBound,
    PenstockError,
    PublishingPaused,
    StorageFailed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.writer.transactions import StorePart
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher, Worker, answer, body, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = 1_500
_PATIENCE_US = 300_000
"""Due events are published within this time if nothing fails."""


class Paused:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        type = random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type,
            retain_consumed=True,
            storage=spindles(type, random.choice((0, 10))),
        )
        self._ledger = Ledger("gate")
        self._waiting = Ledger("gate")
        """Its ids are those of the schedule."""
        self._stored_ledger = Ledger("gate")
        self._stored_ledger.offered = self._waiting.offered = self._ledger.offered
        self._receipts = Receipts("in", self._stored_ledger)
        self._publishers = [
            Publisher(world, self._ledger, "p", compose=_events, publishes=8),
            Publisher(world, self._waiting, "q", compose=self._later, publishes=6),
        ]
        self._due_us: dict[bytes, int] = {}
        self._refused: set[bytes] = set()
        self._probes = 0

    async def prepare(self) -> None:
        await self._world.create("gate", self._definition)
        await self._world.create("beyond", Definition(type="persistent"))
        await self._world.create_durable("gate", "in")
        with contextlib.suppress(NameAlreadyBound):
            await self._world.realm.joins.create("gate", "beyond", "", archive=False)
        await self._check_stored()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        worker = Worker(
            self._world,
            self._receipts,
            self._is_done,
            quiet=quiet,
            durable="in",
            window=self._world.random.randint(1, 6),
        )
        group.create_task(worker.run())
        group.create_task(self._administrator(quiet=quiet))
        if not quiet:
            group.create_task(self._prober())

    async def _is_done(self) -> bool:
        if not all(publisher.is_done for publisher in self._publishers):
            return False
        info = await self._world.realm.describe_channel("gate")
        return not info.scheduled and await self._world.is_consumed("gate", "in")

    # --- an administrator ----------------------------------------------------------------

    async def _administrator(self, *, quiet: bool) -> None:
        """Pause and resume publishing, and check that everything else works during a pause."""
        world = self._world
        while True:
            await pass_time(world.random.expovariate(3))
            await world.gate.turn(world, paused=True)
            await self._administer()
            await pass_time(world.random.expovariate(3))
            if quiet:
                await self._check_due()
            await world.gate.turn(world, paused=False)
            if quiet:
                return

    async def _administer(self) -> None:
        world, random = self._world, self._world.random
        acts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            partial(world.realm.maintain, "gate"),
            partial(world.realm.edit_channel, "gate", replace(self._definition, ttl=0)),
            partial(world.create, f"made/{world.lives}", Definition(type="mixed")),
            world.realm.snapshot,
            partial(self._abort, f"aborted-{world.lives}-{self._probes}"),
        ]
        await random.choice(acts)()

    async def _abort(self, transaction: str) -> None:
        transactions = self._world.realm.transactions
        with contextlib.suppress(PenstockError):  # it was ended in an earlier pause
            await transactions.begin(transaction, [])
            await transactions.abort(transaction)

    async def _check_due(self) -> None:
        due_us = self._world.now_us - _PATIENCE_US
        datas = {row.data for row in await stored(self._world, "gate")}
        late = [
            data
            for data in self._waiting.content.values()
            if self._due_us[data] < due_us and data not in datas
        ]
        assert not late, f"{late} were due while publishing is paused, and are not there"

    # --- refused publishers ---------------------------------------------------------------

    async def _prober(self) -> None:
        """Publish in every way, each event once: a refused event must never appear."""
        world = self._world
        while True:
            await pass_time(world.random.expovariate(8))
            self._probes += 1
            name = f"probe-{world.lives}-{self._probes}"
            ways = (self._publish, self._schedule, self._commit, self._commit_staged)
            data = name.encode()
            self._ledger.offered.add(data)
            try:
                await world.gate.published(world.random.choice(ways)(name, data))
            except PublishingPaused:
                self._refused.add(data)
                world.note(f"{name} refused")
            except StorageFailed:
                return
            except PenstockError:
                continue

    async def _publish(self, name: str, data: bytes) -> None:
        await self._send(Event(data), name)

    async def _schedule(self, name: str, data: bytes) -> None:
        self._due_us[data] = self._world.now_us + 50_000
        await self._send(Event(data, deliver_at=_time(self._due_us[data])), name)

    async def _send(self, event: Event, producer: str) -> None:
        publish = self._world.realm.publish
        number = self._world.numbers["gate"]
        await answer(partial(publish, ChannelId(number), [body([event])], producer, 1))

    async def _commit(self, name: str, data: bytes) -> None:
        """Commit a transaction; a refused commit leaves it open."""
        transactions, number = self._world.realm.transactions, self._world.numbers["gate"]
        await transactions.begin(name, [number])
        parts = [StorePart(number, [body([Event(data)])])]
        try:
            await answer(lambda reply: transactions.commit(name, parts, reply))
        except PublishingPaused:
            assert (await transactions.describe(name)).state == "open"
            await transactions.abort(name)
            raise

    async def _commit_staged(self, name: str, data: bytes) -> None:
        realm, number = self._world.realm, self._world.numbers["gate"]
        realm.stages.put(name, number, [body([Event(data)])])
        await answer(partial(realm.commit, ChannelId(number), [name], name, 1))

    # --- invariants ----------------------------------------------------------------------

    async def check(self) -> None:
        datas = await self._check_stored()
        for ledger in (self._ledger, self._waiting):
            missing = set(ledger.content.values()) - datas
            assert not missing, f"{sorted(missing)} were accepted, and are not there"

    async def _check_stored(self) -> set[bytes]:
        rows = await stored(self._world, "gate")
        datas = {row.data for row in rows}
        assert len(datas) == len(rows), "something was published twice"
        assert not datas & self._refused, f"{datas & self._refused} were refused, and are there"
        for row in rows:
            self._stored_ledger.check_content(row.event_id, row.data)
            assert self._due_us.get(row.data, 0) <= row.published_us, f"{row.data!r} is early"
        copies = [row.data for row in await stored(self._world, "beyond")]
        assert sorted(copies) == sorted(datas), "a join copies each event that is published"
        return datas

    def _later(self, draw: Random, label: str) -> list[Event]:
        datas = [f"{label}/{i}".encode() for i in range(draw.randint(1, 4))]
        for data in datas:
            after_us = draw.randint(1, _LATEST_MS) * 1_000
            self._due_us.setdefault(data, self._world.now_us + after_us)
        return [Event(data, deliver_at=_time(self._due_us[data])) for data in datas]


def _time(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
