"""A disk with one realm after the other on it, and clients of the running one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from msgspec.structs import replace

from penstock_core.api.channels import ChannelInfo
from penstock_core.api.requests import Kind
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.columns.schema.rows import Rows
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import PenstockError, StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Clock, inline
from penstock_core.vocabulary.start_positions import FromEarliest, FromLatest
from penstock_server.bootstrap import rules
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.transactions import StorePart
from penstock_server.storage.embedded import Embedded
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import SimLoop, pass_time
from penstock_testing.stores import open_store

End = Literal["closed", "killed", "power cut", "snapshot"]
ENDS: Final[tuple[End, ...]] = ("closed", "killed", "power cut", "snapshot")
"""The ways in which a life ends; ``snapshot`` is a power cut right after a snapshot."""

LATE: Final = SealingLimits(interval_s=1e6)
"""Limits that seal nothing and take no snapshot by themselves."""


def clock_now() -> datetime:
    """Return the time of the realm's clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=loop.now_us())


def clock_us() -> int:
    """The time in microseconds since 1970."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop.now_us()


def body_from_events(events: Sequence[Event]) -> Body:
    batch = body_of(events)
    return Body(batch_bytes(batch), batch, schema_bytes(batch.schema))


def named(*datas: str, **options: Any) -> list[Event]:
    """Return events with these names as data."""
    return [Event(data.encode(), **options) for data in datas]


def datas(events: Sequence[Event]) -> list[str]:
    return [event.data.decode() for event in events]


class Outlet:
    """An outlet that keeps its events."""

    is_writable = True

    def __init__(self, session: str = "reader", selector: str = "") -> None:
        self.session = session
        self.selector = Selector(selector) if selector else None
        self.events: list[Event] = []
        self.publishers: list[str] = []
        self.came_at: list[datetime] = []
        self.at_end = asyncio.Event()
        self.reason: PenstockError | None = None
        self.number = 0
        """Number of the subscription."""
        self.on_delivery: Callable[[], None] = lambda: None
        """Called before events arrive."""

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        self.on_delivery()
        counts = {i: n for n, spans in redeliveries for i in IdSet(spans)}
        columns = Rows(rows.batch, rows.publishers)
        for row in range(rows.batch.num_rows):
            event = Event.received(columns, row)
            assert event.event_id is not None
            event.redelivery_count = counts.get(event.event_id, 0)
            self.events.append(event)
            headers = event.headers
            self.publishers.append(f"{headers.get('publisher', '')}@{headers.get('host', '')}")
            self.came_at.append(clock_now())

    def recall(self, spans: Spans) -> None:
        raise AssertionError(f"no durable here orders strictly: {spans}")

    def finished(self) -> None:
        self.at_end.set()

    def closed(self, reason: PenstockError) -> None:
        self.reason = reason

    @property
    def ids(self) -> list[int]:
        return [event.event_id for event in self.events if event.event_id is not None]

    async def has(self, count: int) -> list[Event]:
        """Wait until ``count`` events have arrived, and a moment longer."""
        async with asyncio.timeout(20):
            while len(self.events) < count:
                await pass_time(0.005)
        await pass_time(0.02)
        return self.events


class Lives:
    """A disk with successive realms on it. Requests go to the one that runs."""

    def __init__(
        self,
        seed: int = 1,
        *,
        sealing: SealingLimits = LATE,
        limits: Limits | None = None,
        clock: Clock | None = None,
        local_to: str = "",
        outbox_bytes_max: int = 1 << 30,
    ) -> None:
        """``local_to`` names the node of a cluster whose local channels these are."""
        self.rules = replace(rules(), local_to=local_to, outbox_bytes_max=outbox_bytes_max)
        self.disk = FaultyDisk(seed)
        self.store: Embedded
        self.realm: RunningRealm
        self.sealing = sealing
        self.limits = limits or Limits()
        self._clock = clock

    @asynccontextmanager
    async def life(self, end: End = "power cut", *, damaged: bool = False) -> AsyncIterator[None]:
        """Run a life of the realm that ends with ``end``; with a power cut if the block raises."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        store = self.store = open_store("/realm", self.disk, page_bytes_max=1 << 16)
        realm = self.realm = await RunningRealm.open(
            store.journal,
            store.blobs,
            store.pages,
            self.rules,
            self._clock or loop,
            inline,
            identity="i",
            limits=self.limits,
            sealing=self.sealing,
        )
        assert damaged or realm.recovered.damage == [], realm.recovered.damage
        running = loop.create_task(realm.run())
        try:
            yield
            if end == "closed":
                await realm.close()
                await realm.release()
            elif end == "snapshot":
                await realm.snapshot()
        except BaseException:
            end = "power cut"
            raise
        finally:
            running.cancel()
            await asyncio.wait([running])
            _check_end(running)
            if end in ("power cut", "snapshot"):
                self.disk.power_cut()
            else:
                self.disk.kill()

    # --- asking --------------------------------------------------------------------------

    def number(self, name: str) -> ChannelId:
        channel_number = self.realm.directory.find(name)
        assert channel_number is not None, f"there is no {name}"
        return channel_number

    async def create(self, name: str, type: str = "persistent", **attributes: Any) -> int:
        opened = await self.realm.create_channel(name, Definition(type=type, **attributes))
        return opened.channel

    async def put(
        self,
        name: str,
        *events: Event,
        producer: str = "",
        sequence: int = 0,
        publisher: str = "me@here",
    ) -> Span:
        """Publish in one step."""
        return await self.send(
            name, *events, producer=producer, sequence=sequence, publisher=publisher
        )

    def send(
        self,
        name: str,
        *events: Event,
        producer: str = "",
        sequence: int = 0,
        publisher: str = "me@here",
    ) -> asyncio.Future[Span]:
        """Publish without waiting for the answer."""
        done: asyncio.Future[Span] = asyncio.get_running_loop().create_future()
        body = body_from_events(events)
        self.realm.publish(
            self.number(name),
            [body],
            producer,
            sequence=sequence,
            reply=_into(done),
            publisher=publisher,
        )
        return done

    async def commit(
        self, transaction: str, parts: Mapping[str, Sequence[Event]], stages: Sequence[str] = ()
    ) -> Mapping[int, Span]:
        """Commit a transaction that was begun; the ids its events got, by store."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.realm.transactions.commit(
            transaction,
            [
                StorePart(self.number(name), [body_from_events(events)] if events else [], stages)
                for name, events in parts.items()
            ],
            _into(done),
        )
        return dict(await done)

    async def transact(
        self, transaction: str, parts: Mapping[str, Sequence[Event]]
    ) -> Mapping[int, Span]:
        numbers = [self.number(name) for name in parts]
        await self.realm.transactions.begin(transaction, numbers)
        return await self.commit(transaction, parts)

    async def stored(self, name: str, selector: str = "") -> list[Event]:
        """Return the events of a store by browsing."""
        return (await self.browsed(name, selector)).events

    async def waiting_in(self, schedule: int) -> list[Event]:
        """Return the scheduled events of a store."""
        return (await self._browsed(ChannelId(schedule), "")).events

    async def browsed(self, name: str, selector: str = "") -> Outlet:
        return await self._browsed(self.number(name), selector)

    async def _browsed(self, number: ChannelId, selector: str) -> Outlet:
        outlet = Outlet("browser", selector)
        await self.realm.subscriptions.subscribe(
            number, FromEarliest(), outlet, credit=1 << 30, browse=True
        )
        await outlet.at_end.wait()
        return outlet

    async def follow(
        self,
        name: str,
        selector: str = "",
        *,
        session: str = "follower",
        deltas: bool = False,
        latest: bool = False,
        credit: int = 1 << 30,
    ) -> Outlet:
        """Subscribe to new events."""
        outlet = Outlet(session, selector)
        start = FromLatest() if latest else FromEarliest()
        opened = await self.realm.subscriptions.subscribe(
            self.number(name), start, outlet, credit=credit, deltas=deltas
        )
        outlet.number = opened.number
        return outlet

    async def attach(
        self,
        name: str,
        durable: str = "",
        *,
        window: int | None = None,
        pull: bool = False,
        auto_ack: bool = False,
        selector: str = "",
        session: str = "worker",
    ) -> Worker:
        """Attach to a durable or a queue."""
        outlet = Outlet(session, selector)
        opened = await self.realm.subscriptions.attach(
            self.number(name),
            durable,
            outlet,
            window=window,
            pull=pull,
            auto_ack=auto_ack,
        )
        return Worker(self, opened.number, outlet)

    async def durable(
        self, name: str, durable: str, kind: str = "shared", selector: str = "", **options: Any
    ) -> None:
        await self.realm.subscriptions.create_durable(
            self.number(name),
            durable,
            kind,
            start=FromEarliest(),
            selector=selector,
            persistent=None,
            attributes=DurableAttributes(**options),
        )

    async def info(self, name: str) -> ChannelInfo:
        state = self.realm.directory.channels[self.number(name)].state
        kind = state.definition.kind
        assert kind in ("channel", "queue")
        return await self.realm.describe_channel(name, as_kind(kind))

    async def purge(self, name: str, selector: str = "") -> int:
        return await self.realm.subscriptions.purge(
            self.number(name), None, None, selector=selector
        )

    async def sealed(self, name: str) -> None:
        """Wait until all events of a channel are in files."""
        async with asyncio.timeout(100):
            while (await self.info(name)).storage.tail_bytes:
                await pass_time(0.01)

    async def conserved(self) -> None:
        """Check that every event is stored, or was removed for exactly one reason (SEM T8)."""
        for channel in self.realm.directory.channels.values():
            state = channel.state
            counters = state.counters
            assert counters.published == len(state.stored) + counters.departed_count, (
                state.name,
                counters,
            )


class Worker:
    """A client at a durable or a queue."""

    def __init__(self, lives: Lives, number: int, outlet: Outlet) -> None:
        self._lives = lives
        self.number = number
        self.outlet = outlet

    @property
    def events(self) -> list[Event]:
        return self.outlet.events

    async def has(self, count: int) -> list[Event]:
        return await self.outlet.has(count)

    async def settle(self, *ids: int, back: bool = False, delay_ms: int | None = None) -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._lives.realm.subscriptions.settle(
            self.number,
            IdSet.from_ids(ids).spans,
            _into(done),
            roll_back=back,
            previous=False,
            delay_ms=delay_ms,
        )
        await done

    async def leave(self) -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._lives.realm.subscriptions.detach(self.number, _into(done))
        await done


def _check_end(running: asyncio.Task[None]) -> None:
    """Ignore the failure of a realm that stopped because of its disk."""
    error = None if running.cancelled() else running.exception()
    if isinstance(error, BaseExceptionGroup):
        _, error = error.split(StorageFailed)
    if error is not None:
        raise error


def as_kind(kind: Literal["channel", "queue"]) -> Kind:
    return kind


def _into(done: asyncio.Future[Any]) -> Any:
    def reply(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    return reply
