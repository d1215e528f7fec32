"""A queue with transactional readers: each event is committed once, or dead (SEM Q, T10)."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from tests.sim.clients import Publisher, Worker, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World


class Queues:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        self._limit = random.choice((0, 0, 2, 3))
        """Number of deliveries after which an event is dead; 0: never."""
        type = random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            kind="queue",
            type=type,
            max_deliveries=self._limit,
            dead_event_store="failed" if self._limit else "",
            storage=spindles(type, random.choice((0, 8))),
        )
        self._ledger = Ledger("jobs")
        self._receipts = Receipts("readers", self._ledger)
        self._publishers = [
            Publisher(world, self._ledger, name, compose=_events) for name in ("p", "q")
        ]

    async def prepare(self) -> None:
        await self._world.create("failed", Definition(type="persistent"))
        await self._world.create("jobs", self._definition)

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for selector in ("", "", "n < 2"):
            worker = Worker(
                self._world,
                self._receipts,
                self._is_done,
                quiet=quiet,
                window=self._world.random.randint(1, 6),
                selector=selector,
                settles_apart=True,
            )
            if selector:
                worker.inspect = lambda arrived: _matches(arrived.datas)
            group.create_task(worker.run())

    async def _is_done(self) -> bool:
        published = all(publisher.is_done for publisher in self._publishers)
        return published and await self._world.is_consumed("jobs", "")

    async def check(self) -> None:
        info = await self._world.realm.describe_channel("jobs", "queue")
        assert info.events == 0, f"{info.events} events were never committed"
        dead: dict[int, int] = {}
        for row in await stored(self._world, "failed"):
            assert row.origin is not None, "it says where it comes from"
            assert row.origin["store"] == "jobs"
            assert row.origin["cause"] == "redelivery_limit"
            event_id = row.origin["event_id"]
            assert event_id not in dead, f"event {event_id} is dead twice"
            self._ledger.check_content(event_id, row.data)
            dead[event_id] = row.origin["redeliveries"]
        for event_id, redeliveries in dead.items():
            assert event_id not in self._receipts.acked, f"{event_id} was committed, and died"
            assert redeliveries >= self._limit - 1 > 0, f"{event_id}: {redeliveries} redeliveries"
        for event_id in self._ledger.ids:
            is_accounted_for = event_id in dead or event_id in self._receipts.requested
            assert is_accounted_for, f"event {event_id} is gone, and nobody has committed it"
        assert info.counters.dead == len(dead)
        assert info.counters.consumed == len(self._ledger.ids) - len(dead)


def _matches(datas: list[bytes]) -> None:
    for data in datas:
        assert int(data.rpartition(b"=")[2]) < 2, f"a reader of n < 2 got {data!r}"


def _events(draw: Random, label: str) -> list[Event]:
    numbers = [draw.randrange(4) for _ in range(draw.randint(1, 5))]
    return [
        Event(f"{label}/{i} n={n}".encode(), properties={"n": n}) for i, n in enumerate(numbers)
    ]
