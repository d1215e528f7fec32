"""Clients of a simulated realm: they publish, consume and browse, and record what they receive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_testing.loop import pass_time
from tests.sim.promises import Ledger, Receipts

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld
    from tests.sim.world import World

LONG = 0.15
"""Share of publishes with long names."""

Compose = Callable[[Random, str], Sequence[Event]]
"""Compose the events of a publish from its label; a retry composes the same events again."""


def label_of(world: WiredWorld, store: str, publisher: str, number: ChannelId) -> str:
    """Return the label of a publish and its events. Some labels are long: the records that hold
    them fill several sectors of the disk, and a power cut may tear them between sectors."""
    label = f"{store}/{publisher}/{number}"
    draw = Random(f"{world.seed}/{label}/weight")
    return label + "." * draw.randint(500, 2_000) if draw.random() < LONG else label


class Arrived(NamedTuple):
    """One delivery."""

    ids: list[int]
    datas: list[bytes]
    counts: dict[int, int]
    batch: pa.RecordBatch


class Found(NamedTuple):
    """A stored event, as a browse returns it."""

    event_id: int
    data: bytes
    published_us: int
    origin: Mapping[str, Any] | None


class Outlet:
    """A subscription's receiver: a queue of its deliveries."""

    is_writable = True

    def __init__(self, session: str, selector: str = "") -> None:
        self.session = session
        self.selector = Selector(selector) if selector else None
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()
        self.arrived: list[Arrived] = []
        """Deliveries in the inbox."""
        self._at_end = asyncio.Event()
        self._complaint = ""

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        batch = rows.batch
        ids = ids_of(batch).tolist()
        id_set = set(ids)
        counts = {i: n for n, spans in redeliveries for i in IdSet(spans) if i in id_set}
        self.arrived.append(Arrived(ids, _datas(batch), counts, batch=batch))
        self.inbox.put_nowait(self.arrived[-1])

    @property
    def held(self) -> list[int]:
        """Ids in the inbox."""
        return [event_id for arrived in self.arrived for event_id in arrived.ids]

    async def take(self) -> Arrived:
        """Return the next delivery. Raises ``TimeoutError`` if none arrives within 0.5 s."""
        assert not self._complaint, self._complaint
        async with asyncio.timeout(0.5):
            arrived = await self.inbox.get()
        self.arrived = [delivery for delivery in self.arrived if delivery is not arrived]
        return arrived

    async def end(self) -> None:
        """Wait until a browse has received all its events."""
        await self._at_end.wait()
        assert not self._complaint, self._complaint

    # The realm survives errors that these methods raise; the waiting client reports them.

    def recall(self, spans: Spans) -> None:
        self._complain(f"no durable here orders strictly: {spans}")

    def finished(self) -> None:
        self._at_end.set()

    def closed(self, reason: PenstockError) -> None:
        self._complain(f"nobody deletes anything here: {reason}")

    def _complain(self, complaint: str) -> None:
        self._complaint = complaint
        self._at_end.set()


