"""Dead event stores that lead to each other, and a channel that refuses events it has no room for:
every event is in one place, and refused events are nowhere (SEM T4, T5, T7)."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import CapacityReached, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher, answer, body, stored
from tests.sim.promises import Ledger
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

CAPACITY = 8
"""Capacity of the channel that refuses."""


class Chain:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world

        def definition(dead: str = "", *, ttl: int = 0, capacity: int = 0) -> Definition:
            type = random.choice(("persistent", "mixed", "paged"))
            return Definition(
                type=type,
                kind=random.choice(("channel", "queue")),
                ttl=ttl,
                capacity=capacity,
                dead_event_store=dead,
                storage=spindles(type, random.choice((0, 6))),
            )

        strict = Storage(events_per_spindle=random.choice((0, 6)), honour_capacity=True)
        self._definitions = {
            "lower": definition(),
            "middle": definition("lower", ttl=random.choice((0, 200)), capacity=5),
            "upper": definition("middle", ttl=random.choice((0, 200)), capacity=5),
            "strict": Definition(
                type="persistent", capacity=CAPACITY, dead_event_store="lower", storage=strict
            ),
        }
        self._ledger = Ledger("upper")
        self._publishers = [
            Publisher(world, self._ledger, name, compose=_events, publishes=8)
            for name in ("p", "q")
        ]
        self._accepted: set[bytes] = set()
        self._refused: set[bytes] = set()
        self._purging: set[bytes] = set()

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        await self._check_places()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        if not quiet:
            group.create_task(self._offer())

    async def _offer(self) -> None:
        """Publish to the channel that refuses, and sometimes make room there."""
        world, number = self._world, self._world.numbers["strict"]
        for n in range(30):
            await pass_time(world.random.expovariate(20))
            events = _events(world.random, f"strict/{world.lives}/{n}")
            datas = {event.data for event in events}
            publish = partial(world.realm.publish, ChannelId(number), [body(events)], "", 0)
            try:
                await world.gate.published(answer(publish))
            except CapacityReached:
                self._refused |= datas
                world.note(f"refused {n}")
                if world.random.random() < 0.3:
                    await self._make_room()
            except PenstockError:
                return
            else:
                self._accepted |= datas

    async def _make_room(self) -> None:
        event_ids = [row.event_id for row in await stored(self._world, "strict")]
        number = self._world.numbers["strict"]
        if event_ids:
            self._purging |= self._accepted
            await self._world.realm.subscriptions.purge(
                ChannelId(number), event_ids[0], event_ids[-1], selector=""
            )

    async def check(self) -> None:
        stored_datas = await self._check_places()
        lost = [data for data in self._ledger.content.values() if data not in stored_datas]
        assert not lost, f"{lost} are nowhere"

    async def _check_places(self) -> set[bytes]:
        """Check that each event is in at most one place, and each confirmed one in exactly one."""
        stored_datas: set[bytes] = set()
        # against the direction of moves, because events may move between the reads
        for name in ("lower", "middle", "upper"):
            rows = await stored(self._world, name)
            datas = {row.data for row in rows}
            assert len(datas) == len(rows), f"something is on {name} twice"
            assert not datas & stored_datas, f"{datas & stored_datas} are on {name}, and further on"
            stored_datas |= datas
        for name in ("middle", "lower"):  # events may have moved since
            stored_datas |= {row.data for row in await stored(self._world, name)}
        assert stored_datas <= self._ledger.offered, "dead are only those that were published"
        strict = {row.data for row in await stored(self._world, "strict")}
        assert len(strict) <= CAPACITY, f"{len(strict)} events are there, of {CAPACITY}"
        assert not strict & self._refused, f"{strict & self._refused} were refused, and are there"
        missing = self._accepted - strict - self._purging
        assert not missing, f"{missing} were taken, and are gone"
        return stored_datas


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 3))]
