"""Transient events, on a channel that stores other events and on one that stores nothing: delivered
at most once, to subscribers that are connected and may receive them (SEM E8, C1e)."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest, FromId, FromLatest
from penstock_testing.loop import pass_time
from tests.sim.clients import Arrived, Outlet, Publisher, Worker, answer, body, stored
from tests.sim.promises import Ledger, Receipts
from tests.spindles import spindles

if TYPE_CHECKING:
    from tests.sim.world import World

DURABLES = {"alone": "exclusive", "first": "priority", "team": "shared", "row": "serial"}
MAY_HAVE_THEM = ("alone", "first")
RELAYS = 10
"""Number of publishes on the channel that stores nothing, in each life."""


class Passing:
    def __init__(self, world: World) -> None:
        random = world.random
        self._world = world
        type = random.choice(("persistent", "mixed", "paged"))
        self._definition = Definition(
            type=type,
            retain_consumed=True,
            storage=spindles(type, random.choice((0, 10))),
        )
        self._ledger = Ledger("aloud")
        self._air = Ledger("air")
        """Events of this life."""
        self._transient: set[bytes] = set()
        self._publishers = [
            Publisher(world, self._ledger, name, compose=self._events, publishes=8)
            for name in ("p", "q")
        ]
        names = random.sample(sorted(DURABLES), 2)
        self._receipts = {
            name: Receipts(name, self._ledger, counted=DURABLES[name] in ("shared", "serial"))
            for name in names
        }
        self._read: list[int] = []
        """Stored events that the reader has received."""
        self._received: dict[str, set[bytes]] = {name: set() for name in ("reader", *names)}
        """Transient events by receiver."""
        self._counters_before = Counters()
        """Counters at the start of this life."""
        self._reader_from = 0
        """The reader must receive all events from this id on."""

    async def prepare(self) -> None:
        await self._world.create("aloud", self._definition)
        await self._world.create("air", Definition(type="transient"))
        for name in self._receipts:
            await self._world.create_durable("aloud", name, DURABLES[name])
        await self._check_stored()
        self._counters_before = (await self._world.realm.describe_channel("aloud")).counters
        self._air = Ledger("air")
        info = await self._world.realm.describe_channel("air")
        assert (info.last_event_id, info.counters.published) == (-1, 0), "nothing of it is kept"

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        for publisher in self._publishers:
            group.create_task(publisher.run())
        for name, receipts in self._receipts.items():
            worker = Worker(
                self._world,
                receipts,
                partial(self._is_done, name),
                quiet=quiet,
                durable=name,
                window=self._world.random.randint(1, 6) if receipts.counted else None,
            )
            worker.inspect = partial(self._check_transient, name)
            group.create_task(worker.run())
        group.create_task(self._reader())
        group.create_task(self._relay())

    @property
    def _is_published(self) -> bool:
        return all(publisher.is_done for publisher in self._publishers)

    async def _is_done(self, name: str) -> bool:
        return self._is_published and await self._world.is_consumed("aloud", name)

    def _check_transient(self, name: str, arrived: Arrived) -> None:
        transient = self._transient & set(arrived.datas)
        may_receive = name == "reader" or DURABLES.get(name) in ("exclusive", "priority")
        assert may_receive or not transient, (
            f"{name} never gets transient events, and got {transient}"
        )
        repeated = transient & self._received[name]
        assert not repeated, f"{name} got {repeated} twice"
        self._received[name] |= transient

    async def _reader(self) -> None:
        """Read ``aloud`` from the last position. Transient events are received only while
        subscribed."""
        read = self._read
        outlet = Outlet(f"reader-{self._world.sessions}")
        subscriptions = self._world.realm.subscriptions
        start = FromId(read[-1] + 1) if read else FromEarliest()
        opened = await subscriptions.subscribe(
            ChannelId(self._world.numbers["aloud"]), start, outlet, credit=10_000
        )
        self._reader_from = (await self._world.realm.describe_channel("aloud")).last_event_id + 1
        last = read[-1] if read else -1
        while not self._is_published or len(read) < len(self._stored_ids) or outlet.arrived:
            try:
                arrived = await outlet.take()
            except TimeoutError:
                continue
            self._check_transient("reader", arrived)
            for event_id, data in zip(arrived.ids, arrived.datas, strict=True):
                assert event_id > last, f"{event_id} came after {last}"
                self._ledger.check_content(event_id, data)
                last = event_id
                if data not in self._transient:
                    read.append(event_id)
            subscriptions.credit(opened.number, len(arrived.ids))

    async def _relay(self) -> None:
        """Publish on ``air`` with a subscriber present."""
        world, number = self._world, self._world.numbers["air"]
        outlet = Outlet(f"listener-{world.sessions}")
        subscriptions = world.realm.subscriptions
        opened = await subscriptions.subscribe(
            ChannelId(number), FromLatest(), outlet, credit=10_000
        )
        published: list[bytes] = []
        for n in range(RELAYS):
            await pass_time(world.random.expovariate(20))
            events = _plain_events(world.random, f"air/{world.lives}/{n}")
            datas = [event.data for event in events]
            self._air.offered.update(datas)
            publish = partial(world.realm.publish, ChannelId(number), [body(events)], "", 0)
            try:
                span = await world.gate.published(answer(publish))
            except PenstockError:
                continue
            assert span.first == len(published), f"{span.first} follows {len(published)} events"
            self._air.confirm("", n, span, datas=datas)
            published += datas
            world.note(f"air took {span}")
        await pass_time(0.1)
        received = [data for arrived in outlet.arrived for data in arrived.datas]
        assert received == published, f"{published} was said, and {received} heard"
        subscriptions.detach(opened.number)

    # --- invariants ----------------------------------------------------------------------

    @property
    def _stored_ids(self) -> list[int]:
        """Confirmed ids of stored events."""
        ledger = self._ledger
        return [
            event_id for event_id in ledger.ids if ledger.content[event_id] not in self._transient
        ]

    async def _check_stored(self) -> list[int]:
        rows = await stored(self._world, "aloud")
        for row in rows:
            self._ledger.check_content(row.event_id, row.data)
            assert row.data not in self._transient, f"{row.data!r} is transient, and stored"
        ids = [row.event_id for row in rows]
        assert set(self._stored_ids) <= set(ids), f"of {self._stored_ids} there are {ids}"
        assert not await stored(self._world, "air")
        return ids

    async def check(self) -> None:
        ids = await self._check_stored()
        assert ids == self._stored_ids == self._read
        for name, receipts in self._receipts.items():
            missed = set(ids) - receipts.seen
            assert not missed, f"{name} was never given {sorted(missed)}"
        self._check_received()
        await self._check_relayed()

    def _check_received(self) -> None:
        """Check that the connected reader received all transient events."""
        published = {
            data
            for event_id, data in self._ledger.content.items()
            if event_id >= self._reader_from and data in self._transient
        }
        missed = published - self._received["reader"]
        assert not missed, f"the reader was there, and has not heard {missed}"

    async def _check_relayed(self) -> None:
        """Check that transient events of this life have left as relayed (SEM T8)."""
        ledger, life = self._ledger, self._world.lives
        info = await self._world.realm.describe_channel("aloud")
        counters_before, counters = self._counters_before, info.counters
        relayed = counters.relayed - counters_before.relayed
        assert counters.departed_count - counters_before.departed_count == relayed, (
            "nothing else leaves"
        )
        transient_ids = [
            event_id for event_id in ledger.ids if ledger.content[event_id] in self._transient
        ]
        of_this_life = sum(ledger.lives[event_id] == life for event_id in transient_ids)
        assert (
            of_this_life
            <= relayed
            <= sum(event_id >= self._reader_from for event_id in transient_ids) + of_this_life
        )
        info = await self._world.realm.describe_channel("air")
        assert info.counters.relayed == info.counters.published == len(self._air.ids)

    def _events(self, draw: Random, label: str) -> list[Event]:
        """Compose events: some, all or none are transient."""
        share = draw.choice((0.0, 0.5, 0.5, 1.0))
        events = []
        for i in range(draw.randint(1, 5)):
            data, passes = f"{label}/{i}".encode(), draw.random() < share
            if passes:
                self._transient.add(data)
            events.append(Event(data, transient=passes))
        return events


def _plain_events(draw: Random, label: str) -> list[Event]:
    return [Event(f"{label}/{i}".encode()) for i in range(draw.randint(1, 4))]
