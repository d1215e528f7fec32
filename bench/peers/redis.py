"""Redis streams: Debian's ``redis-server``, append-only file, redis-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.ledger import Ledger
from bench.processes import START_TIMEOUT_S, server_process, without_client
from bench.shape import BATCH, WINDOW, Broker, Client, Missing, Server, Subscriber
from bench.workload import Encoded, Events, decode, encode
from penstock_testing.ports import free_port

STREAM = "orders"
GROUP = "billing"
CONNECTIONS = 100
"""Largest number of connections of a client."""
LOOK_S = 0.002
"""Seconds between two attempts while the server reads its file."""


class Redis:
    name = "redis"

    def missing(self) -> str:
        if shutil.which("redis-server") is None:
            return "redis-server is not installed: apt-get install redis-server"
        return without_client("redis")

    def version(self) -> str:
        answer = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        server = answer.stdout.split("v=")[1].split()[0]
        return f"{server} (redis-py {version('redis')})"

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Serve Redis. D2: the append-only file is synced before an answer; D1: every second."""
        port = free_port()
        sync = "always" if durability == "D2" else "everysec"
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        command += ["--dir", str(directory), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", sync]
        return server_process(command, port, f"redis://127.0.0.1:{port}", directory=directory)

    async def connect(self, url: str) -> Broker:
        connection = _client(url)
        await _wait_until_loaded(connection)
        return RedisBroker(connection, url)


def _client(url: str) -> Any:
    """Return a client. Each command under way needs a connection: further ones wait for it, because
    the client refuses them otherwise."""
    from redis.asyncio import BlockingConnectionPool
    from redis.asyncio import Redis as Connection

    pool = BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS, timeout=None)
    return Connection.from_pool(pool)


async def _wait_until_loaded(connection: Any) -> None:
    """Wait until a restarted server has read its file: until then it listens, but refuses every
    command. Raises ``BusyLoadingError`` if that takes too long."""
    from redis.exceptions import BusyLoadingError

    deadline_s = time.perf_counter() + START_TIMEOUT_S
    while True:
        try:
            await connection.ping()
        except BusyLoadingError:
            if time.perf_counter() > deadline_s:
                raise
            await asyncio.sleep(LOOK_S)
        else:
            return


