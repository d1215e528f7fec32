"""A channel of the JMS engine over a network that breaks: a subscriber that waits for an event gets
it, and then the event is removed (SEM J2, J3, J5-J7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock import aio
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_testing.loop import pass_time
from tests.sim.consumers import Seat, datas_of, unrequested
from tests.sim.programs import Cast, Program, Steady
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld

PLACES_S = 120.0
"""After this time the realm has noticed lost listeners and no longer waits for them."""
WINDOW_US = 60_000_000
"""Time in µs that the realm keeps events for a disconnected listener: ``event_timeout`` (SEM
J5)."""
KINDS = {"alone": ("exclusive", 1), "team": ("shared", 2), "row": ("serial", 2)}


class Jms:
    def __init__(self, world: WiredWorld) -> None:
        random = world.random
        self._world = world
        type = world.draw_type(("persistent", "mixed"))
        self._definition = Definition(
            type=type,
            engine="jms",
            dead_event_store="never",
            storage=spindles(type, random.choice((0, 10))),
        )
        self._ledger = Ledger("news")
        self._publishers = [
            Steady(world, self._ledger, name, compose=_events) for name in ("p", "q")
        ]
        names = random.sample(sorted(KINDS), 2)
        self._receipts = {
            name: Receipts(name, self._ledger, counted=name != "alone", remote=True)
            for name in names
        }
        self._listeners = [
            Listener(world, self._ledger, n, is_done=self._is_received) for n in range(2)
        ]
        programs = [publisher.program for publisher in self._publishers]
        programs += [listener.program for listener in self._listeners]
        for name in names:
            kind, seats = KINDS[name]
            for number in range(seats):
                is_done = partial(self._is_consumed, name)
                seat = Seat(world, self._receipts[name], kind, is_done=is_done, number=number)
                programs.append(seat.program)
        self._cast = Cast(world, programs)

    async def prepare(self) -> None:
        await self._world.create("never", Definition(type="persistent"))
        await self._world.create("news", self._definition)
        for name in self._receipts:
            await self._world.create_durable("news", name, KINDS[name][0])
        rows = await self._world.stored_on("news")
        for event_id, data in rows:
            self._ledger.check_content(event_id, data)
        await self._check_kept({event_id for event_id, _ in rows})
        self._check_listeners()

    async def _check_kept(self, stored_ids: set[int]) -> None:
        """Check that unacknowledged events of a durable are kept (SEM J2, J6)."""
        for name, receipts in self._receipts.items():
            lost = set(unrequested(receipts, self._ledger.ids)) - stored_ids
            assert not lost, f"{name} waits for {sorted(lost)}, and they are gone"

    def _check_listeners(self) -> None:
        """Check that a listener that is cut off for a while misses nothing (SEM J5)."""
        for listener in self._listeners:
            missed = listener.missed()
            assert not missed, f"{listener.program.name} has missed {missed}"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        self._cast.start(group, quiet=quiet)

    @property
    def _is_published(self) -> bool:
        return all(publisher.is_done for publisher in self._publishers)

    def _is_received(self, listener: Listener) -> bool:
        return self._is_published and self._world.is_quiet and not listener.missed_last()

    async def _is_consumed(self, durable: str) -> bool:
        try:
            return self._is_published and await self._world.is_consumed("news", durable)
        except PenstockError:  # the realm has ended, or has not started yet
            return False

    async def check(self) -> None:
        for name, receipts in self._receipts.items():
            lost = unrequested(receipts, self._ledger.ids)
            assert not lost, f"{lost} have left {name}, and nobody has acknowledged them"
        self._check_listeners()
        await pass_time(PLACES_S)
        kept = await self._world.live_on("news")
        assert kept == 0, f"nobody waits, and {kept} events are kept"
        assert not await self._world.stored_on("never"), "what nobody waits for is not dead"


class Listener:
    """A plain subscriber: receives events published while it is connected or only cut off, once and
    in order, and no earlier ones (SEM J3, J5)."""

    def __init__(
        self, world: WiredWorld, ledger: Ledger, number: int, is_done: Callable[[Listener], bool]
    ) -> None:
        self.world = world
        self.received: dict[int, bytes] = {}
        self._ledger = ledger
        self._is_done = is_done
        self._stretches: list[tuple[int, list[int]]] = []
        """Ids received without an interruption, each list with the life of the realm."""
        self._received_us = 0
        """The world's ``latest_us`` at the last received event."""
        self.program = Program(world, f"listener-{ledger.store}-{number}", self._main)

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self._ledger.store)
        self._stretches.append((self.world.life_of(self.program.name), []))
        async with channel.subscribe(start=0) as events:
            last = events.first_id - 1
            while not self._is_done(self):
                batch = await events.next_batch(timeout=0.5)
                if batch is None:
                    continue
                for event_id, data in zip(batch.event_ids.tolist(), datas_of(batch), strict=True):
                    assert event_id > last, f"{event_id} came after {last}"
                    last = event_id
                    self._receive(event_id, data)
                self.world.note(f"{self.program.name} has heard {last}")

    def _receive(self, event_id: int, data: bytes) -> None:
        self._ledger.check_content(event_id, data)
        assert event_id not in self.received, f"{event_id} came twice"
        self.received[event_id] = data
        life = self.world.life_of(self.program.name)
        since_us = self.world.latest_us - self._received_us
        self._received_us += since_us
        # another scene may set the clock forward by more than the window while the listener is cut
        # off
        if self._stretches[-1][0] != life or since_us >= WINDOW_US:
            self._stretches.append((life, []))
        self._stretches[-1][1].append(event_id)

    def missed(self) -> list[int]:
        """Return the ids published in a life of the realm between two that were received in that
        life."""
        stretches = [
            (life, self._published_in(life, received)) for life, received in self._stretches
        ]
        return [
            i
            for life, received in stretches
            if received
            for i in self._gaps(life, *_ends(received))
        ]

    def _published_in(self, life: int, received: Sequence[int]) -> list[int]:
        """Return the ids published in this life, without those of an earlier life that were only
        read in it."""
        return [i for i in received if self._ledger.lives.get(i, life) == life]

    def missed_last(self) -> list[int]:
        """Return the ids that the listener still has to receive."""
        life = self._stretches[-1][0]
        received = self._published_in(life, self._stretches[-1][1])
        if not received or life != self.world.lives:
            return []
        return self._gaps(life, received[0], max(self._ledger.ids) + 1)

    def _gaps(self, life: int, first: int, end: int) -> list[int]:
        ledger = self._ledger
        return [
            event_id
            for event_id in range(first, end)
            if ledger.lives.get(event_id) == life
            and event_id not in ledger.unsure_lives
            and event_id not in self.received
        ]


def _ends(received: list[int]) -> tuple[int, int]:
    return received[0], received[-1]


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 5))]
