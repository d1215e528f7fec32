"""Inspection of three NATS servers from outside the cluster: the state that they report, and the
contents of a cluster's streams. Nothing is created or changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ssl import SSLContext
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock_cluster.storage.jetstream import guard
from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.blobs import StreamBlobs
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection, together
from penstock_cluster.storage.jetstream.engine import FRAME_BYTES_MAX
from penstock_cluster.storage.jetstream.guard import ServerState, StreamCopy
from penstock_cluster.storage.jetstream.journal import JetStreamJournal
from penstock_cluster.storage.jetstream.marks import RegistryMarks
from penstock_cluster.storage.jetstream.registry import BucketRegistry
from penstock_cluster.storage.jetstream.room import EngineRoom
from penstock_cluster.storage.jetstream.stream import NatsStream, StreamInfo, check_settings
from penstock_core.vocabulary.errors import Damaged, PenstockError, Unavailable
from penstock_core.vocabulary.ports import (
    Clock,
    EngineCheck,
    EngineHealth,
    EngineServer,
    Offload,
    VersionedRecord,
)

ANSWER_S: Final = 10.0
"""Longest wait for servers without a leader."""
READ_S: Final = 120.0
"""Longest time for reading a whole stream."""
_OPEN_S: Final = 4.0
"""Longest wait for a connection, in seconds."""
_ANY_EPOCH: Final = 1 << 62
"""An epoch above that of every owner, so that every frame in a stream is readable."""


class _StreamNames(Struct):
    streams: list[str] | None = None


class JetStreamInspector:
    """The :class:`~penstock_core.vocabulary.ports.EngineInspector` of a NATS cluster."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        name: str = "penstock",
        monitors: Sequence[str] = (),
        clock: Clock,
        offload: Offload,
        tls: SSLContext | None = None,
    ) -> None:
        """``name``, ``monitors`` and ``tls`` are those of the cluster's nodes."""
        self._urls = list(servers)
        self._name = name
        self._monitors = list(monitors) or guard.monitors_of(servers)
        self._clock = clock
        self._offload = offload
        self._tls = tls
        self._connection: NatsConnection | None = None
        self._connecting = asyncio.Lock()

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        """Return the records of the registry whose keys begin with ``prefix``
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.records`)."""
        async with _in_time(ANSWER_S):
            registry = await self._open_registry()
            if registry is None:
                return {}
            records = {key: await registry.get(key) for key in await registry.list(prefix)}
        return {key: record for key, record in records.items() if record is not None}

    async def health(self) -> EngineHealth:
        """Return the state of the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.health`). The leader is that of the
        first shard's stream, if that exists."""
        states = await self._read_states()
        read = [state for state in states if not state.failure]
        size = max((state.cluster_size for state in read), default=len(states))
        leader, lag = next((state.leader for state in read if state.leader), ""), 0
        has_quorum = 2 * len(read) > size and bool(leader)
        info, answers = await self._first_shard()
        if info is not None:
            leader = info.cluster.leader
            lag = max((replica.lag for replica in info.cluster.replicas), default=0)
        return EngineHealth(
            kind="jetstream",
            version=min((state.version for state in read), key=guard.version_of, default=""),
            has_quorum=has_quorum and answers and bool(leader),
            servers=size,
            present=len(read),
            leader=leader,
            sync="always" if read and all(state.syncs_always for state in read) else "interval",
            lag=lag,
            damage=tuple(await self._holes(0)),
            room=guard.room_of(states),
            rooms=guard.rooms_of(states),
        )

    async def servers(self) -> Sequence[EngineServer]:
        """Return all known servers of the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.servers`)."""
        leader = (await self.health()).leader
        return [
            EngineServer(
                name=state.name,
                address=state.monitor,
                version=state.version,
                leads=bool(state.name) and state.name == leader,
                room=None if state.failure else state.free_bytes,
                failure=state.failure,
            )
            for state in await self._read_states()
        ]

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        """Check the engine's requirements for use by a node, and return the results
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.checks`)."""
        states = await self._read_states()
        read = [state for state in states if not state.failure]
        names = ", ".join(state.name for state in read)
        versions = ", ".join(sorted({state.version for state in read}))
        return [
            _servers(states),
            *_check_each("version", states, guard.check_version, success=f"NATS {versions}"),
            *_check_each(
                "sync", states, guard.check_sync, success=f"sync_interval: always on {names}"
            ),
            *_check_each(
                "replicas", states, guard.check_number, success="three servers have each stream"
            ),
            *await self._check_contents(shard),
        ]

    async def clusters(self) -> Sequence[str]:
        """Return the names of all clusters on the engine
        (:meth:`penstock_core.vocabulary.ports.EngineInspector.clusters`)."""
        async with _in_time(ANSWER_S):
            try:
                answer = await (await self._connected()).ask("$JS.API.STREAM.NAMES", b"{}")
            except (JetStreamRefusal, Unanswered) as error:
                raise Unavailable(f"the engine's streams cannot be listed: {error}") from error
        names, end = msgspec.json.decode(answer, type=_StreamNames).streams or (), "-shard-0"
        return sorted(name.removesuffix(end) for name in names if name.endswith(end))

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    # --- requests -------------------------------------------------------------------------

    async def _check_contents(self, shard: int) -> Sequence[EngineCheck]:
        """Check the streams of a shard: their settings, the mark of the owner, and their bytes."""
        try:
            await self._connected()
        except Unavailable as error:
            return [EngineCheck(name="connection", finding=f"{error}", is_ok=False)]
        return await together(
            [
                _checked_in_time("streams", self._check_streams(shard)),
                _checked_in_time("history", self._compare_mark(shard)),
                self._check_copies(shard),
            ]
        )

    async def _check_copies(self, shard: int) -> EngineCheck:
        check = await _checked_in_time("copies", self._verify(shard), READ_S)
        if not check.is_ok:
            return check
        silent = [state.monitor for state in await self._read_states() if state.failure]
        return replace(check, not_checked=tuple(silent))

    async def _first_shard(self) -> tuple[StreamInfo | None, bool]:
        """Return the stream of the first shard (None if it does not exist), and whether the servers
        answer."""
        try:
            connection = await self._connected()
        except Unavailable:
            return None, False
        try:
            info = await NatsStream(connection, f"{self._name}-shard-0").try_info()
        except Unavailable:
            return None, True
        return info, info is not None

    async def _check_streams(self, shard: int) -> str:
        """Compare the settings of the cluster's streams with those that they were created with.
        Return the finding. Raises ``Unavailable``."""
        connection = await self._connected()
        journal = await self._open_journal(shard)
        registry = BucketRegistry(connection, self._name)
        blobs = StreamBlobs(connection, f"{self._name}-blobs-{shard}", self._clock)
        names = []
        for stream, settings in (
            (registry.stream, registry.settings),
            (journal.stream, journal.settings),
            (blobs.stream, blobs.settings),
        ):
            if await stream.exists():
                check_settings(await stream.info(), settings)
                names.append(stream.name)
        if not names:
            return f"the engine has no stream of a cluster {self._name!r} yet"
        return f"{', '.join(names)} have the settings with which they were created"

    async def _compare_mark(self, shard: int) -> str:
        """Compare the journal's stream with the mark of its owner. Return the finding. Raises
        ``Unavailable``."""
        if await self._open_registry() is None:
            if await (await self._open_stream(f"shard-{shard}")).exists():
                raise Unavailable(
                    f"the register of cluster {self._name!r} is missing, but its events exist. To "
                    f"change: restore stream KV_{self._name} from a backup of the engine"
                )
            return f"the engine has no cluster {self._name!r} yet"
        if not await (await self._open_journal(shard)).compare_mark():
            return "nothing was stored yet"
        return "the stream contains everything that its owner has stored"

    async def _verify(self, shard: int) -> str:
        """Read the journal's stream, and look for messages that copies of it lack. Return the
        finding. Raises ``Damaged``, ``Unavailable``."""
        async with _in_time(ANSWER_S):
            stream = await self._open_stream(f"shard-{shard}")
            exists = await self._open_registry() is not None and await stream.exists()
            if exists:  # fails soon if the stream is unreadable, instead of after READ_S
                await stream.message(max(1, (await stream.info()).state.last_seq))
        if not exists:
            return "nothing was stored yet"
        blocks = await (await self._open_journal(shard)).verify()
        if holes := await self._holes(shard):
            raise Damaged(f"{'; '.join(holes)}. To fix: {_REPLACE}")
        return f"the checksums of {blocks:,} blocks match, and no readable copy lacks messages"

    async def _holes(self, shard: int) -> list[str]:
        """Return a text for each server whose copy of the journal's stream lacks messages."""
        stream = f"{self._name}-shard-{shard}"
        copies = await together(self._read_copy(monitor, stream) for monitor in self._monitors)
        return [
            f"the copy of stream {stream} on the server at {monitor} lacks {copy.holes} messages"
            for monitor, copy in zip(self._monitors, copies, strict=True)
            if copy is not None and copy.holes
        ]

    async def _read_states(self) -> list[ServerState]:
        return await together(self._read_state(monitor) for monitor in self._monitors)

    async def _read_state(self, monitor: str) -> ServerState:
        return await self._offload(partial(guard.read_server, monitor, self._tls))

    async def _read_copy(self, monitor: str, stream: str) -> StreamCopy | None:
        return await self._offload(partial(guard.read_copy, monitor, stream, self._tls))

    async def _open_registry(self) -> BucketRegistry | None:
        registry = BucketRegistry(await self._connected(), self._name)
        return registry if await registry.stream.exists() else None

    async def _open_stream(self, part: str) -> NatsStream:
        return NatsStream(await self._connected(), f"{self._name}-{part}")

    async def _open_journal(self, shard: int) -> JetStreamJournal:
        marks = BucketRegistry(await self._connected(), self._name, "marks")
        return JetStreamJournal(
            await self._open_stream(f"shard-{shard}"),
            RegistryMarks(marks, f"{shard}"),
            _ANY_EPOCH,
            clock=self._clock,
            frame_bytes=FRAME_BYTES_MAX,
            room=EngineRoom(),
        )

    async def _connected(self) -> NatsConnection:
        """Return the connection to the servers, which is opened at the first call."""
        async with self._connecting:  # several requests run at the same time
            if self._connection is None:
                self._connection = await NatsConnection.open(
                    self._urls, _ignore, _OPEN_S, tls=self._tls
                )
        return self._connection


