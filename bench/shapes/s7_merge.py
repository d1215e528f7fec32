"""S7M: a merge channel; the savings of deltas and the cost of merging, compared with whole
events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import cycle, takewhile
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

import penstock
import penstock.aio
from bench.measuring import Stopwatch
from bench.pacing import at_once
from bench.peers.penstock import PenstockBroker
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Figures

FIELDS = 20
BATCHES_UNDER_WAY = 4
WHOLE = "penstock, whole events"
"""A channel on which each change is published as the full event of 20 fields."""


class Deltas:
    """One of 20 numbers of a key changes; keys are drawn at random. The clock runs without a
    reader. Bytes are counted afterwards, on the connections of a publisher and of a subscriber that
    is up to date."""

    name = "S7M"
    title = f"merge engine: 1 of {FIELDS} fields changes, batches of 1,000"
    figure = "events_per_s"
    higher_is_better = True
    contenders = ("penstock", WHOLE)

    def cases(self, *, quick: bool) -> Sequence[Case]:
        size = {"keys": 200, "seconds": 0.05} if quick else {"keys": 100_000, "seconds": 2.0}
        return [
            Case("the same field in a batch, columns", "D2", {"same": True, **size}),
            Case("any field, events", "D2", {"same": False, **size}),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        case = replace(case, parameters={**case.parameters, "deltas": contender != WHOLE})
        return run_client(self.name, case, "penstock", directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        ours = cast("PenstockBroker", broker)
        rates = await ours.session.channels.create(
            "rates", type="persistent", engine="merge", keys={"key": 1}
        )
        changes = Changes(case)
        for table in changes.registered():
            await rates.publish_table(table)
        batches = changes.batches(16)
        publish = partial(_publish, rates, case)
        written = _written(server_pid)
        watch = Stopwatch(server_pid)
        in_time = takewhile(lambda _: watch.elapsed_s < case["seconds"], cycle(batches))
        count = await at_once(publish, in_time, BATCHES_UNDER_WAY)
        figures = watch.figures(count * BATCH)
        figures["written_bytes_per_event"] = (_written(server_pid) - written) / (count * BATCH)
        figures |= await _on_the_wire(ours.url, case, batches)
        figures["late_subscriber_s"] = await _late(ours.url, case["keys"])
        return figures


class Changes:
    """Keys, their events, and the changes of these."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._random = np.random.default_rng(7)
        self._keys = np.array([f"key-{n:06d}" for n in range(case["keys"])])
        self._names = [f"field_{n:02d}" for n in range(FIELDS)]

    def registered(self) -> list[pa.Table]:
        return [
            self._whole_events(self._keys[first : first + 10_000])
            for first in range(0, len(self._keys), 10_000)
        ]

    def batches(self, count: int) -> list[Any]:
        """Return tables, or lists of events that each change one field."""
        drawn = [self._keys[self._random.integers(0, len(self._keys), BATCH)] for _ in range(count)]
        if not self._case["deltas"]:
            return [self._whole_events(keys) for keys in drawn]
        if self._case["same"]:
            return [
                pa.table({"key": keys, self._names[n % FIELDS]: self._random.random(BATCH)})
                for n, keys in enumerate(drawn)
            ]
        draw = Random(7)
        return [
            [
                penstock.Event(
                    properties={"key": str(key), draw.choice(self._names): draw.random()},
                    is_delta=True,
                )
                for key in keys
            ]
            for keys in drawn
        ]

    def _whole_events(self, keys: Any) -> pa.Table:
        return pa.table(
            {"key": keys, **{name: self._random.random(len(keys)) for name in self._names}}
        )


async def _publish(rates: penstock.aio.Channel, case: Case, batch: Any) -> None:
    if isinstance(batch, list):
        await rates.publish_many(batch)
    else:
        await rates.publish_table(batch, delta=case["deltas"])


async def _on_the_wire(url: str, case: Case, batches: Sequence[Any]) -> Figures:
    """Measure the bytes that a publisher sends and a subscriber receives for each change."""
    async with _counted(url) as (publishing, sent), _counted(url) as (reading, received):
        rates = await publishing.channels.get("rates")
        follower = (await reading.channels.get("rates")).subscribe(start="earliest")
        seen = 0
        while seen < case["keys"]:
            seen += len(await _next(follower))
        published = delivered = 0
        before = sent.out, received.back
        for batch in batches:
            await _publish(rates, case, batch)
            published += BATCH
            delivered += len(await _next(follower))
        return {
            "sent_bytes_per_event": (sent.out - before[0]) / published,
            "received_bytes_per_event": (received.back - before[1]) / delivered,
        }


async def _next(follower: penstock.aio.Subscription) -> penstock.EventBatch:
    batch = await follower.next_batch()
    assert batch is not None, "without a time limit it waits for events"
    return batch


async def _late(url: str, keys: int) -> float:
    """Return the seconds until a new subscriber has the state of every key."""
    async with penstock.aio.connect(url) as session:
        rates = await session.channels.get("rates")
        begun = time.perf_counter()
        seen = 0
        async with rates.subscribe(start="earliest") as follower:
            while seen < keys:
                seen += len(await _next(follower))
        return time.perf_counter() - begun


class Counted:
    """Bytes that a connection has transferred, in both directions."""

    out = 0
    back = 0


@asynccontextmanager
async def _counted(url: str) -> AsyncIterator[tuple[penstock.aio.Session, Counted]]:
    """Open a session whose bytes are counted."""
    host, _, port = url.removeprefix("penstock://").rpartition(":")
    counted = Counted()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, from_ = await asyncio.open_connection(host, int(port))
        async with asyncio.TaskGroup() as both_directions:
            both_directions.create_task(_pump(reader, from_, counted, way="out"))
            both_directions.create_task(_pump(to, writer, counted, way="back"))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        own_port = server.sockets[0].getsockname()[1]
        async with penstock.aio.connect(f"penstock://127.0.0.1:{own_port}") as session:
            yield session, counted


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: Counted, way: str
) -> None:
    while data := await reader.read(1 << 20):
        setattr(counted, way, getattr(counted, way) + len(data))
        writer.write(data)
        await writer.drain()
    writer.close()


def _written(pid: int) -> int:
    """Return the bytes that a process has written to files and sockets; 0 on a system without
    ``/proc``."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


SHAPE = Deltas()
