"""Types that keep events in memory: ids that continue and ids that restart, and pages that survive
(SEM C1, E4)."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_testing.loop import pass_time
from tests.sim.clients import Publisher, answer, body, stored
from tests.sim.promises import Ledger

if TYPE_CHECKING:
    from tests.sim.world import World

PUBLISHES = 10
"""Number of publishes on each channel in memory, in each life."""


class Memory:
    def __init__(self, world: World) -> None:
        self._world = world
        self._definitions = {
            "pages": Definition(type="paged"),
            "brief": Definition(type=world.random.choice(("reliable", "off_heap"))),
            "simple": Definition(type="simple"),
        }
        self._ledger = Ledger("pages")
        self._publishers = [
            Publisher(world, self._ledger, name, compose=_events) for name in ("p", "q")
        ]
        self._used = 0
        """Ids of ``brief`` below this were assigned."""
        self._present: dict[str, dict[int, bytes]] = {}
        """Events that this life has confirmed, by channel in memory."""

    async def prepare(self) -> None:
        for name, definition in self._definitions.items():
            await self._world.create(name, definition)
        rows = await stored(self._world, "pages")
        stored_ids = {row.event_id for row in rows}
        assert set(self._ledger.ids) <= stored_ids, "a paged channel keeps what it has confirmed"
        for row in rows:
            self._ledger.check_content(row.event_id, row.data)
        for name in ("brief", "simple"):
            self._present[name] = {}
            info = await self._world.realm.describe_channel(name)
            assert info.events == 0, f"{name} does not outlive a restart"
            lowest = self._used - 1 if name == "brief" else -1
            assert info.last_event_id >= lowest, f"{name} goes on at {info.last_event_id}"
            assert name != "simple" or info.last_event_id == -1, "its ids start again"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for name in self._present:
            group.create_task(self._publish(name))

    async def _publish(self, name: str) -> None:
        world = self._world
        for n in range(PUBLISHES):
            await pass_time(world.random.expovariate(10))
            events = _events(world.random, f"{name}/{world.lives}/{n}")
            number, bodies = world.numbers[name], [body(events)]
            try:
                publish = partial(world.realm.publish, ChannelId(number), bodies, "", 0)
                span = await world.gate.published(answer(publish))
            except PenstockError:
                continue
            self._confirm(name, span, events)
            world.note(f"{name} took {span}")

    def _confirm(self, name: str, span: Span, events: list[Event]) -> None:
        present = self._present[name]
        if name == "brief" and not present:
            assert span.first >= self._used, f"ids from {span.first} on were given before"
        else:
            next_id = max(present) + 1 if present else 0
            assert span.first == next_id, f"{name} gave {span}, not from {next_id} on"
        if name == "brief":
            self._used = span.end
        present.update(zip(range(*span), [event.data for event in events], strict=True))

    async def check(self) -> None:
        rows = await stored(self._world, "pages")
        self._ledger.check_complete([(row.event_id, row.data) for row in rows])
        for name, present in self._present.items():
            events = {row.event_id: row.data for row in await stored(self._world, name)}
            assert events == present, f"{name} lives, and has lost or made up something"


def _events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode() * draw.randint(1, 8)) for i in range(draw.randint(1, 4))]