_REPLACE: Final = "stop that server, move the stream's folder aside, and start it again"


async def _ignore() -> None:
    """Do nothing after a reconnection: the inspector repeats its requests anyway."""


@asynccontextmanager
async def _in_time(seconds: float) -> AsyncIterator[None]:
    """Raise ``Unavailable`` if the block takes longer than ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(
            f"the engine has not answered for {seconds:.0f} s: start a majority of its servers"
        ) from None


def _checked(name: str, check: Callable[[], None], success: str) -> EngineCheck:
    """Run a check that raises ``Unavailable`` if it fails. ``success`` is the finding otherwise."""
    try:
        check()
    except Unavailable as error:
        return EngineCheck(name=name, finding=f"{error}", is_ok=False)
    return EngineCheck(name=name, finding=success, is_ok=True)


def _servers(states: Sequence[ServerState]) -> EngineCheck:
    """Check that a majority of the servers answers; a silent server may be down."""
    names = ", ".join(state.name for state in states if not state.failure) or "none"
    silent = [f"{state.monitor}: {state.failure}" for state in states if state.failure]
    check = _checked("servers", lambda: guard.check_majority(states), f"{names} answer")
    if check.is_ok or not silent:
        return replace(check, not_checked=tuple(silent))
    problem = (
        f"only {names} of {len(states)} servers answer, and a majority has to ({'; '.join(silent)})"
        f". To fix: start the others; if they run, set http_port: {guard.MONITORING_PORT} in their "
        f"nats-server.conf"
    )
    return EngineCheck(name="servers", finding=problem, is_ok=False)


def _check_each(
    name: str, states: Sequence[ServerState], check: Callable[[ServerState], None], success: str
) -> Iterator[EngineCheck]:
    """Yield one check for each misconfigured server, or one for all."""
    read = [state for state in states if not state.failure]
    silent = tuple(state.monitor for state in states if state.failure)
    results = [_checked(name, partial(check, state), success) for state in read]
    wrong = [result for result in results if not result.is_ok]
    if wrong:
        yield from wrong
    else:
        yield EngineCheck(
            name=name, finding=success if read else "", is_ok=True, not_checked=silent
        )


async def _checked_in_time(
    name: str, check: Awaitable[str], seconds: float = ANSWER_S
) -> EngineCheck:
    """Run a check that returns its finding or raises an error. It fails after ``seconds``."""
    try:
        async with _in_time(seconds):
            return EngineCheck(name=name, finding=await check, is_ok=True)
    except PenstockError as error:
        return EngineCheck(name=name, finding=f"{error}", is_ok=False)