async def answer(ask: Callable[[Any], None]) -> Any:
    """Return the realm's reply. Raises the error of a refused request."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def reply(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    ask(reply)
    return await done


async def stored(world: World, store: str) -> list[Found]:
    """Return all events of a store in order, from its files and its tail."""
    return await stored_at(world, ChannelId(world.numbers[store]))


async def stored_at(world: World, number: ChannelId) -> list[Found]:
    """Return all events of a store by its channel id."""
    outlet = Outlet("auditor")
    subscriptions = world.realm.subscriptions
    opened = await subscriptions.subscribe(
        number, FromEarliest(), outlet, credit=1 << 20, browse=True
    )
    await outlet.end()
    subscriptions.detach(opened.number)
    if world.is_dark:
        await asyncio.Event().wait()  # for ever: a realm without power sends no answers
    rows = [row for arrived in outlet.arrived for row in _rows_of(arrived)]
    ids = [row.event_id for row in rows]
    assert ids == sorted(set(ids)), f"a browse of number {number} gave {ids}"
    return rows


def _rows_of(arrived: Arrived) -> list[Found]:
    names = arrived.batch.schema.names
    published = arrived.batch.column("published").cast(pa.int64()).to_pylist()
    origins = [None] * len(arrived.ids)
    if "origin" in names:
        origins = arrived.batch.column("origin").to_pylist()
    return [Found(*row) for row in zip(arrived.ids, arrived.datas, published, origins, strict=True)]


def _datas(batch: pa.RecordBatch) -> list[bytes]:
    return [bytes(data) for data in batch.column("data").to_pylist()]


def body(events: Sequence[Event]) -> Body:
    return body_from(body_of(events))


class Publisher:
    """Publishes events one publish at a time, and repeats each until it is confirmed (SEM X3)."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        compose: Compose,
        *,
        publishes: int = 12,
        interval_s: float = 0.2,
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.sequence = 0
        self._compose = compose
        self._publishes = publishes
        self._interval_s = interval_s
        """Mean time between two publishes."""
        self._first_lives: dict[int, int] = {}

    @property
    def is_done(self) -> bool:
        return self.sequence >= self._publishes

    async def run(self) -> None:
        while not self.is_done:
            await pass_time(self.world.random.expovariate(1 / self._interval_s))
            await self._next()

    async def _next(self) -> None:
        world, sequence, store = self.world, self.sequence, self.ledger.store
        label = label_of(world, store, self.name, number=ChannelId(sequence))
        events = self._compose(Random(f"{world.seed}/{label}"), label)
        datas = [event.data for event in events]
        self.ledger.offered.update(datas)
        is_retry = sequence in self._first_lives
        life = self._first_lives.setdefault(sequence, world.lives)
        number = world.numbers[store]
        publish = partial(
            world.realm.publish, ChannelId(number), [body(events)], self.name, sequence
        )
        try:
            span: Span = await world.gate.published(answer(publish), is_retry=is_retry)
        except PenstockError:
            return
        self.ledger.confirm(self.name, sequence, span, datas=datas, life=life)
        world.note(f"confirmed {label.rstrip('.')} {span}")
        self.sequence += 1


IsDone = Callable[[], Awaitable[bool]]


