"""Resources granted for a time, while the clock jumps: the place of a listener as long as events
wait for it, the seat of a client as long as it sends, the memory of transactions and producers for
a day (SEM J5, D13, X2, X3). None is taken back too early, and none is kept for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NoSuchTransaction, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.writer.transactions import StorePart
from penstock_testing.loop import pass_time
from penstock_testing.network import MACHINE
from tests.sim.clients import Outlet, Publisher, answer, body
from tests.sim.promises import Ledger

if TYPE_CHECKING:
    from tests.sim.world import World

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
PLACE_S = 60
"""Time that the realm waits for a listener without a connection."""
SPEAKS_S, NOTICED_S = 45.0, 2.0
"""The longest silence of a connection, and the time the realm needs to notice it."""
BOOKINGS = 6


class Memory:
    """The end of a transaction or publish that the realm has to remember."""

    def __init__(self) -> None:
        self.requested_us = 1 << 62
        """The world's ``passed_us`` when the end was requested; it was not earlier."""
        self.span: Span | None = None
        self.is_answered = False


class Lent:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.seed}/lent")
        type = world.random.choice(("persistent", "mixed"))
        self._heard = Definition(type=type, engine="jms")
        self._news = Ledger("heard")
        self._publisher = Publisher(world, self._news, "p", compose=_events, publishes=20)
        self._listener = AbsentListener(world, self._news, self._random)
        self._committed: dict[str, Memory] = {}
        self._published: dict[str, Memory] = {}
        self._n = 0

    async def prepare(self) -> None:
        await self._world.create("heard", self._heard)
        await self._world.create("booked", Definition(type="persistent"))
        await self._world.create_durable("booked", "desk")
        self._listener = AbsentListener(self._world, self._news, self._random)
        await self._check_memories()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        group.create_task(self._publisher.run())
        group.create_task(self._listener.run(lambda: quiet and self._publisher.is_done))
        group.create_task(self._book())
        if self._world.may_jump and not quiet:
            group.create_task(self._set_clock_far())

    async def _set_clock_far(self) -> None:
        """Set the clock by hours again and again, so that a day passes within the lives."""
        while True:
            await pass_time(self._random.expovariate(1 / 2))
            self._world.set_clock(int(self._random.uniform(-6, 13) * HOUR_S * 1_000_000))

    # --- memory that lasts a day ---------------------------------------------------------

    async def _book(self) -> None:
        while self._n < BOOKINGS:
            await pass_time(self._random.expovariate(2))
            name = f"booking-{self._n}"
            try:
                await self._commit(name)
                await self._publish(f"booker-{self._n}")
                await self._check_memories()
            except PenstockError:
                continue
            self._n += 1

    async def _commit(self, name: str) -> None:
        world, memory = self._world, self._committed.setdefault(name, Memory())
        if memory.is_answered:
            return
        transactions, number = world.realm.transactions, world.numbers["booked"]
        try:
            state = (await transactions.describe(name)).state
        except NoSuchTransaction:
            await transactions.begin(name, [number])
            state = "open"
        if state == "open":
            memory.requested_us = min(memory.requested_us, world.passed_us)
            part = StorePart(number, [body([Event(name.encode())])])
            await world.gate.published(
                answer(lambda reply: transactions.commit(name, [part], reply))
            )
        memory.is_answered = True
        world.note(f"committed {name}")

    async def _publish(self, producer: str) -> None:
        """Publish once; repeat under the same identity as long as it must be recognized as the
        same."""
        world = self._world
        memory, number = self._published.setdefault(producer, Memory()), world.numbers["booked"]
        bodies = [body([Event(producer.encode())])]
        requested_us, is_retry = world.passed_us, memory.requested_us < 1 << 62
        if not memory.is_answered:
            memory.requested_us = min(memory.requested_us, requested_us)
        span: Span = await world.gate.published(
            answer(
                lambda reply: world.realm.publish(
                    ChannelId(number), bodies, producer, sequence=1, reply=reply
                )
            ),
            is_retry=is_retry,
        )
        assert memory.span in (None, span), f"{producer} was stored as {memory.span}, and as {span}"
        memory.span, memory.is_answered = span, True
        world.note(f"confirmed {producer} {span}")

    async def _check_memories(self) -> None:
        """Check that all ends are remembered for a day of the realm's time, however the clock
        jumps."""
        for name, memory in self._committed.items():
            if memory.is_answered and self._must_be_known(memory):
                try:
                    state = (await self._world.realm.transactions.describe(name)).state
                except NoSuchTransaction as error:
                    raise AssertionError(f"{name} was forgotten before a day was over") from error
                assert state == "committed", f"{name} is {state}"
        for producer, memory in self._published.items():
            if memory.is_answered and self._must_be_known(memory):
                await self._publish(producer)

    def _must_be_known(self, memory: Memory) -> bool:
        return self._world.passed_us - memory.requested_us < (DAY_S - 60) * 1_000_000

    # --- the quiet end -------------------------------------------------------------------

    async def check(self) -> None:
        await self._check_memories()
        missed = self._listener.missed()
        assert not missed, f"{missed} were published while the listener had its place"
        await self._check_seat()
        if self._world.may_jump:
            await self._check_place()
            await self._check_memory()

    async def _check_place(self) -> None:
        """Check that a listener's place is kept for exactly the promised time of the realm's
        clock."""
        world = self._world
        world.restore_clock()
        assert await self._waiting() == 0, "the listener is here, and something waits for it"
        self._listener.lose()
        number = world.numbers["heard"]
        await answer(
            lambda reply: world.realm.publish(
                ChannelId(number), [body([Event(b"x")])], "last", sequence=1, reply=reply
            )
        )
        world.set_clock(-HOUR_S * 1_000_000)
        await pass_time(2 * PLACE_S)
        assert await self._waiting() == 1, "the clock was set back, and a place was given up"
        world.set_clock((HOUR_S - PLACE_S - 10) * 1_000_000)
        await pass_time(1)
        assert await self._waiting() == 1, "a place was given up too early"
        world.set_clock((PLACE_S + 10) * 1_000_000)
        await pass_time(1)
        assert await self._waiting() == 0, "a place was kept too long"

    async def _waiting(self) -> int:
        return (await self._world.realm.describe_channel("heard")).events

    async def _check_memory(self) -> None:
        """Check that ends are forgotten after a day, so that the memory does not grow for ever."""
        world = self._world
        world.restore_clock()
        world.set_clock((DAY_S + HOUR_S) * 1_000_000)
        self._committed["the last"], self._published["the last"] = Memory(), Memory()
        await self._commit("the last")
        await self._publish("the last")
        for name in self._committed.keys() - {"the last"}:
            try:
                await world.realm.transactions.describe(name)
            except NoSuchTransaction:
                continue
            raise AssertionError(f"{name} is known after more than a day")
        producers = world.realm.directory.channels[world.numbers["booked"]].state.producers
        assert len(producers) == 1, f"{len(producers)} producers are remembered, and one was here"

    async def _check_seat(self) -> None:
        """Check that a seat belongs to its client while the client sends, and goes back after a
        long silence, whatever the clock shows."""
        world = self._world
        context = copy_context()
        context.run(MACHINE.set, "lodger")
        lodging = world.loop.create_task(self._lodge(), context=context)
        try:
            for by_s in (0, -HOUR_S, HOUR_S, HOUR_S, -HOUR_S):
                if world.may_jump:
                    world.set_clock(by_s * 1_000_000)
                await pass_time(SPEAKS_S)
                assert await self._held() == 1, "a client speaks, and its seat was taken away"
            world.network.power_off("lodger")
            world.loop.kill("lodger")
            if world.may_jump:
                world.set_clock(-HOUR_S * 1_000_000)
            await pass_time(SPEAKS_S + NOTICED_S)
            assert await self._held() == 0, "a client is silent, and keeps its seat"
        finally:
            lodging.cancel()
            await asyncio.wait([lodging])
            world.network.power_on("lodger")
        assert lodging.cancelled() or lodging.exception() is None

    async def _lodge(self) -> None:
        """Take one event and keep it."""
        session = await aio.connect(self._world.url)
        channel = await session.channels.get("booked")
        seat = (await channel.durables.get("desk")).subscribe(window=1)
        await seat.open()
        await seat.next_batch()
        await asyncio.Event().wait()

    async def _held(self) -> int:
        number = self._world.numbers["booked"]
        return (await self._world.realm.subscriptions.durable(ChannelId(number), "desk")).in_flight


