"""Durables that go back and forward while they are consumed (SEM D20): all that is stored from the
last place on is acknowledged after that, nothing from before it comes, and what a client got before
a seek it does not settle afterwards, however often the realm dies."""

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


class Place:
    """From where one durable goes on, as far as anybody was told."""

    def __init__(self) -> None:
        self.first = 0
        self.moves = 0
        """Seeks that were asked for."""
        self.last = 0
        """The newest of them that was done, or may have been."""
        self.is_moving = False
        """One was asked for and is not answered."""
        self.is_known = True
        """Else one was never answered: it may have been done."""
        self.settled: set[int] = set()
        """Acknowledged since the last seek was asked for, and answered."""
        self.asked: Counter[int] = Counter()
        """Acknowledged since, and not answered, or not yet."""

    @property
    def is_certain(self) -> bool:
        return self.is_known and not self.is_moving

    def begun(self) -> None:
        """A life begins: what was not answered never will be."""
        if self.is_moving:
            self.is_moving = self.is_known = False

    def came(self, ids: list[int]) -> None:
        early = [event_id for event_id in ids if event_id < self.first]
        assert not early, f"{early} came, and the durable goes on from {self.first}"


class Moved(Outlet):
    """Gives up what the realm takes back, and notes after which seek something came."""

    def __init__(
        self,
        session: str,
        came: Callable[[list[int]], None],
        taken_back: Callable[[], None],
    ) -> None:
        super().__init__(session)
        self._came = came
        self._taken_back = taken_back

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        super().deliver(rows, redeliveries)
        try:
            self._came(self.arrived[-1].ids)
        except AssertionError as error:  # the realm survives what is raised here
            self._complain(str(error))

    def recall(self, spans: Spans) -> None:
        back = IdSet(spans)
        waiting = [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]
        self.arrived = []
        for each in waiting:
            rows = [row for row, event_id in enumerate(each.ids) if event_id not in back]
            if rows:
                ids, datas = [each.ids[row] for row in rows], [each.datas[row] for row in rows]
                self.arrived.append(Arrived(ids, datas, each.counts, batch=each.batch))
                self.inbox.put_nowait(self.arrived[-1])
        self._taken_back()


