"""Durables that seek back and forward while they are consumed (SEM D20): all stored events from the
last position on are acknowledged after the last seek, no earlier event is delivered, and events
received before a seek are not settled after it, however often the realm fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
    FromTime,
)
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_testing.loop import pass_time
from tests.sim.clients import Arrived, Outlet, Publisher, answer, stored
from tests.sim.movers import MovedSeat, Mover
from tests.sim.programs import Cast
from tests.sim.promises import Ledger
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

ODD = "odd = 1"
DURABLES = {
    "team": ("shared", ""),
    "odd": ("shared", ODD),
    "line": ("serial", ""),
    "one": ("exclusive", ""),
}


class Position:
    """The position of one durable, as far as clients know."""

    def __init__(self) -> None:
        self.first = 0
        self.moves = 0
        """Number of requested seeks."""
        self.last = 0
        """The newest of them that was, or may have been, done."""
        self.is_moving = False
        """Whether a seek was requested and not answered yet."""
        self.is_answered = True
        """Whether all seeks were answered; an unanswered one may have been done."""
        self.settled: set[int] = set()
        """Ids acknowledged since the last seek was requested, with an answer."""
        self.requested: Counter[int] = Counter()
        """Ids acknowledged since, without an answer yet."""

    @property
    def is_certain(self) -> bool:
        return self.is_answered and not self.is_moving

    def begin_life(self) -> None:
        """Note the start of a life: open requests will never be answered."""
        if self.is_moving:
            self.is_moving = self.is_answered = False

    def check_delivered(self, ids: list[int]) -> None:
        early = [event_id for event_id in ids if event_id < self.first]
        assert not early, f"{early} came, and the durable goes on from {self.first}"


class SeekOutlet(Outlet):
    """Returns the events that the realm takes back, and notes the seek before each delivery."""

    def __init__(
        self,
        session: str,
        on_delivery: Callable[[list[int]], None],
        on_recall: Callable[[], None],
    ) -> None:
        super().__init__(session)
        self._on_delivery = on_delivery
        self._on_recall = on_recall

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        super().deliver(rows, redeliveries)
        try:
            self._on_delivery(self.arrived[-1].ids)
        except AssertionError as error:  # the realm survives errors raised here
            self._complain(str(error))

    def recall(self, spans: Spans) -> None:
        recalled = IdSet(spans)
        waiting = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        self.arrived = []
        for delivery in waiting:
            rows = [row for row, event_id in enumerate(delivery.ids) if event_id not in recalled]
            if rows:
                ids, datas = (
                    [delivery.ids[row] for row in rows],
                    [delivery.datas[row] for row in rows],
                )
                self.arrived.append(Arrived(ids, datas, delivery.counts, batch=delivery.batch))
                self.inbox.put_nowait(self.arrived[-1])
        self._on_recall()


class Client:
    """A client with a seat at a durable that settles its events, in time or not."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        position: Position,
        is_done: Callable[[], Awaitable[bool]],
        *,
        quiet: bool,
    ) -> None:
        self._world = world
        self._ledger = ledger
        self._name = name
        self._position = position
        self._is_done = is_done
        self._quiet = quiet
        self._kind = DURABLES[name][0]
        self._outlet = Outlet("")
        self._subscription = 0
        self._seek_before: dict[int, int | None] = {}
        """The seek before the last delivery of each event here; None: during a seek."""
        self._is_busy = False
        self._recalls = 0
        """Number of unconfirmed recalls."""

    async def run(self) -> None:
        await self._attach()
        while True:
            try:
                arrived = await self._outlet.take()
            except TimeoutError:
                if await self._is_done():
                    return
                if self._kind == "exclusive" and self._world.random.random() < 0.3:
                    await self._reattach()
                continue
            self._is_busy = True
            for event_id, data in zip(arrived.ids, arrived.datas, strict=True):
                self._ledger.check_content(event_id, data)
            await pass_time(self._world.random.expovariate(20))
            await self.settle(arrived.ids)
            self._is_busy = False
            self._confirm()
            if not self._quiet and self._world.random.random() < 0.05:
                await self._reattach()

    async def _attach(self) -> None:
        world = self._world
        self._seek_before, self._recalls = {}, 0
        self._outlet = SeekOutlet(f"{self._name}-{world.sessions}", self._on_delivery, self._recall)
        opened = await world.realm.subscriptions.attach(
            ChannelId(world.numbers["tape"]),
            self._name,
            self._outlet,
            window=None if self._kind == "exclusive" else world.random.randint(1, 5),
            pull=False,
        )
        self._subscription = opened.number

    async def _reattach(self) -> None:
        subscriptions, number = self._world.realm.subscriptions, self._subscription
        await answer(lambda reply: subscriptions.detach(number, reply))
        await self._attach()

    def _on_delivery(self, ids: list[int]) -> None:
        position = self._position
        is_certain = position.is_certain and not self._world.is_dark
        if is_certain:
            position.check_delivered(ids)
        self._seek_before.update(dict.fromkeys(ids, position.moves if is_certain else None))

    def _recall(self) -> None:
        self._recalls += 1
        if not self._is_busy:  # while it works it may settle the events late before it confirms
            self._confirm()

    def _confirm(self) -> None:
        for _ in range(self._recalls):
            self._world.realm.subscriptions.recall_seen(self._subscription)
        self._recalls = 0

    async def settle(self, ids: list[int]) -> None:
        position, is_certain, last = self._position, self._position.is_certain, self._position.last
        settled, requested = position.settled, position.requested
        seek_before = {event_id: self._seek_before[event_id] for event_id in ids}
        rolls_back = not self._quiet and self._world.random.random() < 0.15
        if not rolls_back:
            requested.update(ids)
        try:
            await self._request_settle(ids, roll_back=rolls_back)
        except IllegalState as error:
            self._world.note(f"too late for {self._name} {ids}")
            requested.subtract({} if rolls_back else Counter(ids))
            is_unmoved = is_certain and position.is_certain and last == position.last
            if is_unmoved and all(
                seek is not None and seek >= last for seek in seek_before.values()
            ):
                raise AssertionError(f"{ids} came after the last seek, and were refused") from error
            return
        self._world.note(f"settled {self._name} {ids} {rolls_back}")
        if rolls_back:
            return
        requested.subtract(Counter(ids))
        settled.update(ids)
        if is_certain and not self._world.is_dark:
            late = [i for i, seek in seek_before.items() if seek is not None and seek < last]
            assert not late, f"{late} came before a seek, and were settled after it"

    async def _request_settle(self, ids: list[int], *, roll_back: bool) -> None:
        spans = IdSet.from_ids(sorted(ids)).spans
        settle, number = self._world.realm.subscriptions.settle, self._subscription
        await answer(
            lambda reply: settle(number, spans, reply, roll_back=roll_back, previous=False)
        )


