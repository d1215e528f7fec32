"""Publish keys: of each value only the newest events stay, whatever happens meanwhile (SEM K1)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING, Any

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from tests.sim.clients import Publisher, stored
from tests.sim.promises import Ledger
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World


class Keyed:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        self._keys = random.choice(({"k": 1}, {"k": 2}, {"k": 1, "m": 2}))
        type = random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type,
            keys=self._keys,
            storage=spindles(type, random.choice((0, 6))),
        )
        self._ledger = Ledger("newest")
        self._properties: dict[bytes, dict[str, Any]] = {}
        self._publishers = [
            Publisher(world, self._ledger, name, compose=self._events, publishes=8)
            for name in ("p", "q")
        ]

    async def prepare(self) -> None:
        await self._world.create("newest", self._definition)
        await self._check_depths()

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())

    async def _check_depths(self) -> list[int]:
        """Check that each value has at most the allowed number of events. Return all stored ids."""
        rows = await stored(self._world, "newest")
        for row in rows:
            self._ledger.check_content(row.event_id, row.data)
        for key, depth in self._keys.items():
            ids_by_value: dict[object, list[int]] = defaultdict(list)
            for row in rows:
                value = self._properties[row.data].get(key)
                if value is not None:
                    ids_by_value[value].append(row.event_id)
            for value, ids in ids_by_value.items():
                assert len(ids) <= depth, f"{key} = {value!r} has {ids}, of {depth} at most"
        return [row.event_id for row in rows]

    async def check(self) -> None:
        ids = await self._check_depths()
        expected = self._newest()
        assert ids == expected, f"the newest are {expected}; stored are {ids}"
        info = await self._world.realm.describe_channel("newest")
        assert info.counters.replaced == len(self._ledger.ids) - len(ids)

    def _newest(self) -> list[int]:
        """Return the ids that stay, computed publish by publish: each key considers the stored
        events together with the new ones."""
        live: list[int] = []
        for span in sorted(self._ledger.confirmed.values()):
            live += range(*span)
            replaced: set[int] = set()
            for key, depth in self._keys.items():
                by_value: dict[object, list[int]] = defaultdict(list)
                for event_id in live:
                    value = self._properties[self._ledger.content[event_id]].get(key)
                    if value is not None:
                        by_value[value].append(event_id)
                for ids in by_value.values():
                    replaced.update(ids[:-depth])
            live = [event_id for event_id in live if event_id not in replaced]
        return live

    def _events(self, draw: Random, label: str) -> list[Event]:
        events = []
        for i in range(draw.randint(1, 4)):
            properties: dict[str, Any] = {}
            if draw.random() < 0.8:
                properties["k"] = draw.choice("abcd")
            if draw.random() < 0.3:
                properties["m"] = draw.randrange(3)
            data = f"{label}/{i}".encode()
            self._properties[data] = properties
            events.append(Event(data, properties=properties))
        return events