class Worker:
    """A seat at a durable, or a reader of a queue. Settles its deliveries in every possible way."""

    def __init__(
        self,
        world: World,
        receipts: Receipts,
        is_done: IsDone,
        *,
        quiet: bool,
        durable: str = "",
        window: int | None = None,
        selector: str = "",
        settles_apart: bool = False,
        in_order: bool = False,
    ) -> None:
        self.world = world
        self.receipts = receipts
        self.durable = durable
        self.inspect: Callable[[Arrived], None] = lambda _: None
        """Further checks of a delivery."""
        self._quiet = quiet
        self._window = window
        self._selector = selector
        self._settles_apart = settles_apart
        """Whether it settles parts of a delivery separately: single events, a part, or all before
        one."""
        self._in_order = in_order
        """Whether an acknowledgement also settles all earlier events, except those given back."""
        self._is_done = is_done
        self._subscription = 0
        self._outlet = Outlet("")

    async def run(self) -> None:
        """Consume until all is done, or for ever."""
        await self._attach()
        while True:
            try:
                arrived = await self._outlet.take()
            except TimeoutError:
                if await self._is_done():
                    return
                if self.receipts.given_back:
                    await self._detach()
                    await self._attach()
                continue
            self.inspect(arrived)
            self.receipts.delivered(arrived.ids, arrived.datas, arrived.counts)
            self.world.note(f"delivered {self.receipts.name} {arrived.ids} {arrived.counts}")
            await pass_time(self.world.random.expovariate(50))
            await self.settle(arrived.ids)
            if not self._quiet and self.world.random.random() < 0.05:
                await self._detach()
                await self._attach()

    async def _attach(self) -> None:
        world = self.world
        self._outlet = self._new_outlet(f"{self.receipts.name}-{world.sessions}")
        opened = await world.realm.subscriptions.attach(
            ChannelId(world.numbers[self.receipts.ledger.store]),
            self.durable,
            self._outlet,
            window=self._window,
            pull=False,
        )
        self._subscription = opened.number

    def _new_outlet(self, session: str) -> Outlet:
        return Outlet(session, self._selector)

    async def _detach(self) -> None:
        """Detach with the events that it still holds."""
        held = self._outlet.held
        lowest_counts = self.receipts.rollback_requested(held)
        subscriptions, number = self.world.realm.subscriptions, self._subscription
        await answer(lambda reply: subscriptions.detach(number, reply))
        self.receipts.rollback_answered(lowest_counts)
        self.world.note(f"left {self.receipts.name} with {held}")

    async def settle(self, ids: list[int]) -> None:
        random = self.world.random
        if self._in_order:
            await self._settle_in_order(ids)
            return
        rolls_back = self.receipts.counted and not self._quiet and random.random() < 0.2
        if not self._settles_apart:
            await (self._roll_back(ids) if rolls_back else self._ack(ids))
            return
        returned = random.sample(ids, random.randint(1, len(ids))) if rolls_back else []
        kept = [event_id for event_id in ids if event_id not in returned]
        if returned:
            await self._roll_back(sorted(returned))
        if kept:
            way = random.choice((self._ack_each, self._ack, self._ack_previous))
            await way(kept)

    async def _settle_in_order(self, ids: list[int]) -> None:
        """Settle events of an exclusive durable. A later acknowledgement does not cover events that
        were given back; the next subscription receives them again."""
        random = self.world.random
        rolls_back = not self._quiet and random.random() < 0.2
        returned = random.sample(ids, random.randint(1, len(ids))) if rolls_back else []
        if returned:
            self.receipts.given_back.update(returned)
            await self._roll_back(sorted(returned))
        if kept := [event_id for event_id in ids if event_id not in returned]:
            await self._ack(kept)

    async def _ack_each(self, ids: list[int]) -> None:
        for event_id in ids:
            await self._ack([event_id])

    async def _ack(self, ids: list[int], *, previous: bool = False) -> None:
        world, receipts = self.world, self.receipts
        receipts.ack_requested(ids, world.now_us)
        await self._request_settle(ids, roll_back=False, previous=previous)
        receipts.ack_answered(ids, world.now_us)
        world.note(f"acked {receipts.name} {ids}")

    async def _ack_previous(self, ids: list[int]) -> None:
        """Acknowledge with all earlier events. Events that arrive before the answer may be
        acknowledged too, even if a power cut prevents the answer."""
        try:
            await self._ack(ids, previous=True)
        finally:
            lower = [event_id for event_id in self._outlet.held if event_id <= ids[-1]]
            self.receipts.ack_requested(lower, self.world.now_us)

    async def _roll_back(self, ids: list[int]) -> None:
        lowest_counts = self.receipts.rollback_requested(ids)
        await self._request_settle(ids, roll_back=True)
        self.receipts.rollback_answered(lowest_counts)
        self.world.note(f"rolled back {self.receipts.name} {ids}")

    async def _request_settle(
        self,
        ids: list[int],
        *,
        roll_back: bool,
        previous: bool = False,
        delay_ms: int | None = None,
    ) -> None:
        spans = IdSet.from_ids(sorted(ids)).spans
        if previous:
            spans = (Span(max(ids), max(ids) + 1),)
        settle, number = self.world.realm.subscriptions.settle, self._subscription
        await answer(
            lambda reply: settle(
                number, spans, reply, roll_back=roll_back, previous=previous, delay_ms=delay_ms
            )
        )
