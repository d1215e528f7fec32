"""A storage engine of three NATS servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from ssl import SSLContext
from typing import Final

from penstock_cluster.storage.jetstream.blobs import StreamBlobs
from penstock_cluster.storage.jetstream.connection import NatsConnection, together
from penstock_cluster.storage.jetstream.frames import HEAD_BYTES
from penstock_cluster.storage.jetstream.guard import (
    ServerState,
    are_electing,
    are_joining,
    check_majority,
    check_servers,
    monitors_of,
    read_server,
    room_of,
    rooms_of,
    version_of,
)
from penstock_cluster.storage.jetstream.journal import (
    CACHED_BYTES_MAX,
    READ_ONLY_EPOCH,
    JetStreamJournal,
)
from penstock_cluster.storage.jetstream.marks import RegistryMarks
from penstock_cluster.storage.jetstream.near import NearConnections
from penstock_cluster.storage.jetstream.registry import BucketRegistry
from penstock_cluster.storage.jetstream.room import EngineRoom
from penstock_cluster.storage.jetstream.stream import NatsStream, pauses
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.ports import Clock, EngineHealth, Offload

FRAME_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes of a frame; a larger block has several frames."""
_PAYLOAD_KEPT: Final = 4 << 10
"""Bytes of a message that are reserved for its headers."""
_SETTLE_S: Final = 20.0
"""Time after which servers that are starting count as down. A read of a frozen server takes two
seconds, so a limit on the number of reads would not bound this time."""
_ROOM_READ_EVERY_US: Final = 10_000_000
"""Age of the reported room, in microseconds, after which the servers are read again."""

Connect = Callable[[Sequence[str], Callable[[], Awaitable[None]]], Awaitable[NatsConnection]]
"""Connects to one of the servers, and calls the callback after each reconnection."""


