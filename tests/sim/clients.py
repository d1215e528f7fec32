"""Clients of a simulated realm: they publish, consume and look, and write down what they see."""

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
"""The events of one publish, named by its label; a retry composes the same again."""


def label_of(world: WiredWorld, store: str, publisher: str, number: ChannelId) -> str:
    """What names a publish, and the events of it. Some names are long: what holds them fills
    several sectors of the disk, and may be torn between them."""
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
    """A stored event, as a browse shows it."""

    event_id: int
    data: bytes
    published_us: int
    origin: Mapping[str, Any] | None


class Outlet:
    """Where a subscription's events go: a queue of what came."""

    writable = True

    def __init__(self, session: str, selector: str = "") -> None:
        self.session = session
        self.selector = Selector(selector) if selector else None
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()
        self.arrived: list[Arrived] = []
        """What lies in the inbox."""
        self._at_end = asyncio.Event()
        self._complaint = ""

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        batch = rows.batch
        ids = ids_of(batch).tolist()
        known = set(ids)
        counts = {i: n for n, spans in redeliveries for i in IdSet(spans) if i in known}
        self.arrived.append(Arrived(ids, _datas(batch), counts, batch=batch))
        self.inbox.put_nowait(self.arrived[-1])

    @property
    def held(self) -> list[int]:
        """Ids in the inbox."""
        return [event_id for arrived in self.arrived for event_id in arrived.ids]

    async def take(self) -> Arrived:
        """The next delivery. Raises ``TimeoutError`` when none comes for a while."""
        assert not self._complaint, self._complaint
        async with asyncio.timeout(0.5):
            arrived = await self.inbox.get()
        self.arrived = [each for each in self.arrived if each is not arrived]
        return arrived

    async def end(self) -> None:
        """Wait until all that a browse finds has come."""
        await self._at_end.wait()
        assert not self._complaint, self._complaint

    # The realm survives what is raised in these, so whoever waits here is told.

    def recall(self, spans: Spans) -> None:
        self._complain(f"no durable here orders strictly: {spans}")

    def finished(self) -> None:
        self._at_end.set()

    def closed(self, reason: PenstockError) -> None:
        self._complain(f"nobody deletes anything here: {reason}")

    def _complain(self, of: str) -> None:
        self._complaint = of
        self._at_end.set()


async def answer(ask: Callable[[Any], None]) -> Any:
    """What the realm replies. Raises what it is refused with."""
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
    """All that a store holds, in order: files and tail together."""
    return await stored_at(world, ChannelId(world.numbers[store]))


async def stored_at(world: World, number: ChannelId) -> list[Found]:
    """As :func:`stored`, by its number."""
    outlet = Outlet("auditor")
    subscriptions = world.realm.subscriptions
    opened = await subscriptions.subscribe(
        number, FromEarliest(), outlet, credit=1 << 20, browse=True
    )
    await outlet.end()
    subscriptions.detach(opened.number)
    if world.is_dark:
        await asyncio.Event().wait()  # for ever: nobody hears what it says without power
    found = [row for arrived in outlet.arrived for row in _found(arrived)]
    ids = [row.event_id for row in found]
    assert ids == sorted(set(ids)), f"a browse of number {number} gave {ids}"
    return found


