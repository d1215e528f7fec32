"""A realm on a disk that loses power, its publishers and consumers, and what they may expect.

Everything is drawn from one seed: the interleaving, the faults, what clients do. The oracles are
the clients themselves: each remembers what it was promised.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any

from penstock.bootstrap import rules
from penstock.columns.batch import ids_of
from penstock.columns.body import body_of_columns
from penstock.columns.ipc import batch_bytes, schema_bytes
from penstock.columns.selectors import Selector
from penstock.core.errors import NameAlreadyBound, PenstockError
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Definition, FromEarliest, FromId, Storage
from penstock.runtime.channel_store import Rows
from penstock.runtime.delivery import Redeliveries
from penstock.runtime.realm import Limits, RunningRealm
from penstock.runtime.sealing import SealingLimits
from penstock.runtime.work import Body
from penstock.storage.embedded import Embedded, JournalLimits, open_embedded
from penstock.testing.disk import FaultyDisk
from penstock.testing.loop import SimLoop, SlowOffload, pass_time, simulate

PUBLISHES = 12
"""By each publisher on each channel."""

CHANNELS = {
    "keep": Definition(
        type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=25)
    ),
    "work": Definition(type="mixed", storage=Storage(events_per_spindle=7)),
}
DURABLES = {("keep", "team"): "shared", ("work", "pair"): "shared", ("work", "one"): "exclusive"}


@dataclass
class Promises:
    """What the realm has answered; it outlives every power cut."""

    offered: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    """Every event ever sent, and the publish it was in."""
    confirmed: dict[tuple[str, str, int], Span] = field(default_factory=dict)
    """By channel, producer and sequence."""
    content: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """By channel and id, of every event seen or confirmed."""
    acked: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    seen: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By durable: what was delivered at least once."""
    counts: dict[tuple[str, str, int], tuple[int, int]] = field(default_factory=dict)
    """Redeliveries at least and at most: a rollback nobody answered may have happened."""
    read: list[int] = field(default_factory=list)
    """What the plain reader of ``keep`` has seen."""

    def is_content(self, channel: str, event_id: int, data: bytes) -> None:
        assert data in self.offered, f"event {event_id} of {channel} was never published"
        known = self.content.setdefault((channel, event_id), data)
        assert known == data, f"id {event_id} of {channel} was given to two events"


Arrived = tuple[list[int], list[bytes], dict[int, int]]
"""Ids, contents, and redelivery counts of one delivery."""


