"""The owner of a shard answers appended requests always, and others only while its lease holds.
After another owner has taken over it answers nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context

import pytest

from packages.server.tests.runtime.living import EAGER, Owning, Reader, body, publish
from penstock import aio
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    Deposed,
    NameDoesNotExist,
    RealmStopping,
    Unavailable,
    Unknown,
)
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Journal, inline
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.bootstrap import rules
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.delivery.owner_lease import ENDLESS, OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal, MemoryPages
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_testing.network import MACHINE

KEPT = Definition(type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=1))


class HandLease:
    """A lease that the test sets."""

    epoch = 1
    format = FORMAT

    def __init__(self) -> None:
        self._held = asyncio.Event()
        self._held.set()
        self.is_over = False

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        return ()

    def holds(self) -> bool:
        return self._held.is_set()

    async def held(self) -> None:
        await self._held.wait()
        if self.is_over:
            raise Deposed("another node has claimed it")

    def runs_out(self) -> None:
        self._held.clear()

    def renewed(self) -> None:
        self._held.set()

    def ended(self) -> None:
        self.is_over = True
        self._held.set()


@asynccontextmanager
async def owning(
    lease: OwnerLease, journal: Journal | None = None, blobs: Blobs | None = None
) -> AsyncIterator[tuple[RunningRealm, asyncio.Task[None]]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    realm = await RunningRealm.open(
        journal or MemoryJournal(),
        blobs or MemoryBlobs(grows=not lease.epoch),
        MemoryPages(),
        rules(),
        loop,
        inline,
        identity="i",
        sealing=EAGER,
        lease=lease,
    )
    running = loop.create_task(realm.run())
    try:
        yield realm, running
    finally:
        running.cancel()
        await asyncio.wait([running])


@simulated
async def test_appended_requests_are_answered_even_without_the_lease() -> None:
    lease = HandLease()
    async with owning(lease) as (realm, _):
        channel = (await realm.create_channel("orders", KEPT)).channel
        lease.runs_out()

        assert await publish(realm, channel, body([b"a"])) == Span(0, 1)


@pytest.mark.slow
@simulated
async def test_queries_wait_for_the_next_renewal() -> None:
    lease = HandLease()
    async with owning(lease) as (realm, _):
        await realm.create_channel("orders", KEPT)
        lease.runs_out()
        looking = asyncio.get_running_loop().create_task(realm.open_channel("orders"))
        await pass_time(60)
        assert not looking.done()

        lease.renewed()

        assert (await looking).name == "orders"


@simulated
async def test_a_refusal_waits_for_the_next_renewal() -> None:
    lease = HandLease()
    async with owning(lease) as (realm, _):
        lease.runs_out()
        looking = asyncio.get_running_loop().create_task(realm.open_channel("orders"))
        describing = asyncio.get_running_loop().create_task(realm.describe("1"))
        await pass_time(60)
        assert not looking.done()
        assert not describing.done()
        assert realm.dispatch.withheld == {"answers": 2, "deliveries": 0}

        lease.renewed()

        assert (await describing).channels == 0
        with pytest.raises(NameDoesNotExist):
            await looking


@simulated
async def test_events_are_delivered_only_while_the_lease_holds() -> None:
    lease = HandLease()
    async with owning(lease) as (realm, _):
        channel = (await realm.create_channel("orders", KEPT)).channel
        outlet = Reader()
        await realm.subscriptions.subscribe(channel, FromEarliest(), outlet, credit=100)
        lease.runs_out()
        assert await publish(realm, channel, body([b"a"])) == Span(0, 1)
        await pass_time(60)
        assert outlet.ids == []
        assert realm.dispatch.withheld["deliveries"] == 1

        lease.renewed()
        await pass_time(1)

        assert outlet.ids == [0]


@pytest.mark.slow
@simulated
async def test_a_lease_that_runs_out_while_a_file_is_read_stops_its_events() -> None:
    lease, blobs = HandLease(), SlowBlobs(grows=False)
    async with owning(lease, blobs=blobs) as (realm, _):
        channel = (await realm.create_channel("orders", KEPT)).channel
        for data in (b"a", b"b"):
            await publish(realm, channel, body([data]))
        await pass_time(1)
        for store in realm.shard.state.stores.values():
            for file in store.files:
                realm.dispatch.files.close(file)
        outlet = Reader()
        blobs.on_get = lease.runs_out
        await realm.subscriptions.subscribe(channel, FromEarliest(), outlet, credit=100)
        await pass_time(60)
        assert outlet.ids == []
        assert not lease.holds(), "the file was read"

        blobs.on_get = lambda: None
        lease.renewed()
        await pass_time(1)

        assert outlet.ids == [0, 1]


class SlowBlobs(MemoryBlobs):
    """Blobs that call a function while a file is fetched."""

    on_get = staticmethod(lambda: None)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        self.on_get()
        return await super().get(name, offset, length)


@pytest.mark.slow
@simulated
async def test_connections_are_cut_before_a_deposed_owner_could_answer() -> None:
    lease = HandLease()
    async with owning(lease) as (realm, running):
        heard: list[str] = []
        realm.on_deposed(lambda: heard.append("cut"))
        lease.runs_out()
        number = ChannelId(7)
        realm.publish(
            number, [body([b"a"])], "", sequence=0, reply=lambda *_: heard.append("answered")
        )
        await pass_time(60)
        assert heard == []

        lease.ended()
        await asyncio.wait([running])

        assert heard == ["cut", "answered"]
        assert isinstance(error_of(running), Deposed)


def error_of(task: asyncio.Task[None]) -> BaseException | None:
    error = task.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class Unanswered(MemoryJournal):
    """An append that never comes back before the journal is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    async def append(self, expected: int, block: object, *, sync: bool = True) -> int:
        await self.closed.wait()
        raise Unknown("closed before the engine had answered")


