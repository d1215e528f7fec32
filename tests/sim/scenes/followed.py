"""A merge channel over a network that breaks: every follower knows each key's state, whether it
merges deltas itself or receives merged events, whatever was cut off or killed meanwhile (SEM
K2-K4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from packages.server.tests.runtime.merge_model import KEY, MergeModel, Properties
from penstock import aio
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import StorageFailed
from tests.sim.programs import Program, Steady
from tests.sim.promises import Ledger

if TYPE_CHECKING:
    from tests.sim.wired_world import WiredWorld

STORE = "rates"
KEYS = ("one", "two", "three")


class Followed:
    def __init__(self, world: WiredWorld) -> None:
        self._world = world
        self._definition = Definition(
            type=world.draw_type(("persistent", "mixed", "paged")),
            engine="merge",
            keys={KEY: 1},
        )
        self._ledger = Ledger(STORE)
        self._published: dict[bytes, Event] = {}
        self._publishers = [
            Steady(world, self._ledger, name, compose=self._events, publishes=12)
            for name in ("p", "q")
        ]
        self._followers = [
            StateFollower(world, self._ledger, self._is_followed, number=number, merged=merged)
            for number, merged in enumerate((False, True))
        ]
        self._programs = [publisher.program for publisher in self._publishers]
        self._programs += [follower.program for follower in self._followers]
        self._running: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        await self._world.create(STORE, self._definition)
        for event_id, data in await self._world.stored_on(STORE):
            self._ledger.check_content(event_id, data)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        if not self._running:
            outside = self._world.outside
            self._running = [outside.create_task(program.run()) for program in self._programs]
        if quiet:
            group.create_task(self._all_done())

    async def _all_done(self) -> None:
        await asyncio.wait(self._running)

    def _is_followed(self, follower: StateFollower) -> bool:
        """Return whether everything is published and the follower has received the last event."""
        if not all(publisher.is_done for publisher in self._publishers):
            return False
        return follower.last_id >= max(span.end for span in self._ledger.confirmed.values()) - 1

    async def check(self) -> None:
        model = MergeModel()
        for span in sorted(self._ledger.confirmed.values()):
            events = [self._published[self._ledger.content[i]] for i in range(*span)]
            model.published(span[0], events, 0)
        expected = {kept.key: kept.properties for kept in model.events.values()}
        for follower in self._followers:
            assert follower.states == expected, (
                f"{follower.program.name} knows {follower.states}; the states are {expected}"
            )
        event_ids = [event_id for event_id, _ in await self._world.stored_on(STORE)]
        assert event_ids == sorted(model.events), (
            f"{sorted(model.events)} are wanted, not {event_ids}"
        )

    def _events(self, draw: Random, label: str) -> list[Event]:
        events = []
        for i in range(draw.randint(1, 4)):
            names = draw.sample("abcdef", draw.randint(0, 3))
            properties: Properties = {n: draw.choice((None, 1, "s", 2.5)) for n in names}
            properties[KEY] = draw.choice(KEYS)
            data = f"{label}/{i}".encode()
            event = Event(data, properties=properties, is_delta=draw.random() < 0.7)
            self._published[data] = event
            events.append(event)
        return events


class StateFollower:
    """Follows the channel from the start, again after each kill: a state first, then deltas, or
    whole events if ``merged``."""

    def __init__(
        self,
        world: WiredWorld,
        ledger: Ledger,
        is_done: Callable[[StateFollower], bool],
        *,
        number: int,
        merged: bool,
    ) -> None:
        self.world = world
        self.states: dict[str, Properties] = {}
        self.last_id = -1
        self._ledger = ledger
        self._is_done = is_done
        self._merged = merged
        self.program = Program(world, f"states-{ledger.store}-{number}", self._main)

    async def _main(self, session: aio.Session) -> None:
        channel = await session.channels.get(self._ledger.store)
        while not self._is_done(self):
            self.states, self.last_id = {}, -1
            try:
                async with channel.subscribe(start=0, merged=self._merged) as events:
                    while not self._is_done(self) and self.world.random.random() > 0.02:
                        batch = await events.next_batch(timeout=0.5)
                        for event in batch or ():
                            self._take(event)
            except StorageFailed:  # the realm's disk failed while the subscription was reopened
                self.world.note(f"{self.program.name} begins again: {self.world.url} cannot write")
            self.world.note(f"{self.program.name} is at {self.last_id}")

    def _take(self, event: Event) -> None:
        event_id, key = event.event_id, event.properties[KEY]
        assert event_id is not None, "a merge channel stores its events"
        assert event_id > self.last_id, f"{event_id} came after {self.last_id}"
        self.last_id = event_id
        self._ledger.check_content(event_id, event.data)
        if event.is_delta:
            assert not self._merged, f"{event_id} came as a delta to one who wants whole events"
            assert key in self.states, f"{event_id}, a delta of {key}, came before its state"
            self.states[key] = {**self.states[key], **event.properties}
        else:
            self.states[key] = dict(event.properties)