def _found(arrived: Arrived) -> list[Found]:
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
    """Publishes one thing after the other, each again until it is confirmed (SEM X3)."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        compose: Compose,
        *,
        publishes: int = 12,
        each_s: float = 0.2,
    ) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.sequence = 0
        self._compose = compose
        self._publishes = publishes
        self._each_s = each_s
        """Time between two publishes, on average."""
        self._first_lives: dict[int, int] = {}

    @property
    def is_done(self) -> bool:
        return self.sequence >= self._publishes

    async def run(self) -> None:
        while not self.is_done:
            await pass_time(self.world.random.expovariate(1 / self._each_s))
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
    """A seat at a durable, or a reader of a queue: settles what comes in every way there is."""

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
        self.look: Callable[[Arrived], None] = lambda _: None
        """What else is to be seen of a delivery."""
        self._quiet = quiet
        self._window = window
        self._selector = selector
        self._settles_apart = settles_apart
        """Whether parts of a delivery are settled apart: one, some, all before."""
        self._in_order = in_order
        """Whether an acknowledgement settles all before, but what was given back."""
        self._is_done = is_done
        self._subscription = 0
        self._outlet = Outlet("")

    async def run(self) -> None:
        """Until all is done, or for ever."""
        await self._come()
        while True:
            try:
                arrived = await self._outlet.take()
            except TimeoutError:
                if await self._is_done():
                    return
                if self.receipts.comes_again:
                    await self._leave()
                    await self._come()
                continue
            self.look(arrived)
            self.receipts.delivered(arrived.ids, arrived.datas, arrived.counts)
            self.world.note(f"delivered {self.receipts.name} {arrived.ids} {arrived.counts}")
            await pass_time(self.world.random.expovariate(50))
            await self.settle(arrived.ids)
            if not self._quiet and self.world.random.random() < 0.05:
                await self._leave()
                await self._come()

    async def _come(self) -> None:
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

    async def _leave(self) -> None:
        """With what is still held."""
        held = self._outlet.held
        atleast = self.receipts.going_back(held)
        subscriptions, number = self.world.realm.subscriptions, self._subscription
        await answer(lambda reply: subscriptions.detach(number, reply))
        self.receipts.went_back(atleast)
        self.world.note(f"left {self.receipts.name} with {held}")

    async def settle(self, ids: list[int]) -> None:
        random = self.world.random
        if self._in_order:
            await self._settle_in_order(ids)
            return
        back = self.receipts.counted and not self._quiet and random.random() < 0.2
        if not self._settles_apart:
            await (self._roll_back(ids) if back else self._ack(ids))
            return
        returned = random.sample(ids, random.randint(1, len(ids))) if back else []
        kept = [event_id for event_id in ids if event_id not in returned]
        if returned:
            await self._roll_back(sorted(returned))
        if kept:
            way = random.choice((self._ack_each, self._ack, self._ack_previous))
            await way(kept)

    async def _settle_in_order(self, ids: list[int]) -> None:
        """An exclusive durable: what is given back is covered by no later acknowledgement, and
        comes with the next subscription."""
        random = self.world.random
        back = not self._quiet and random.random() < 0.2
        returned = random.sample(ids, random.randint(1, len(ids))) if back else []
        if returned:
            self.receipts.comes_again.update(returned)
            await self._roll_back(sorted(returned))
        if kept := [event_id for event_id in ids if event_id not in returned]:
            await self._ack(kept)

    async def _ack_each(self, ids: list[int]) -> None:
        for event_id in ids:
            await self._ack([event_id])

    async def _ack(self, ids: list[int], *, previous: bool = False) -> None:
        world, receipts = self.world, self.receipts
        receipts.asking(ids, world.now_us)
        await self._ask(ids, roll_back=False, previous=previous)
        receipts.answered(ids, world.now_us)
        world.note(f"acked {receipts.name} {ids}")

    async def _ack_previous(self, ids: list[int]) -> None:
        """What comes before the answer may have been acknowledged with them, and before the power
        cut that takes the answer away."""
        try:
            await self._ack(ids, previous=True)
        finally:
            lower = [event_id for event_id in self._outlet.held if event_id <= ids[-1]]
            self.receipts.asking(lower, self.world.now_us)

    async def _roll_back(self, ids: list[int]) -> None:
        atleast = self.receipts.going_back(ids)
        await self._ask(ids, roll_back=True)
        self.receipts.went_back(atleast)
        self.world.note(f"rolled back {self.receipts.name} {ids}")

    async def _ask(
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