class Sought:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.seed}/sought")
        type = world.random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type,
            retain_consumed=True,
            storage=spindles(type, world.random.choice((0, 9))),
        )
        self._ledger = Ledger("tape")
        self._publisher = Publisher(world, self._ledger, "p", compose=_events, publishes=15)
        self._positions = {name: Position() for name in DURABLES}
        self._n = 0
        self._mover = Mover(world, self._ledger, "far")
        seat = MovedSeat(world, self._mover, self._is_far_done)
        self._cast = Cast(world, [self._mover.program, seat.program])

    async def prepare(self) -> None:
        await self._world.create("tape", self._definition)
        await self._world.create_durable("tape", "far", "shared")
        for name, (kind, selector) in DURABLES.items():
            await self._world.create_durable("tape", name, kind, selector)
            self._positions[name].begin_life()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        group.create_task(self._publisher.run())
        for name, (kind, _) in DURABLES.items():
            group.create_task(self._move(name, quiet=quiet))
            for _ in range(1 if kind == "exclusive" else 2):
                client = Client(
                    self._world,
                    self._ledger,
                    name,
                    position=self._positions[name],
                    is_done=partial(self._is_done, name),
                    quiet=quiet,
                )
                group.create_task(client.run())
        self._cast.start(group, quiet=quiet)

    async def _is_far_done(self) -> bool:
        if not (self._publisher.is_done and self._mover.program.is_done):
            return False
        try:
            return await self._world.is_consumed("tape", "far")
        except PenstockError:  # the realm has ended, or has not started yet
            return False

    async def _is_done(self, name: str) -> bool:
        if not (self._publisher.is_done and self._positions[name].is_certain):
            return False
        return await self._world.is_consumed("tape", name)

    # --- seeking -------------------------------------------------------------------------

    async def _move(self, name: str, *, quiet: bool) -> None:
        """Seek again and again; in a quiet life only while the position is unknown."""
        position = self._positions[name]
        while not quiet or not position.is_certain:
            await pass_time(self._random.expovariate(1.5 if position.is_certain else 20))
            await self._seek(name, position, self._draw())

    def _draw(self) -> AnyStart:
        world, random = self._world, self._random
        newest_id = max(self._ledger.ids, default=0)
        ago = timedelta(seconds=random.uniform(0, 5)) // timedelta(microseconds=1)
        return random.choice(
            (
                FromEarliest(),
                FromLatest(),
                FromId(random.randint(0, newest_id)),
                FromId(random.randint(0, newest_id)),
                FromId(newest_id + 1_000),
                FromTime(world.clock.now_us() - ago),
            )
        )

    async def _seek(self, name: str, position: Position, start: AnyStart) -> None:
        seeking, number = self._world.realm.subscriptions.seeking, self._world.numbers["tape"]
        settled, requested, last = position.settled, position.requested, position.last
        position.moves += 1
        position.last, position.is_moving = position.moves, True
        position.settled, position.requested = set(), Counter()
        self._n += 1
        try:
            outcome = await seeking.seek(ChannelId(number), name, start, key=f"seek {self._n}")
        except (IllegalState, InvalidArgument):
            assert isinstance(start, FromId), "only an id can be one of nothing"
            assert start.event_id not in self._ledger.ids, f"{start.event_id} is there, and refused"
            settled |= position.settled
            requested.update(position.requested)  # some of it is not answered yet
            position.settled, position.requested = settled, requested
            position.last, position.is_moving = last, False
            return
        except PenstockError:
            position.is_moving = position.is_answered = False
            return
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: a realm without power sends no answers
        position.first, position.is_moving, position.is_answered = outcome.position, False, True
        self._world.note(f"moved {name} {outcome.position} {outcome.again} {outcome.skipped}")
        if isinstance(start, FromId):
            assert outcome.position == start.event_id
        if isinstance(start, FromEarliest):
            assert outcome.position == 0, "all is stored"

    # --- the quiet end -------------------------------------------------------------------

    async def check(self) -> None:
        """Check that stored events from the last position on were acknowledged after it."""
        rows = await stored(self._world, "tape")
        self._ledger.check_complete([(row.event_id, row.data) for row in rows])
        for name, (_, selector) in DURABLES.items():
            position = self._positions[name]
            expected = [row.event_id for row in rows if not selector or _is_odd(row.data)]
            _check_settled(
                name, position.first, expected, settled=position.settled | set(+position.requested)
            )
        assert self._mover.is_answered
        ids = [row.event_id for row in rows]
        _check_settled("far", self._mover.first, ids, settled=set(+self._mover.requested))


def _check_settled(name: str, first: int, expected: list[int], settled: set[int]) -> None:
    missed = [event_id for event_id in expected if event_id >= first and event_id not in settled]
    assert not missed, f"{name} goes on from {first}, and has not settled {missed}"


def _events(draw: Random, label: str) -> list[Event]:
    return [
        Event(f"{label}/{i}".encode(), properties={"odd": i % 2}) for i in range(draw.randint(1, 4))
    ]


def _is_odd(data: bytes) -> bool:
    return int(data.rsplit(b"/", 1)[1]) % 2 == 1
