"""A publisher over each of three protocols: native, HTTP and AMQP. It either waits for each
confirmation and is measured, or it floods. S16 starts it as a separate process."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final, Protocol

import msgspec

import penstock.aio
from bench.amqp_peers import Speaker
from bench.amqp_sends import Job as AmqpJob
from bench.amqp_sends import Sending
from bench.measuring import percentiles_us
from bench.processes import beside, figures_of
from bench.shape import Figures
from penstock.client.connection.threads import fast_loop

SIZE: Final = 128
UNCONFIRMED: Final = 1_000
"""Events of a native flood between two waits for their confirmation."""
HTTP_CONNECTIONS: Final = 8
"""Connections of a flood over HTTP: each of them has one request at a time."""
WARM_UP: Final = 200
FLOODS: Final = "flooding"
"""The line that a process prints once it floods."""


class Job(msgspec.Struct, frozen=True):
    """The work of the process."""

    door: str
    url: str
    """URL of the native port."""
    http_port: int
    amqp: Speaker
    channel: str
    seconds: float = 0.0
    """Duration of the measurement; 0 means that the process floods until it is ended."""


class Publisher(Protocol):
    """A connection over one protocol that publishes events."""

    def one(self) -> None:
        """Publish one event, and wait until it is confirmed."""
        ...

    def flood(self) -> None:
        """Publish some thousand events as fast as possible."""
        ...


class Native:
    """Publishes over the native protocol."""

    def __init__(self, job: Job) -> None:
        self._loop = fast_loop()
        self._loop.run_until_complete(self._open(job))

    async def _open(self, job: Job) -> None:
        session = await penstock.aio.connect(job.url)
        self._channel = await session.channels.get(job.channel)
        self._producer = self._channel.producer()

    def one(self) -> None:
        self._loop.run_until_complete(self._channel.publish(b"x" * SIZE))

    def flood(self) -> None:
        self._loop.run_until_complete(self._flood())

    async def _flood(self) -> None:
        for _ in range(UNCONFIRMED):
            await self._producer.send(b"x" * SIZE)
        await self._producer.flush()


class Http:
    """Publishes over HTTP, with one event in each request."""

    def __init__(self, job: Job) -> None:
        self._path = f"/api/v1/channels/{job.channel}/events"
        self._headers = {"Content-Type": "application/json"}
        self._body = msgspec.json.encode({"data": "x" * SIZE})
        self._port = job.http_port
        self._connection = http.client.HTTPConnection("127.0.0.1", job.http_port)
        self._loop = fast_loop()

    def one(self) -> None:
        self._connection.request("POST", self._path, self._body, self._headers)
        with self._connection.getresponse() as answer:
            if answer.status != http.HTTPStatus.CREATED:
                raise RuntimeError(answer.read().decode())
            answer.read()

    def flood(self) -> None:
        self._loop.run_until_complete(self._flood())

    async def _flood(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(HTTP_CONNECTIONS):
                group.create_task(self._post(UNCONFIRMED // HTTP_CONNECTIONS))

    async def _post(self, count: int) -> None:
        """Publish events over a new connection. Requests are written as bytes, so that the flood
        needs little processor time."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = f"POST {self._path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(self._body)}\r\n\r\n"
        request = head.encode() + self._body
        for _ in range(count):
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 201 " not in answer:
                raise RuntimeError(answer.decode())
            length = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()
        await writer.wait_closed()


class Amqp:
    """Publishes over AMQP 1.0."""

    def __init__(self, job: Job) -> None:
        to = msgspec.structs.replace(job.amqp, queue=f"topic://{job.channel}")
        self._sending = Sending(AmqpJob(to, SIZE, 0.0, is_settled=False))

    def one(self) -> None:
        self._sending.send_one()

    def flood(self) -> None:
        self._sending.send_for(0.05)


DOORS: Final[Mapping[str, Callable[[Job], Publisher]]] = MappingProxyType(
    {"native": Native, "HTTP": Http, "AMQP": Amqp}
)


def latencies_of(job: Job) -> Figures:
    """Return the latencies of a process that publishes one event after the other."""
    return figures_of([sys.executable, "-m", "bench.doors"], job)


def flooding(job: Job) -> AbstractContextManager[None]:
    """Run a process that floods within the block."""
    return beside("bench.doors", job, FLOODS)


def measured(publisher: Publisher, seconds: float) -> Figures:
    """Publish one event after the other, each after the confirmation of the previous one."""
    for _ in range(WARM_UP):
        publisher.one()
    latencies = []
    started_s = now_s = time.perf_counter()
    while now_s - started_s < seconds:
        publisher.one()
        before_s, now_s = now_s, time.perf_counter()
        latencies.append(now_s - before_s)
    return percentiles_us(latencies) | {"achieved_per_s": len(latencies) / (now_s - started_s)}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=Job)
    publisher = DOORS[job.door](job)
    if job.seconds:
        print(msgspec.json.encode(measured(publisher, job.seconds)).decode())
        return
    for turn in itertools.count():
        publisher.flood()
        if turn == 0:
            print(FLOODS, flush=True)


if __name__ == "__main__":
    main()