class Client:
    """Has a seat at a durable, and settles what it gets, in time or not."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        name: str,
        place: Place,
        is_done: Callable[[], Awaitable[bool]],
        *,
        quiet: bool,
    ) -> None:
        self._world = world
        self._ledger = ledger
        self._name = name
        self._place = place
        self._is_done = is_done
        self._quiet = quiet
        self._kind = DURABLES[name][0]
        self._outlet = Outlet("")
        self._subscription = 0
        self._after: dict[int, int | None] = {}
        """After which seek each event came here the last time; None: around one."""
        self._is_busy = False
        self._recalls = 0
        """Recalls it has not confirmed."""

    async def run(self) -> None:
        await self._come()
        while True:
            try:
                arrived = await self._outlet.take()
            except TimeoutError:
                if await self._is_done():
                    return
                if self._kind == "exclusive" and self._world.random.random() < 0.3:
                    await self._come_again()
                continue
            self._is_busy = True
            for event_id, data in zip(arrived.ids, arrived.datas, strict=True):
                self._ledger.is_content(event_id, data)
            await pass_time(self._world.random.expovariate(20))
            await self.settle(arrived.ids)
            self._is_busy = False
            self._confirm()
            if not self._quiet and self._world.random.random() < 0.05:
                await self._come_again()

    async def _come(self) -> None:
        world = self._world
        self._after, self._recalls = {}, 0
        self._outlet = Moved(f"{self._name}-{world.sessions}", self._came, self._taken_back)
        opened = await world.realm.subscriptions.attach(
            ChannelId(world.numbers["tape"]),
            self._name,
            self._outlet,
            window=None if self._kind == "exclusive" else world.random.randint(1, 5),
            pull=False,
        )
        self._subscription = opened.number

    async def _come_again(self) -> None:
        subscriptions, number = self._world.realm.subscriptions, self._subscription
        await answer(lambda reply: subscriptions.detach(number, reply))
        await self._come()

    def _came(self, ids: list[int]) -> None:
        place = self._place
        is_certain = place.is_certain and not self._world.is_dark
        if is_certain:
            place.came(ids)
        self._after.update(dict.fromkeys(ids, place.moves if is_certain else None))

    def _taken_back(self) -> None:
        self._recalls += 1
        if not self._is_busy:  # else it may settle late first
            self._confirm()

    def _confirm(self) -> None:
        for _ in range(self._recalls):
            self._world.realm.subscriptions.recall_seen(self._subscription)
        self._recalls = 0

    async def settle(self, ids: list[int]) -> None:
        place, is_certain, last = self._place, self._place.is_certain, self._place.last
        settled, asked = place.settled, place.asked
        after = {event_id: self._after[event_id] for event_id in ids}
        back = not self._quiet and self._world.random.random() < 0.15
        if not back:
            asked.update(ids)
        try:
            await self._ask(ids, roll_back=back)
        except IllegalState as error:
            self._world.note(f"too late for {self._name} {ids}")
            asked.subtract({} if back else Counter(ids))
            is_own = is_certain and place.is_certain and last == place.last
            if is_own and all(each is not None and each >= last for each in after.values()):
                raise AssertionError(f"{ids} came after the last seek, and were refused") from error
            return
        self._world.note(f"settled {self._name} {ids} {back}")
        if back:
            return
        asked.subtract(Counter(ids))
        settled.update(ids)
        if is_certain and not self._world.is_dark:
            late = [i for i, each in after.items() if each is not None and each < last]
            assert not late, f"{late} came before a seek, and were settled after it"

    async def _ask(self, ids: list[int], *, roll_back: bool) -> None:
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
        self._places = {name: Place() for name in DURABLES}
        self._n = 0
        self._mover = Mover(world, self._ledger, "far")
        seat = MovedSeat(world, self._mover, self._is_far_done)
        self._cast = Cast(world, [self._mover.program, seat.program])

    async def prepare(self) -> None:
        await self._world.create("tape", self._definition)
        await self._world.create_durable("tape", "far", "shared")
        for name, (kind, selector) in DURABLES.items():
            await self._world.create_durable("tape", name, kind, selector)
            self._places[name].begun()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        group.create_task(self._publisher.run())
        for name, (kind, _) in DURABLES.items():
            group.create_task(self._move(name, quiet=quiet))
            for _ in range(1 if kind == "exclusive" else 2):
                client = Client(
                    self._world,
                    self._ledger,
                    name,
                    place=self._places[name],
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
        except PenstockError:  # the realm is gone, or is not there yet
            return False

    async def _is_done(self, name: str) -> bool:
        if not (self._publisher.is_done and self._places[name].is_certain):
            return False
        return await self._world.is_consumed("tape", name)

    # --- seeking -------------------------------------------------------------------------

    async def _move(self, name: str, *, quiet: bool) -> None:
        """Go back and forward again and again; in a quiet life only if nobody knows the place."""
        place = self._places[name]
        while not quiet or not place.is_certain:
            await pass_time(self._random.expovariate(1.5 if place.is_certain else 20))
            await self._seek(name, place, self._draw())

    def _draw(self) -> AnyStart:
        world, random = self._world, self._random
        known = max(self._ledger.ids, default=0)
        ago = timedelta(seconds=random.uniform(0, 5)) // timedelta(microseconds=1)
        return random.choice(
            (
                FromEarliest(),
                FromLatest(),
                FromId(random.randint(0, known)),
                FromId(random.randint(0, known)),
                FromId(known + 1_000),
                FromTime(world.clock.now_us() - ago),
            )
        )

    async def _seek(self, name: str, place: Place, to: AnyStart) -> None:
        seeking, number = self._world.realm.subscriptions.seeking, self._world.numbers["tape"]
        settled, asked, last = place.settled, place.asked, place.last
        place.moves += 1
        place.last, place.is_moving = place.moves, True
        place.settled, place.asked = set(), Counter()
        self._n += 1
        try:
            outcome = await seeking.seek(ChannelId(number), name, to, key=f"seek {self._n}")
        except (IllegalState, InvalidArgument):
            assert isinstance(to, FromId), "only an id can be one of nothing"
            assert to.event_id not in self._ledger.ids, f"{to.event_id} is there, and refused"
            settled |= place.settled
            asked.update(place.asked)  # some of it is not answered yet
            place.settled, place.asked = settled, asked
            place.last, place.is_moving = last, False
            return
        except PenstockError:
            place.is_moving = place.is_known = False
            return
        if self._world.is_dark:
            await asyncio.Event().wait()  # for ever: nobody hears what it says without power
        place.first, place.is_moving, place.is_known = outcome.position, False, True
        self._world.note(f"moved {name} {outcome.position} {outcome.again} {outcome.skipped}")
        if isinstance(to, FromId):
            assert outcome.position == to.event_id
        if isinstance(to, FromEarliest):
            assert outcome.position == 0, "all is stored"

    # --- the quiet end -------------------------------------------------------------------

    async def check(self) -> None:
        """What is stored from the last place on was acknowledged after it."""
        found = await stored(self._world, "tape")
        self._ledger.holds([(row.event_id, row.data) for row in found])
        for name, (_, selector) in DURABLES.items():
            place = self._places[name]
            wanted = [row.event_id for row in found if not selector or _is_odd(row.data)]
            _is_settled(name, place.first, wanted, done=place.settled | set(+place.asked))
        assert self._mover.is_known
        ids = [row.event_id for row in found]
        _is_settled("far", self._mover.first, ids, done=set(+self._mover.asked))


def _is_settled(name: str, first: int, wanted: list[int], done: set[int]) -> None:
    missed = [event_id for event_id in wanted if event_id >= first and event_id not in done]
    assert not missed, f"{name} goes on from {first}, and has not settled {missed}"


def _events(draw: Random, label: str) -> list[Event]:
    return [
        Event(f"{label}/{i}".encode(), properties={"odd": i % 2}) for i in range(draw.randint(1, 4))
    ]


def _is_odd(data: bytes) -> bool:
    return int(data.rsplit(b"/", 1)[1]) % 2 == 1