class Consumer:
    """The outlet of a subscription: a queue of what came."""

    selector: Selector | None = None
    writable = True

    def __init__(self, session: str) -> None:
        self.session = session
        self.inbox: asyncio.Queue[Arrived] = asyncio.Queue()
        self.arrived: list[Arrived] = []
        """What lies in the inbox."""
        self.at_end = asyncio.Event()

    def deliver(self, rows: Rows, redeliveries: Redeliveries) -> None:
        batch = rows.batch
        ids = ids_of(batch).tolist()
        known = set(ids)
        counts = {i: n for n, spans in redeliveries for i in IdSet(spans) if i in known}
        self.arrived.append((ids, batch.column("data").to_pylist(), counts))
        self.inbox.put_nowait(self.arrived[-1])

    async def take(self) -> Arrived:
        """The next delivery. Raises ``TimeoutError`` when none comes for a while."""
        async with asyncio.timeout(0.5):
            arrived = await self.inbox.get()
        self.arrived.remove(arrived)
        return arrived

    def finished(self) -> None:
        self.at_end.set()

    def closed(self, reason: PenstockError) -> None:
        raise AssertionError(f"nobody deletes anything here: {reason}")


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FaultyDisk(seed)
        self.promises = Promises()
        self.sequences: dict[tuple[str, str], int] = defaultdict(int)
        self.trace: list[str] = []
        self.lives = 0
        self.realm: RunningRealm
        self.numbers: dict[str, int] = {}

    # --- lives of the realm --------------------------------------------------------------

    async def live(self) -> str:
        """Several lives that end badly, then a quiet one in which all is checked."""
        for _ in range(self.random.randint(3, 6)):
            await self.one_life(self.random.expovariate(1 / 1.5))
            if self.random.random() < 0.8:
                self.disk.power_cut()
            else:
                self.disk.kill()
        self.disk.free_bytes = None
        await self.one_life(None)
        return sha256("\n".join(self.trace).encode()).hexdigest()

    async def one_life(self, span_s: float | None) -> None:
        """Up to ``span_s`` seconds; without an end: until everything is done and checked."""
        self.lives += 1
        self.disk.free_bytes = None
        store = self.open_store()
        self.realm = await self.open_realm(store)
        serving = asyncio.get_running_loop().create_task(self.realm.run())
        clients = asyncio.get_running_loop().create_task(self.clients(quiet=span_s is None))
        try:
            await asyncio.wait(
                [serving, clients], timeout=span_s, return_when=asyncio.FIRST_COMPLETED
            )
            if span_s is None:
                await clients
                await self.check_all()
                await self.realm.close()
                await serving
                await self.realm.release()
        finally:
            for task in (clients, serving):
                task.cancel()
            ends = await asyncio.wait([clients, serving])
            for task in ends[0]:
                self.note_end(task)

    def note_end(self, task: asyncio.Task[None]) -> None:
        """A realm may stop because of its disk; nothing else may go wrong."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, BaseExceptionGroup):
            _, error = error.split(PenstockError)
        if error is not None and not isinstance(error, PenstockError):
            raise error
        self.trace.append(f"life {self.lives} ended")

    def open_store(self) -> Embedded:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return open_embedded(
            "/realm",
            disk=self.disk,
            offload=SlowOffload(self.random, longest_s=0.01),
            clock=loop,
            identity=lambda: 0x5EED,
            holder="the simulation",
            limits=JournalLimits(file_bytes_max=6_000, allocation_bytes=512),
        )

    async def open_realm(self, store: Embedded) -> RunningRealm:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return await RunningRealm.open(
            store.journal,
            store.blobs,
            rules(),
            loop,
            SlowOffload(self.random, longest_s=0.05),
            identity="simulated",
            limits=Limits(sweep_interval_s=0.2),
            sealing=SealingLimits(
                segment_bytes_max=6_000,
                journal_bytes_max=4_000,
                snapshot_tail_bytes_max=4_000,
                interval_s=0.05,
                retry_s=0.1,
            ),
        )

    # --- clients -------------------------------------------------------------------------

    async def clients(self, *, quiet: bool) -> None:
        for name, definition in CHANNELS.items():
            try:
                opened = await self.realm.create_channel(name, definition)
            except NameAlreadyBound:
                opened = await self.realm.open_channel(name)
            self.numbers[name] = opened.channel
        for (channel, name), kind in DURABLES.items():
            number = self.numbers[channel]
            with contextlib.suppress(NameAlreadyBound):
                await self.realm.subscriptions.create_durable(
                    number, name, kind, FromEarliest(), "", persistent=None
                )
        async with asyncio.TaskGroup() as group:
            for channel in CHANNELS:
                for producer in ("p", "q"):
                    group.create_task(self.publisher(channel, producer))
            for (channel, name), kind in DURABLES.items():
                for seat in range(2 if kind == "shared" else 1):
                    group.create_task(self.worker(channel, name, kind, seat, quiet=quiet))
            group.create_task(self.reader())
            if not quiet:
                group.create_task(self.saboteur())

    async def saboteur(self) -> None:
        """Fills the disk for a while."""
        await pass_time(self.random.random() * 2)
        if self.random.random() < 0.5:
            self.disk.free_bytes = self.random.randint(0, 3_000)
            self.trace.append("disk full")
            await pass_time(self.random.random())
            self.disk.free_bytes = None

    async def answer(self, ask: Callable[[Any], None]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(result: Any, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        ask(reply)
        return await done

    async def publisher(self, channel: str, producer: str) -> None:
        key = (channel, producer)
        while self.sequences[key] < PUBLISHES:
            await pass_time(self.random.expovariate(20))
            sequence = self.sequences[key]
            draw = Random(f"{channel}{producer}{sequence}")  # a retry sends the same again
            datas = [
                f"{channel}/{producer}/{sequence}/{i}".encode() * draw.randint(1, 4)
                for i in range(draw.randint(1, 6))
            ]
            for data in datas:
                self.promises.offered[data] = (producer, sequence)
            body = _body(datas, draw.random() < 0.5)
            number = self.numbers[channel]
            try:
                publish = partial(self.realm.publish, number, [body], producer, sequence)
                span = await self.answer(publish)
            except PenstockError:
                continue
            self.confirm(channel, producer, sequence, span, datas)
            self.sequences[key] += 1

    def confirm(
        self, channel: str, producer: str, sequence: int, span: Span, datas: Sequence[bytes]
    ) -> None:
        assert span.size == len(datas)
        self.promises.confirmed[channel, producer, sequence] = span
        for event_id, data in zip(range(*span), datas, strict=True):
            self.promises.is_content(channel, event_id, data)
        earlier = self.promises.confirmed.get((channel, producer, sequence - 1))
        assert earlier is None or earlier.end <= span.first, "ids do not follow publish order"
        self.trace.append(f"confirmed {channel} {producer} {sequence} {span}")

    async def worker(self, channel: str, name: str, kind: str, seat: int, *, quiet: bool) -> None:
        outlet = Consumer(f"{name}-{seat}-{self.lives}")
        subscriptions = self.realm.subscriptions
        window = None if kind == "exclusive" else self.random.randint(1, 6)
        number = self.numbers[channel]
        opened = await subscriptions.attach(number, name, outlet, window=window, pull=False)
        while True:
            try:
                ids, datas, counts = await outlet.take()
            except TimeoutError:
                if await self.done(channel, name):
                    return
                continue
            self.delivered(channel, name, ids, datas, counts)
            await pass_time(self.random.expovariate(50))
            back = kind == "shared" and not quiet and self.random.random() < 0.2
            await self.settle(channel, name, opened.number, ids, back=back)
            if not quiet and self.random.random() < 0.05:
                opened, outlet = await self.again(channel, name, opened.number, outlet, window)

    async def again(
        self, channel: str, name: str, subscription: int, outlet: Consumer, window: int | None
    ) -> tuple[Any, Consumer]:
        """Leave, with what is still held, and come back."""
        held = [event_id for ids, _, _ in outlet.arrived for event_id in ids]
        counted = DURABLES[channel, name] == "shared"
        atleast = self.uncertain(channel, name, held) if counted else {}
        subscriptions = self.realm.subscriptions
        await self.answer(lambda reply: subscriptions.detach(subscription, reply))
        self.certain(channel, name, atleast)
        self.trace.append(f"left {name} with {held}")
        fresh = Consumer(outlet.session + "+")
        number = self.numbers[channel]
        opened = await subscriptions.attach(number, name, fresh, window=window, pull=False)
        return opened, fresh

    def delivered(
        self, channel: str, name: str, ids: list[int], datas: list[bytes], counts: dict[int, int]
    ) -> None:
        for event_id, data in zip(ids, datas, strict=True):
            self.promises.is_content(channel, event_id, data)
            assert event_id not in self.promises.acked[channel, name], (
                f"event {event_id} came again to {name} after its ack was answered"
            )
            least, most = self.promises.counts.get((channel, name, event_id), (0, 0))
            count = counts.get(event_id, 0)
            assert least <= count <= most, f"redelivery {count} of {event_id}, not {least}..{most}"
            self.promises.counts[channel, name, event_id] = (count, count)
            self.promises.seen[channel, name].add(event_id)
        self.trace.append(f"delivered {name} {ids} {counts}")

    async def settle(
        self, channel: str, name: str, subscription: int, ids: list[int], *, back: bool
    ) -> None:
        spans = IdSet.of(ids).spans
        atleast = self.uncertain(channel, name, ids) if back else {}
        settle = self.realm.subscriptions.settle
        await self.answer(
            lambda reply: settle(subscription, spans, reply, roll_back=back, previous=False)
        )
        self.trace.append(f"{'rolled back' if back else 'acked'} {name} {ids}")
        self.certain(channel, name, atleast)
        if not back:
            self.promises.acked[channel, name].update(ids)

    def uncertain(self, channel: str, name: str, ids: list[int]) -> dict[int, int]:
        """From now until it is answered, these may be rolled back; the counts they have then."""
        atleast = {}
        for event_id in ids:
            least, most = self.promises.counts.get((channel, name, event_id), (0, 0))
            self.promises.counts[channel, name, event_id] = (least, most + 1)
            atleast[event_id] = least + 1
        return atleast

    def certain(self, channel: str, name: str, atleast: dict[int, int]) -> None:
        for event_id, count in atleast.items():
            least, most = self.promises.counts[channel, name, event_id]
            self.promises.counts[channel, name, event_id] = (max(least, count), most)

    async def reader(self) -> None:
        """Follows ``keep``, across power cuts, and may miss and repeat nothing (SEM E6)."""
        outlet = Consumer(f"reader-{self.lives}")
        read = self.promises.read
        start = FromId(read[-1] + 1) if read else FromEarliest()
        number = self.numbers["keep"]
        opened = await self.realm.subscriptions.subscribe(number, start, outlet, credit=20)
        while not self.published("keep") or len(read) < self.promises_count("keep"):
            try:
                ids, datas, _ = await outlet.take()
            except TimeoutError:
                continue
            for event_id, data in zip(ids, datas, strict=True):
                assert event_id == len(read), f"{event_id} came after {len(read)} events"
                self.promises.is_content("keep", event_id, data)
                read.append(event_id)
            self.realm.subscriptions.credit(opened.number, len(ids))

    # --- the end -------------------------------------------------------------------------

    def published(self, channel: str) -> bool:
        return all(self.sequences[channel, producer] >= PUBLISHES for producer in ("p", "q"))

    def promises_count(self, channel: str) -> int:
        spans = self.promises.confirmed.items()
        return sum(span.size for (own, _, _), span in spans if own == channel)

    async def done(self, channel: str, name: str) -> bool:
        info = await self.realm.subscriptions.durable(self.numbers[channel], name)
        return self.published(channel) and not info.outstanding

    async def check_all(self) -> None:
        """What is stored is what was promised, once, in order, files and tail together."""
        outlet = Consumer("auditor")
        subscribe = self.realm.subscriptions.subscribe
        number = self.numbers["keep"]
        await subscribe(number, FromEarliest(), outlet, credit=1 << 20, browse=True)
        await outlet.at_end.wait()
        found: list[tuple[int, bytes]] = []
        for part, datas, _ in outlet.arrived:
            found += zip(part, datas, strict=True)
        total = self.promises_count("keep")
        ids = [event_id for event_id, _ in found]
        assert ids == list(range(total)), f"{total} events were promised; stored are {ids}"
        assert len({data for _, data in found}) == total, "an event is stored twice"
        for event_id, data in found:
            self.promises.is_content("keep", event_id, data)
        for channel, name in DURABLES:
            missed = set(range(self.promises_count(channel))) - self.promises.seen[channel, name]
            assert not missed, f"{name} was never given {sorted(missed)}"
        info = await self.realm.describe_channel("work")
        assert info.events == 0, "all durables have acknowledged everything (SEM D6)"
        assert info.counters.published == info.counters.gone == self.promises_count("work")
        self.trace.append(f"checked {total} events in {self.lives} lives")


def _body(datas: list[bytes], priced: bool) -> Body:
    properties = [{"price": float(len(data))} for data in datas] if priced else None
    batch = body_of_columns(datas, properties=properties)
    return Body(batch_bytes(batch), batch, schema_bytes(batch.schema))


def life_of(seed: int) -> str:
    """The hash of everything that happened. Raises what went wrong."""
    world = World(seed)
    return simulate(world.live(), world.random)
