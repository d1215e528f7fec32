"""Penstock itself: a server process of its own, the asyncio client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import penstock
import penstock.aio
from bench.processes import free_port, server_process
from bench.shape import WINDOW, Broker, Server
from bench.workload import Events


class Penstock:
    name = "penstock"

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return penstock.__version__

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Durability is the channel's (``storage.sync``), not the server's."""
        port = free_port()
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory)]
        command += ["--port", str(port), "--log-level", "warning"]
        return server_process(command, port, f"penstock://127.0.0.1:{port}", directory)

    async def connect(self, url: str) -> Broker:
        return PenstockBroker(await penstock.aio.connect(url))


class PenstockBroker:
    def __init__(self, session: penstock.aio.Session) -> None:
        self._session = session
        self._acking = asyncio.TaskGroup()

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self._acking.__aenter__()
        self._channel = await self._session.channels.create(
            "orders", type="persistent", retain_consumed=True, storage=_storage(durability)
        )
        durable = await self._channel.durables.create("billing", type="shared")
        self._producer = self._channel.producer()
        self._subscription = durable.subscribe(window=WINDOW)
        if consumes:
            await self._subscription.open()

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        self._channel = await self._session.channels.create(
            "orders", type="persistent", keys=dict(keys), storage=_storage(durability)
        )

    async def prepare_expiring(self, durability: str, *, buries: bool) -> None:
        storage = _storage(durability)
        dead = ""
        if buries:
            dead = "dead"
            await self._session.channels.create(dead, type="persistent", storage=storage)
        self._channel = await self._session.channels.create(
            "orders", type="persistent", event_ttl=True, dead_event_store=dead, storage=storage
        )

    async def publish_batch(self, events: Events, api: str) -> None:
        if api == "columns":
            await self._channel.publish_table(events.columns.table)
            return
        await self._channel.publish_many(
            [
                penstock.Event(data, properties=properties)
                for data, properties in zip(events.datas, events.properties, strict=True)
            ]
        )

    async def publish_keyed(self, events: Events, api: str) -> None:
        await self.publish_batch(events, api)

    async def publish_expiring(self, events: Events, ttls_ms: Sequence[int]) -> None:
        ttls = pa.array(ttls_ms, pa.int64())
        await self._channel.publish_table(events.columns.table.append_column("ttl", ttls))

    async def stored(self) -> int:
        return (await self._channel.info()).events

    async def left(self) -> int:
        counters = (await self._channel.info()).counters
        return counters.expired + counters.dead

    async def send(self, events: Events, row: int) -> None:
        await self._producer.send(events.datas[row], properties=events.properties[row])

    async def flush(self) -> None:
        await self._producer.flush()

    async def publish_one(self, events: Events, row: int) -> None:
        await self._channel.publish(events.datas[row], properties=events.properties[row])

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        batch = await self._subscription.next_batch()
        assert batch is not None, "without a time limit it waits for events"
        if api == "columns":
            table = batch.to_table()
            price = pc.sum(table.column("price")).as_py()
            size = pc.sum(pc.binary_length(table.column("data"))).as_py()
            assert size > 0, "every event has data"
            self._acking.create_task(batch.ack())
            return len(batch), price
        price = 0.0
        for event in batch:
            properties = event.properties
            assert event.data, "every event has data"
            price += properties["price"]
            await event.ack()
        return len(batch), price

    async def settled(self) -> None:
        await self._subscription.flush()
        await self._acking.__aexit__(None, None, None)
        self._acking = await asyncio.TaskGroup().__aenter__()

    async def close(self) -> None:
        await self._session.close()


def _storage(durability: str) -> dict[str, str]:
    return {"sync": "none" if durability == "D1" else "group"}


PEER = Penstock()