class AbsentListener:
    """A listener that is cut off again and again, in one life of the realm (SEM J5)."""

    def __init__(self, world: World, ledger: Ledger, random: Random) -> None:
        self._world = world
        self._ledger = ledger
        self._random = random
        self._subscription = 0
        self._outlet = Outlet("listener")
        self._first = 1 << 62
        """The first id that it must receive in this life."""
        self._received: set[int] = set()
        self._last = -1
        self._opened_at = 0
        """The next id when it last subscribed."""
        self._excused: set[int] = set()
        """Ids published while the realm did not have to wait for the listener."""

    async def run(self, is_done: Callable[[], bool]) -> None:
        await self._attach()
        while True:
            await pass_time(self._random.expovariate(5))
            self._receive()
            if is_done() and not self.missed():
                return
            if self._random.random() < 0.3:
                lost_us = self.lose()
                await pass_time(self._random.expovariate(2))
                await self._attach()
                if self._world.clock.now_us() - lost_us >= (PLACE_S - 1) * 1_000_000:
                    self._excused.update(range(self._last + 1, self._opened_at))

    def lose(self) -> int:
        """Lose the connection. Return the realm's time in µs."""
        self._receive()
        now_us = self._world.clock.now_us()
        self._world.realm.subscriptions.lose(self._subscription)
        return now_us

    async def _attach(self) -> None:
        self._outlet = Outlet("listener")
        world = self._world
        number = world.numbers["heard"]
        opened = await world.realm.subscriptions.subscribe(
            ChannelId(number), FromEarliest(), self._outlet, credit=1 << 20, place="its place"
        )
        self._subscription = opened.number
        self._first = min(self._first, opened.first_id)
        self._opened_at = world.realm.directory.channels[number].state.next_id

    def _receive(self) -> None:
        while not self._outlet.inbox.empty():
            arrived = self._outlet.inbox.get_nowait()
            for event_id, data in zip(arrived.ids, arrived.datas, strict=True):
                self._ledger.check_content(event_id, data)
                assert event_id > self._last, f"{event_id} came after {self._last}"
                self._last = event_id
                self._received.add(event_id)

    def missed(self) -> list[int]:
        """Return the ids that the listener should have received and has not."""
        expected = {event_id for event_id in self._ledger.ids if event_id >= self._first}
        return sorted(expected - self._received - self._excused)


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 3))]
