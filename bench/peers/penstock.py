"""Penstock itself: a separate server process, with the asyncio client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock
import penstock.aio
from bench.ledger import Ledger
from bench.processes import server_process
from bench.shape import WINDOW, Broker, Client, Server, Subscriber
from bench.workload import Events
from penstock_core.tasks import start_task
from penstock_testing.ports import free_port

ORDERS = "orders"
DURABLE = "billing"


class Penstock:
    name = "penstock"

    def __init__(self, *options: str) -> None:
        """``options`` are further options of ``penstock serve`` for one shape."""
        self._options = options

    def missing(self) -> str:
        return ""

    def version(self) -> str:
        return penstock.__version__

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Serve a realm. The channel determines the durability (``storage.sync``), not the
        server."""
        port = free_port()
        command = [sys.executable, "-m", "penstock", "serve", "--data", str(directory)]
        command += ["--port", str(port), "--log-level", "warning"]
        command += [] if "--http-port" in self._options else ["--no-http"]
        command += self._options
        return server_process(command, port, f"penstock://127.0.0.1:{port}", directory=directory)

    async def connect(self, url: str) -> Broker:
        return PenstockBroker(await penstock.aio.connect(url), url)


class PenstockBroker:
    def __init__(self, session: penstock.aio.Session, url: str) -> None:
        self.session = session
        self.url = url
        self._acking = asyncio.TaskGroup()
        self._channels: dict[str, penstock.aio.Channel] = {}

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [ORDERS])
        await self.attach(ORDERS, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        for name in names:
            channel = await self.session.channels.create(
                name, type="persistent", retain_consumed=True, storage=storage_of(durability)
            )
            await channel.durables.create(DURABLE, type="shared")
            self._channels[name] = channel

    async def another(self) -> PenstockBroker:
        return PenstockBroker(await penstock.aio.connect(self.url), self.url)

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        await self._acking.__aenter__()
        self._channel = await self.session.channels.get(stream)
        self._producer = self._channel.producer()
        if consumes:
            durable = await self._channel.durables.get(DURABLE)
            self._subscription = durable.subscribe(window=WINDOW or None)
            await self._subscription.open()

    async def attach_at_end(self, stream: str) -> None:
        channel = await self.session.channels.get(stream)
        durable = await channel.durables.create("latest", type="shared", start="latest")
        await self.attach(stream, consumes=False)
        self._subscription = durable.subscribe(window=WINDOW)
        await self._subscription.open()

    async def publish_to(self, stream: str, events: Events) -> None:
        await self._channels[stream].publish_table(events.columns.table)

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        together = pa.concat_tables([batch.columns.table for batch in batches])
        for _ in range(rounds):
            await self._channels[stream].publish_table(together)

    async def prepare_broadcast(self, durability: str) -> None:
        attributes: penstock.ChannelAttributes = {"type": "transient"}
        if durability != "D0":
            attributes = {"type": "persistent", "storage": storage_of(durability)}
        self._channel = await self.session.channels.create(ORDERS, **attributes)

    async def subscriber(self) -> Subscriber:
        session = await penstock.aio.connect(self.url)
        subscription = (await session.channels.get(ORDERS)).subscribe()
        await subscription.open()
        return PenstockSubscriber(session, subscription)

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        self._channel = await self.session.channels.create(
            "orders", type="persistent", keys=dict(keys), storage=storage_of(durability)
        )

    async def prepare_expiring(self, durability: str, *, buries: bool) -> None:
        storage = storage_of(durability)
        dead = ""
        if buries:
            dead = "dead"
            await self.session.channels.create(dead, type="persistent", storage=storage)
        self._channel = await self.session.channels.create(
            "orders", type="persistent", event_ttl=True, dead_event_store=dead, storage=storage
        )

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        self._channel = await self.session.channels.create(
            "orders", type="persistent", retain_consumed=True, storage=storage_of(durability)
        )
        self._is_strict = kind == "strict"
        for name in names:
            type_ = cast("penstock.DurableType", "serial" if self._is_strict else kind)
            await self._channel.durables.create(name, type=type_, strict_order=self._is_strict)

    async def client(self, durable: str) -> Client:
        session = await penstock.aio.connect(self.url)
        channel = await session.channels.get("orders")
        subscription = (await channel.durables.get(durable)).subscribe(window=WINDOW)
        await subscription.open()
        return PenstockClient(session, subscription, is_strict=self._is_strict)

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

    async def expired_count(self) -> int:
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
        await self.session.close()


class PenstockSubscriber:
    def __init__(
        self, session: penstock.aio.Session, subscription: penstock.aio.Subscription
    ) -> None:
        self._session = session
        self._subscription = subscription

    async def work(self, ledger: Ledger, api: str) -> None:
        async for batch in self._subscription.batches():
            if api == "columns":
                table = batch.to_table()
                size = pc.sum(pc.binary_length(table.column("data"))).as_py()
                assert size > 0, "every event has data"
                price = pc.sum(table.column("price")).as_py()
            else:
                price = 0.0
                for event in batch:
                    assert event.data, "every event has data"
                    price += event.properties["price"]
            ledger.add(len(batch), price)

    async def close(self) -> None:
        await self._session.close()


class PenstockClient:
    def __init__(
        self,
        session: penstock.aio.Session,
        subscription: penstock.aio.DurableSubscription,
        *,
        is_strict: bool,
    ) -> None:
        self._session = session
        self._subscription = subscription
        self._is_strict = is_strict
        self._settling: set[asyncio.Future[None]] = set()

    async def work(self, ledger: Ledger, api: str) -> None:
        if api == "rows" and self._is_strict:
            await self._work_in_order(ledger)
        async for batch in self._subscription.batches():
            if api == "columns":
                await self._settle_columns(batch, ledger)
            else:
                await _settle_rows(batch, ledger)

    async def _work_in_order(self, ledger: Ledger) -> None:
        """Settle one event at a time, so that recalled events are left out."""
        async for event in self._subscription:
            assert event.data, "every event has data"
            price = event.properties["price"]
            if price == ledger.flaw and not event.redelivered:
                await event.rollback()
                ledger.add(0, 0.0, 1)
                continue
            ledger.record_in_order([event.data])
            await event.ack()
            ledger.add(1, price)

    async def _settle_columns(self, batch: penstock.aio.DeliveredBatch, ledger: Ledger) -> None:
        table = batch.to_table()
        ids, prices = batch.event_ids, table.column("price").to_numpy()
        assert pc.sum(pc.binary_length(table.column("data"))).as_py() > 0, "every event has data"
        flawed = np.flatnonzero(prices == ledger.flaw)
        flawed = flawed[[int(ids[row]) not in batch.redeliveries for row in flawed]]
        if self._is_strict and len(flawed):  # later events of this batch are delivered again
            ids, prices, flawed = ids[: flawed[0] + 1], prices[: flawed[0] + 1], flawed[:1]
        kept = np.delete(ids, flawed)
        if ledger.order:
            event_keys = kept if self._is_strict else np.setdiff1d(ids, list(batch.redeliveries))
            ledger.record_in_order(event_keys.tolist())
        if len(kept):
            self._settle(self._subscription.ack(kept.tolist()))
        if len(flawed):
            self._settle(self._subscription.rollback(ids[flawed].tolist()))
        ledger.add(len(kept), float(prices.sum() - prices[flawed].sum()), len(flawed))
        await asyncio.sleep(0)  # both acknowledgements are on their way

    def _settle(self, settling: Coroutine[None, None, None]) -> None:
        task = start_task(settling)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def hold(self) -> None:
        """Do nothing: the realm sends the window by itself."""

    async def settled(self) -> None:
        for task in list(self._settling):
            await task
        await self._subscription.flush()

    async def close(self) -> None:
        await self._session.close()


async def _settle_rows(batch: penstock.aio.DeliveredBatch, ledger: Ledger) -> None:
    price, rolled_back, event_keys = 0.0, 0, []
    for event in batch:
        assert event.data, "every event has data"
        worth = event.properties["price"]
        if ledger.order and not event.redelivered:
            event_keys.append(event.data)
        if worth == ledger.flaw and not event.redelivered:
            rolled_back += 1
            await event.rollback()
        else:
            price += worth
            await event.ack()
    ledger.record_in_order(event_keys)
    ledger.add(len(batch) - rolled_back, price, rolled_back)


def storage_of(durability: str) -> penstock.StorageProperties:
    """Return the attribute ``storage`` for a durability."""
    return {"sync": "none" if durability == "D1" else "group"}


PEER = Penstock()
