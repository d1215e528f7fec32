"""Servers that speak AMQP 1.0, each with a queue that stores the messages it accepts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct

import penstock
from bench.peers.artemis import Artemis
from bench.peers.penstock import Penstock, storage_of
from bench.peers.rabbitmq import Rabbit
from bench.processes import without_client
from bench.shape import Missing, Peer, Server
from penstock_testing.ports import free_port

QUEUE: Final = "orders"
PLUGIN: Final = "rabbitmq_amqp1_0"
NATIVE_SINCE: Final = 4
"""The first version of RabbitMQ that speaks AMQP 1.0 without a plugin."""
BUFFER_TIMEOUT_NS: Final = 0
"""Nanoseconds that the journal of Artemis waits for further writes. Its default is up to 3.3 ms,
which only delays a client that sends one message at a time; with 0 it writes at once."""


class Speaker(Struct, frozen=True):
    """A running server, and the address that its clients send to."""

    server_pid: int
    port: int
    queue: str
    user: str = ""
    """User name, also used as the password; empty for an anonymous client."""

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"


def speaker(contender: str, directory: Path, durability: str) -> AbstractContextManager[Speaker]:
    """Serve a contender that has the queue. Raises ``Missing`` if it cannot run here."""
    return _SPEAKERS[contender](directory, durability)


@contextmanager
def _penstock(directory: Path, durability: str) -> Iterator[Speaker]:
    if reason := without_client("python-qpid-proton"):
        raise Missing(reason)
    port = free_port()
    with Penstock("--amqp-port", str(port)).serve(directory, durability) as server:
        with penstock.connect(server.url) as session:
            session.queues.create(QUEUE, type="persistent", storage=storage_of(durability))
        yield Speaker(server.pid, port, QUEUE)


@contextmanager
def _artemis(directory: Path, durability: str) -> Iterator[Speaker]:
    """Serve Artemis, which creates the queue when a client sends to it."""
    with _served(Artemis(BUFFER_TIMEOUT_NS), directory, durability) as server:
        yield Speaker(server.pid, _port_of(server), QUEUE)


@contextmanager
def _rabbitmq(directory: Path, durability: str) -> Iterator[Speaker]:
    plain = Rabbit()
    is_native = int(plain.server_version().partition(".")[0] or 0) >= NATIVE_SINCE
    peer = plain if is_native else Rabbit(PLUGIN)
    with _served(peer, directory, durability) as server:
        asyncio.run(_declare(peer, server.url, durability))
        queue = f"/queues/{QUEUE}" if is_native else f"/amq/queue/{QUEUE}"
        yield Speaker(server.pid, _port_of(server), queue, user="guest")


async def _declare(peer: Peer, url: str, durability: str) -> None:
    """Create the queue."""
    broker = await peer.connect(url)
    await broker.prepare(durability, consumes=False)
    await broker.close()


def _served(peer: Peer, directory: Path, durability: str) -> AbstractContextManager[Server]:
    """Serve a peer within the block. Raises ``Missing`` if it cannot run here."""
    if reason := peer.missing():
        raise Missing(reason)
    return peer.serve(directory, durability)


def _port_of(server: Server) -> int:
    return int(server.url.rstrip("/").rpartition(":")[2])


_SPEAKERS: Final = MappingProxyType[str, Callable[[Path, str], AbstractContextManager[Speaker]]](
    {"penstock": _penstock, "artemis": _artemis, "rabbitmq": _rabbitmq}
)