class RedisBroker:
    def __init__(self, connection: Any, url: str) -> None:
        self._connection = connection
        self._url = url
        self._stream = STREAM
        self._keeps_nothing = False
        self._unsent: list[bytes] = []

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [STREAM])

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        for name in names:
            await self._connection.xgroup_create(name, GROUP, id="0", mkstream=True)

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make a consumer group for each durable."""
        if kind != "shared":
            raise Missing("a consumer group serves all its consumers at once")
        for name in names:
            await self._connection.xgroup_create(STREAM, name, id="0", mkstream=True)

    async def client(self, durable: str) -> Client:
        more = await self.another()
        return RedisClient(more._connection, durable)

    async def another(self) -> RedisBroker:
        return RedisBroker(_client(self._url), self._url)

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._stream = stream

    async def publish_to(self, stream: str, events: Events) -> None:
        await self._add([_payload(events, row) for row in range(len(events))], stream)

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        """Send a pipeline, encoded once, this number of times."""
        for batch in batches:
            pipeline = self._connection.pipeline(transaction=False)
            for row in range(len(batch)):
                pipeline.xadd(stream, {"e": _payload(batch, row)})
            commands = list(pipeline.command_stack)
            for _ in range(rounds):
                pipeline.command_stack = list(commands)
                await pipeline.execute()

    async def prepare_broadcast(self, durability: str) -> None:
        """Make the stream; at D0 do nothing: events go through publish and subscribe."""
        self._keeps_nothing = durability == "D0"

    async def subscriber(self) -> Subscriber:
        more = await self.another()
        if not self._keeps_nothing:
            return StreamReader(more._connection)
        listening = more._connection.pubsub(ignore_subscribe_messages=True)
        await listening.subscribe(STREAM)
        # The confirmation: later events are received
        await listening.get_message(ignore_subscribe_messages=False, timeout=60)
        return Listener(more._connection, listening)

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        """Do nothing: a hash exists after its first field, a list after its first entry."""
        ((self._key, self._depth),) = keys.items()

    async def publish_keyed(self, events: Events, api: str) -> None:
        """Publish to one field of a hash per value; for more than one event per value, to a list
        cut to its length."""
        pipeline = self._connection.pipeline(transaction=False)
        for row, properties in enumerate(events.properties):
            value = properties[self._key]
            if self._depth == 1:
                pipeline.hset(STREAM, value, _payload(events, row))
            else:
                pipeline.lpush(value, _payload(events, row))
                pipeline.ltrim(value, 0, self._depth - 1)
        await pipeline.execute()

    async def stored(self) -> int:
        if self._depth == 1:
            count: int = await self._connection.hlen(STREAM)
            return count
        pipeline = self._connection.pipeline(transaction=False)
        for value in await self._connection.keys():
            pipeline.llen(value)
        return sum(await pipeline.execute())

    async def publish_batch(self, events: Events, api: str) -> None:
        await self._add([_payload(events, row) for row in range(len(events))], self._stream)

    async def send(self, events: Events, row: int) -> None:
        """Collect the event for the next flush: redis-py has no call that does not wait."""
        self._unsent.append(_payload(events, row))
        if len(self._unsent) == BATCH:
            await self.flush()

    async def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        await self._add(unsent, self._stream)

    async def _add(self, payloads: list[bytes], stream: str) -> None:
        if payloads:
            pipeline = self._connection.pipeline(transaction=False)
            for payload in payloads:
                if self._keeps_nothing:
                    pipeline.publish(stream, payload)
                else:
                    pipeline.xadd(stream, {"e": payload})
            await pipeline.execute()

    async def publish_one(self, events: Events, row: int) -> None:
        await self._connection.xadd(self._stream, {"e": _payload(events, row)})

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        answer = await self._connection.xreadgroup(
            GROUP, "one", {self._stream: ">"}, count=min(count, WINDOW), block=60_000
        )
        price, ids = 0.0, []
        for event_id, fields in answer[0][1]:
            event = decode(fields[b"e"])
            assert event.data, "every event has data"
            price += event.properties["price"]
            ids.append(event_id)
        await self._connection.xack(self._stream, GROUP, *ids)
        return len(ids), price

    async def settled(self) -> None:
        """Do nothing: each acknowledgement was answered."""

    async def close(self) -> None:
        await self._connection.aclose()


class RedisClient:
    """A consumer of a group. It claims the events that it rolled back itself: entries cannot be
    returned, only claimed."""

    def __init__(self, connection: Any, group: str) -> None:
        self._connection = connection
        self._group = group
        self._name = f"consumer-{id(self)}"

    async def work(self, ledger: Ledger, api: str) -> None:
        while _goes_on():
            answer = await self._connection.xreadgroup(
                self._group, self._name, {STREAM: ">"}, count=WINDOW, block=1_000
            )
            if answer:
                flawed = await self._settle(answer[0][1], ledger, is_first=True)
                if flawed:
                    again = await self._connection.xclaim(
                        STREAM, self._group, self._name, 0, flawed
                    )
                    await self._settle(again, ledger, is_first=False)

    async def _settle(self, entries: Any, ledger: Ledger, *, is_first: bool) -> list[Any]:
        price, kept, flawed = 0.0, [], []
        for event_id, fields in entries:
            event = decode(fields[b"e"])
            assert event.data, "every event has data"
            worth = event.properties["price"]
            if worth == ledger.flaw and is_first:
                flawed.append(event_id)
            else:
                price += worth
                kept.append(event_id)
        if kept:
            await self._connection.xack(STREAM, self._group, *kept)
        ledger.add(len(kept), price, len(flawed))
        return flawed

    async def hold(self) -> None:
        await self._connection.xreadgroup(self._group, self._name, {STREAM: ">"}, count=WINDOW)

    async def settled(self) -> None:
        """Do nothing: each acknowledgement was answered."""

    async def close(self) -> None:
        """Close the connection. Unacknowledged entries stay with this consumer until another one
        claims them."""
        await self._connection.aclose()


class Listener:
    """A subscriber of events that are published and not stored."""

    def __init__(self, connection: Any, listening: Any) -> None:
        self._connection = connection
        self._listening = listening

    async def work(self, ledger: Ledger, api: str) -> None:
        while _goes_on():
            message = await self._listening.get_message(timeout=1.0)
            if message is None:
                continue
            event = decode(message["data"])
            assert event.data, "every event has data"
            ledger.add(1, event.properties["price"])

    async def close(self) -> None:
        await self._listening.aclose()
        await self._connection.aclose()


class StreamReader:
    """A reader of a stream from its beginning; the stream is empty when the reader begins."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def work(self, ledger: Ledger, api: str) -> None:
        newest = b"0"
        while _goes_on():
            answer = await self._connection.xread({STREAM: newest}, count=BATCH, block=1_000)
            if not answer:
                continue
            price = 0.0
            for event_id, fields in answer[0][1]:
                event = decode(fields[b"e"])
                assert event.data, "every event has data"
                price += event.properties["price"]
                newest = event_id
            ledger.add(len(answer[0][1]), price)

    async def close(self) -> None:
        await self._connection.aclose()


def _goes_on() -> bool:
    """Return whether this task is not cancelled: the client hides some cancellations."""
    task = asyncio.current_task()
    return task is None or not task.cancelling()


def _payload(events: Events, row: int) -> bytes:
    return encode(Encoded(events.datas[row], events.properties[row]))


PEER = Redis()
