"""Redis streams: Debian's ``redis-server``, append-only file, redis-py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.processes import free_port, server_process
from bench.shape import BATCH, WINDOW, Broker, Server
from bench.workload import Encoded, Events, decode, encode

STREAM = "orders"
GROUP = "billing"


class Redis:
    name = "redis"

    def missing(self) -> str:
        if shutil.which("redis-server") is None:
            return "redis-server is not installed: apt-get install redis-server"
        try:
            version("redis")
        except PackageNotFoundError:
            return "its client is not installed: pip install redis"
        return ""

    def version(self) -> str:
        answer = subprocess.run(
            ["redis-server", "--version"], capture_output=True, text=True, check=True
        )
        server = answer.stdout.split("v=")[1].split()[0]
        return f"{server} (redis-py {version('redis')})"

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """D2: the append-only file is synced before an answer; D1: every second."""
        port = free_port()
        sync = "always" if durability == "D2" else "everysec"
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        command += ["--dir", str(directory), "--save", "", "--appendonly", "yes"]
        command += ["--appendfsync", sync]
        return server_process(command, port, f"redis://127.0.0.1:{port}", directory)

    async def connect(self, url: str) -> Broker:
        from redis.asyncio import Redis as Connection

        return RedisBroker(Connection.from_url(url))


class RedisBroker:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._unsent: list[bytes] = []

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self._connection.xgroup_create(STREAM, GROUP, id="0", mkstream=True)

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        """Nothing to make: a hash is there with its first field, a list with its first entry."""
        ((self._key, self._depth),) = keys.items()

    async def publish_keyed(self, events: Events, api: str) -> None:
        """A field of a hash each; of more than one event a list each, cut to its length."""
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
        await self._add([_payload(events, row) for row in range(len(events))])

    async def send(self, events: Events, row: int) -> None:
        """redis-py has no call that does not wait: what would be under way is collected."""
        self._unsent.append(_payload(events, row))
        if len(self._unsent) == BATCH:
            await self.flush()

    async def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        await self._add(unsent)

    async def _add(self, payloads: list[bytes]) -> None:
        if payloads:
            pipeline = self._connection.pipeline(transaction=False)
            for payload in payloads:
                pipeline.xadd(STREAM, {"e": payload})
            await pipeline.execute()

    async def publish_one(self, events: Events, row: int) -> None:
        await self._connection.xadd(STREAM, {"e": _payload(events, row)})

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        answer = await self._connection.xreadgroup(
            GROUP, "one", {STREAM: ">"}, count=min(count, WINDOW), block=60_000
        )
        price, ids = 0.0, []
        for event_id, fields in answer[0][1]:
            event = decode(fields[b"e"])
            assert event.data, "every event has data"
            price += event.properties["price"]
            ids.append(event_id)
        await self._connection.xack(STREAM, GROUP, *ids)
        return len(ids), price

    async def settled(self) -> None:
        """Each acknowledgement was answered."""

    async def close(self) -> None:
        await self._connection.aclose()


def _payload(events: Events, row: int) -> bytes:
    return encode(Encoded(events.datas[row], events.properties[row]))


PEER = Redis()