class JetStreamEngine:
    """The :class:`~penstock_core.vocabulary.ports.StorageEngine` on a NATS cluster."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str = "penstock",
        monitors: Sequence[str] = (),
        clock: Clock,
        offload: Offload,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        tls: SSLContext | None = None,
        connect: Connect | None = None,
    ) -> None:
        """``name`` is the prefix of all stream names, so that several clusters can share the
        servers. ``monitors`` are the monitoring URLs of the servers, unless they use the default
        port. Journals keep ``cached_bytes_max`` bytes of blocks after they are opened. ``tls``
        verifies the servers and identifies this node to them."""
        self._connect = connect or partial(NatsConnection.open, tls=tls)
        self._uses_leaders = connect is None
        """Whether appends use connections to the leaders of streams; tests replace ``connect``."""
        self._near: NearConnections | None = None
        self._tls = tls
        self._servers = list(servers)
        self._name = name
        self._monitors = list(monitors) or monitors_of(servers)
        self._clock = clock
        self._offload = offload
        self._frame_bytes_max = frame_bytes_max
        self._cached_bytes_max = cached_bytes_max
        self._journals: list[JetStreamJournal] = []
        self._registries: list[BucketRegistry] = []
        self._blobs: list[StreamBlobs] = []
        self._marks: BucketRegistry | None = None
        """The part of the register with the marks of journals."""
        self._connection: NatsConnection | None = None
        self._room = EngineRoom(self._refresh_room)
        self._read_us = 0
        """Time of the latest read of the servers, on the steady clock."""
        self._checking: asyncio.Task[None] | None = None
        self._refused: Unavailable | None = None
        """Why the servers must not be used, since a check of their settings has failed."""

    async def open(self) -> JetStreamEngine:
        """Connect, and check the servers. Raises ``Unavailable``, whose text names the setting to
        change, if a server could lose data that it has acknowledged."""
        self._connection = await self._connect(self._servers, self._check_again)
        if self._uses_leaders:
            self._near = NearConnections(self._servers, self._reach, self._connection)
        try:
            servers = await self._settled_servers()
            check_servers(servers)
            check_majority(servers)
        except BaseException:
            await self.close()
            raise
        return self

    async def check(self, shard: int) -> None:
        """Check that the engine keeps acknowledged appends and still has those of this shard
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.check`)."""
        journal = await self._journal(shard, 1)
        try:
            await journal.inspect()
        finally:
            await journal.close()

    async def registry(self) -> BucketRegistry:
        """Return the engine's registry
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.registry`)."""
        registry = BucketRegistry(self._connected(), self._name)
        self._registries.append(registry)
        return await registry.open()

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> JetStreamJournal:
        """Open the journal of a shard for the owner with this epoch, which excludes older owners
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.journal`)."""
        if epoch < 1 or begins < 0:
            raise InvalidArgument(
                f"epoch is {epoch} and begins is {begins}; they must be at least 1 and at least 0"
            )
        journal = await self._journal(shard, epoch)
        self._journals = [opened for opened in self._journals if not opened.stream.is_closed]
        self._journals.append(journal)
        try:
            await journal.open(begins)
        except BaseException:
            await journal.close()
            raise
        self._start_connecting_leaders()
        return journal

    async def open_read_only(self, shard: int) -> JetStreamJournal | None:
        """Open the journal of a shard for reading only; None if it was never begun
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.open_read_only`)."""
        journal = await self._journal(shard, READ_ONLY_EPOCH)
        try:
            if await journal.read_without_fence():
                self._journals.append(journal)
                return journal
        except BaseException:
            await journal.close()
            raise
        await journal.close()
        return None

    async def _journal(self, shard: int, epoch: int) -> JetStreamJournal:
        """Return the journal of a shard without opening its stream."""
        connection = self._connected()
        if self._marks is None:
            self._marks = await BucketRegistry(connection, self._name, "marks").open(watches=False)
        return JetStreamJournal(
            NatsStream(connection, f"{self._name}-shard-{shard}"),
            RegistryMarks(self._marks, f"{shard}"),
            epoch,
            clock=self._clock,
            frame_bytes=self._frame_bytes(),
            room=self._room,
            cached_bytes_max=self._cached_bytes_max,
        )

    async def blobs(self, shard: int) -> StreamBlobs:
        """Return blobs stored on the engine itself
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.blobs`)."""
        blobs = StreamBlobs(
            self._connected(), f"{self._name}-blobs-{shard}", self._clock, room=self._room
        )
        self._blobs.append(blobs)
        return await blobs.open()

    async def health(self) -> EngineHealth:
        """Return the state of the engine
        (:meth:`penstock_core.vocabulary.ports.StorageEngine.health`). Settings that changed since
        the start stop the journals, as after a reconnection."""
        servers = await self._read_servers()
        await self._compare(servers)
        readable = [server for server in servers if not server.failure]
        size = max((server.cluster_size for server in readable), default=len(servers))
        streams = [
            open_journal.stream
            for open_journal in self._open_journals()
            if open_journal.stream.was_seen
        ]
        stream_infos = [await stream.try_info() for stream in streams]
        self._start_connecting_leaders()
        infos = [info for info in stream_infos if info is not None]
        leaders = [info.cluster.leader for info in infos] or [_leader(readable)]
        lags = [replica.lag for info in infos for replica in info.cluster.replicas]
        damage = [text for stream in self._streams() for text in stream.damage.values()]
        if self._refused is not None:
            damage.append(f"{self._refused}")
        return EngineHealth(
            kind="jetstream",
            version=min((server.version for server in readable), key=version_of, default=""),
            has_quorum=2 * len(readable) > size and None not in stream_infos and all(leaders),
            servers=size,
            present=len(readable),
            leader=leaders[0],
            sync="always" if all(server.syncs_always for server in readable) else "interval",
            lag=max(lags, default=0),
            damage=tuple(damage),
            room=room_of(servers),
            rooms=rooms_of(servers),
        )

    async def close(self) -> None:
        """Close the streams of all journals, and the connections."""
        for stream in self._streams():
            stream.close()
        if self._checking is not None:
            self._checking.cancel()
        if self._near is not None:
            await self._near.close()
        if self._connection is not None:
            await self._connection.close()

    def _connected(self) -> NatsConnection:
        """Return the shared connection. Raises ``Unavailable`` while a server must not be used."""
        if self._refused is not None:
            raise Unavailable(f"{self._refused}") from self._refused
        assert self._connection is not None, "the engine is opened before it is used"
        return self._connection

    def _streams(self) -> list[NatsStream]:
        """Return all streams that this engine has opened."""
        return [
            *(journal.stream for journal in self._journals),
            *(registry.stream for registry in (*self._registries, self._marks) if registry),
            *(blobs.stream for blobs in self._blobs),
        ]

    def _open_journals(self) -> list[JetStreamJournal]:
        return [journal for journal in self._journals if not journal.stream.is_closed]

    def _frame_bytes(self) -> int:
        """Return the largest frame that the servers accept, in bytes. Raises ``Unavailable`` if
        their limit is too small."""
        room = self._connected().payload_max - _PAYLOAD_KEPT
        if room <= HEAD_BYTES:
            raise Unavailable(
                f"the engine takes messages of {room + _PAYLOAD_KEPT} bytes only. To fix: "
                f"set max_payload: 8MB in nats-server.conf of each server"
            )
        return min(self._frame_bytes_max, room)

    async def _settled_servers(self) -> list[ServerState]:
        """Read the servers until they have settled: those that have just started need some seconds
        to know their state."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _SETTLE_S
        for pause in pauses():
            servers = await self._read_servers()
            is_starting = any(server.name and server.failure for server in servers)
            is_settled = not is_starting and _passes(check_majority, servers)
            is_wrong = not _passes(check_servers, servers)
            is_settled = is_settled and not are_electing(servers)
            is_known = not are_joining(servers) and (is_settled or is_wrong)
            if is_known or loop.time() >= ends_s:
                return servers
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    async def _read_servers(self) -> list[ServerState]:
        # Taken before the read, which may not include the bytes that are sent during the read.
        sent = self._room.sent
        servers = await together(self._read_server(monitor) for monitor in self._monitors)
        self._read_us = self._clock.steady_us()
        self._room.note_reported(room_of(servers), sent)
        return servers

    async def _read_server(self, monitor: str) -> ServerState:
        return await self._offload(partial(read_server, monitor, self._tls))

    async def _check_again(self) -> None:
        """Check the settings of all servers again: the server of the new connection may have been
        reconfigured."""
        self._start_check()

    def _start_check(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = start_task(self._check(), name="engine-check")

    async def _check(self) -> None:
        await self._compare(await self._settled_servers())
        self._start_connecting_leaders()

    async def _reach(self, server: str) -> NatsConnection:
        """Connect to one server, for appends to the streams that it leads."""
        return await NatsConnection.open([server], self._check_again, tls=self._tls)

    def _start_connecting_leaders(self) -> None:
        if self._near is not None:
            journals = self._open_journals()
            self._near.start_connecting([journal.stream for journal in journals if journal.appends])

    async def _compare(self, servers: Sequence[ServerState]) -> None:
        """Stop all journals if the settings of a server could lose acknowledged data. Stop a
        journal whose stream has changed. A server that does not answer is not judged."""
        try:
            check_servers(servers)
        except Unavailable as error:
            self._refused = error
            for journal in self._open_journals():
                journal.end(error)
        else:
            # An earlier refusal ends only when every server was read: one of them was the reason.
            if not any(server.failure for server in servers):
                self._refused = None
        for journal in self._open_journals():
            await journal.check()

    def _refresh_room(self) -> None:
        """Read the servers again if the latest read is some seconds old. An append does not wait
        for it, because a server may not answer."""
        if self._clock.steady_us() - self._read_us > _ROOM_READ_EVERY_US:
            self._start_check()


def _leader(servers: Sequence[ServerState]) -> str:
    return next((server.leader for server in servers if server.leader), "")


def _passes(check: Callable[[Sequence[ServerState]], None], servers: Sequence[ServerState]) -> bool:
    """Return whether the servers pass a check."""
    try:
        check(servers)
    except Unavailable:
        return False
    return True
