"""A merge channel: its states are the published and updated ones, whatever happens meanwhile, and a
follower of its deltas knows them (SEM K2-K4), whatever a durable acknowledges (SEM D6)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from packages.server.tests.runtime.merge_model import KEY, Follower, MergeModel, Properties
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_testing.loop import pass_time
from tests.sim.clients import Outlet, Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts

if TYPE_CHECKING:
    from tests.sim.world import World


class Merged:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        self._capacity = random.choice((0, 0, 3))
        self._definition = Definition(
            type=random.choice(("persistent", "mixed", "paged")),
            engine="merge",
            keys={KEY: 1},
            capacity=self._capacity,
        )
        self._ledger = Ledger("merged")
        self._published: dict[bytes, Event] = {}
        self._publishers = [
            Publisher(world, self._ledger, name, compose=self._events, publishes=10)
            for name in ("p", "q")
        ]
        self._receipts = Receipts("watch", self._ledger)

    async def prepare(self) -> None:
        await self._world.create("merged", self._definition)
        await self._world.create_durable("merged", "watch", "shared")
        for row in await stored(self._world, "merged"):
            self._ledger.check_content(row.event_id, row.data)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        group.create_task(self._follow())
        worker = Worker(
            self._world, self._receipts, self._is_done, quiet=quiet, durable="watch", window=4
        )
        group.create_task(worker.run())

    async def _is_done(self) -> bool:
        is_published = all(publisher.is_done for publisher in self._publishers)
        return is_published and await self._world.is_consumed("merged", "watch")

    async def _follow(self) -> None:
        """Follow from the start with one subscription after another, until all is published."""
        while not all(publisher.is_done for publisher in self._publishers):
            outlet, follower = Outlet(f"follower-{self._world.sessions}"), Follower()
            subscriptions = self._world.realm.subscriptions
            number = self._world.numbers["merged"]
            opened = await subscriptions.subscribe(
                ChannelId(number), FromEarliest(), outlet, credit=1 << 20, deltas=True
            )
            await pass_time(self._world.random.random() * 2)
            follower.take(_received(outlet))
            subscriptions.detach(opened.number)

    async def check(self) -> None:
        expected = self._model().stored()
        outlet = Outlet("auditor")
        subscriptions = self._world.realm.subscriptions
        opened = await subscriptions.subscribe(
            ChannelId(self._world.numbers["merged"]),
            FromEarliest(),
            outlet,
            credit=1 << 20,
            browse=True,
        )
        await outlet.end()
        subscriptions.detach(opened.number)
        states = {event.event_id: event.properties for event in _received(outlet)}
        assert states == expected, f"the states are {expected}; stored are {states}"

    def _model(self) -> MergeModel:
        model = MergeModel(capacity=self._capacity)
        for span in sorted(self._ledger.confirmed.values()):
            events = [self._published[self._ledger.content[i]] for i in range(*span)]
            model.published(span[0], events, 0)
        return model

    def _events(self, draw: Random, label: str) -> list[Event]:
        events = []
        for i in range(draw.randint(1, 4)):
            names = draw.sample("abcdef", draw.randint(0, 3))
            properties: Properties = {n: draw.choice((None, 1, "s", 2.5)) for n in names}
            properties[KEY] = draw.choice(("one", "two", "three", "four"))
            data = f"{label}/{i}".encode()
            event = Event(data, properties=properties, is_delta=draw.random() < 0.7)
            self._published[data] = event
            events.append(event)
        return events


def _received(outlet: Outlet) -> list[Event]:
    return [event for arrived in outlet.arrived for event in EventBatch(arrived.batch)]