@simulated
async def test_a_publish_with_an_unknown_outcome_is_not_answered() -> None:
    journal = Unanswered()
    async with owning(ENDLESS, journal) as (realm, running):
        cut: list[str] = []
        realm.on_deposed(lambda: cut.append("cut"))
        making = asyncio.get_running_loop().create_task(realm.create_channel("orders", KEPT))
        await pass_time(1)

        journal.closed.set()
        await asyncio.wait([running, making])

        assert cut == ["cut"]
        assert isinstance(error_of(running), Unknown)
        assert isinstance(making.exception(), Unknown), "who asked in this process"


class OwnerNode:
    """A realm with a separate listener, over a shared engine."""

    def __init__(self, engine: MemoryEngine, port: int) -> None:
        self.engine = engine
        self.port = port
        self.tasks: list[asyncio.Task[None]] = []

    async def take_over(self, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        journal, blobs = await self.engine.journal(0, epoch), await self.engine.blobs(0)
        self.realm = await RunningRealm.open(
            journal,
            blobs,
            MemoryPages(),
            rules(),
            loop,
            inline,
            identity="i",
            lease=Owning(epoch),
        )
        listener = NativeListener(self.realm, "simulated", NativeLimits())
        ready = asyncio.Event()
        context = copy_context()
        context.run(MACHINE.set, f"node {self.port}")
        self.tasks = [
            loop.create_task(work, context=context)
            for work in (self.realm.run(), listener.run(ready))
        ]
        await ready.wait()
        await loop.create_task(self._listen(listener), context=context)

    async def _listen(self, listener: NativeListener) -> None:
        await listener.listen("127.0.0.1", self.port)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)


@simulated
async def test_a_client_of_a_deposed_owner_is_answered_by_the_next_one() -> None:
    servers = EngineServers()
    first, second = (OwnerNode(MemoryEngine(servers), 9_000 + n) for n in range(2))
    await first.take_over(1)
    session = await aio.connect("penstock://somebody@127.0.0.1:9000,127.0.0.1:9001")
    channel = await session.channels.create("orders", type="persistent")
    assert await channel.publish(b"a") == 0
    await second.take_over(2)

    assert await channel.publish(b"b") == 1

    assert isinstance(error_of(first.tasks[0]), Deposed)
    assert [event.data async for event in channel.browse()] == [b"a", b"b"]
    await session.close()
    await first.end()
    await second.end()


class Broken(MemoryJournal):
    """A journal whose appends fail in a way that its adapter should not let through."""

    def __init__(self, failure: Exception) -> None:
        super().__init__()
        self.failure = failure

    async def append(self, expected: int, block: object, *, sync: bool = True) -> int:
        raise self.failure


FAILURES = [RuntimeError("cannot switch to state 12"), Unavailable("the servers sync lazily")]


@pytest.mark.spec("N4")
@pytest.mark.parametrize("failure", FAILURES)
@simulated
async def test_a_failing_owner_does_not_answer_so_that_clients_ask_the_next_one(
    failure: Exception,
) -> None:
    async with owning(HandLease(), Broken(failure)) as (realm, running):
        cut: list[str] = []
        realm.on_deposed(lambda: cut.append("cut"))
        making = asyncio.get_running_loop().create_task(realm.create_channel("orders", KEPT))
        await asyncio.wait([running, making])

        assert cut == ["cut"]
        assert error_of(running) is failure
        assert isinstance(making.exception(), Unknown)


@simulated
async def test_a_failing_realm_outside_a_cluster_reports_that_it_is_closed() -> None:
    async with owning(ENDLESS, Broken(RuntimeError("a defect"))) as (realm, running):
        making = asyncio.get_running_loop().create_task(realm.create_channel("orders", KEPT))
        await asyncio.wait([running, making])

        assert isinstance(making.exception(), RealmStopping)
