"""One stream of JetStream: its settings, its messages, and requests to its leader.

All requests go to the leader, because other replicas may be behind. A request without an answer is
repeated until the stream is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain, repeat
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import (
    NO_CLUSTER,
    JetStreamRefusal,
    NatsConnection,
)
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import Damaged, StorageFailed, Trimmed, Unavailable

T = TypeVar("T")
_log: Final = logger("penstock.jetstream")

WRONG_SEQUENCE: Final = frozenset({10071, 10164})
"""Numbers of JetStream's errors if another message is stored at the expected sequence, or is in
flight to it."""
# Numbers of JetStream's errors.
_NO_MESSAGE: Final = 10037
_NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_NO_PEERS: Final = 10005
_REPLICAS: Final = 3
_PAUSES_S: Final = (0.01, 0.03, 0.1, 0.2)
_LONGEST_PAUSE_S: Final = 0.3
"""Seconds between repetitions of a request: first ``_PAUSES_S``, then this pause."""
_STREAM_POLLS: Final = 5
"""Polls before a stream counts as missing."""
_LEADER_POLLS: Final = 100
"""Polls for a new leader after the old one was told to step down."""
_PEERS_POLLS: Final = 40
"""Attempts to create a stream while too few servers have joined the cluster."""

REPLICATED: Final[Mapping[str, object]] = {
    "retention": "limits",
    "storage": "file",
    "discard": "new",
    "num_replicas": _REPLICAS,
    "max_age": 0,
    "max_bytes": -1,
    "max_msgs": -1,
    "max_msg_size": -1,
    "max_consumers": -1,
    "allow_direct": False,
    "deny_delete": True,
    "deny_purge": False,
    "sealed": False,
    "no_ack": False,
    "mirror": None,
    "sources": None,
    "republish": None,
    "subject_transform": None,
}
"""Settings of every stream of Penstock: nothing expires, and a majority stores each message."""

_OPTIONS: Final = {
    "num_replicas": "--replicas",
    "max_age": "--max-age",
    "max_bytes": "--max-bytes",
    "max_msgs": "--max-msgs",
    "max_msg_size": "--max-msg-size",
    "max_msgs_per_subject": "--max-msgs-per-subject",
    "discard": "--discard",
    "subjects": "--subjects",
}
"""Settings that the command ``nats stream edit`` changes, each with its option."""
_ABSENT: Final[Mapping[str, object]] = {
    "deny_purge": False,
    "sealed": False,
    "no_ack": False,
    "deny_delete": False,
    "allow_direct": False,
    "allow_rollup_hdrs": False,
    "max_age": 0,
}
"""Values of the settings that the server leaves out of its answers."""


class StreamState(Struct):
    messages: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] | None = None


class StreamReplica(Struct):
    """A server that stores a copy of a stream and does not lead it."""

    name: str
    current: bool = False
    offline: bool = False
    lag: int = 0


class StreamPeers(Struct):
    """The servers that store a stream."""

    leader: str = ""
    replicas: list[StreamReplica] = field(default_factory=list)


class StreamInfo(Struct):
    """Settings and state of a stream, as its leader reports them."""

    config: dict[str, Any]
    state: StreamState
    cluster: StreamPeers = field(default_factory=StreamPeers)
    total: int = 0

    @property
    def incarnation(self) -> str:
        """Distinguishes this stream from an earlier one with the same name."""
        return str((self.config.get("metadata") or {}).get(INCARNATION, ""))


INCARNATION: Final = "penstock-incarnation"


class StoredMessage(Struct):
    """A message in a stream."""

    seq: int
    subject: str = ""
    data: bytes = b""
    hdrs: bytes = b""
    time: str = ""


class _FetchedMessage(Struct):
    message: StoredMessage


class _Ack(Struct):
    seq: int


class NatsStream:
    """A stream whose requests are repeated until it answers or is closed."""

    def __init__(self, connection: NatsConnection, name: str) -> None:
        self.name = name
        self.damage: dict[str, str] = {}
        """Newest damage found on each server, as text for operators."""
        self.was_seen = False
        """Whether the stream was created or found by this process; from then on it has to exist."""
        self._connection = connection
        self._leader_connection: NatsConnection | None = None
        """Connection to the leader, while it is used."""
        self._next_leader_connection: NatsConnection | None = None
        """Connection to the leader for the next block; see :meth:`append_by`."""
        self._closed = asyncio.Event()

    async def make(self, settings: Mapping[str, object]) -> StreamInfo:
        """Create the stream, or verify an existing one. Raises ``Unavailable`` if the cluster
        cannot create it, or if it has other settings, which the message names."""
        config = {name: value for name, value in settings.items() if value is not None}
        request = msgspec.json.encode({"name": self.name, **config})
        refusals = 0
        for pause in pauses():
            try:
                answer = await self._connection.ask(f"$JS.API.STREAM.CREATE.{self.name}", request)
            except Unanswered:
                pass
            except JetStreamRefusal as error:
                if error.number == NO_CLUSTER:
                    raise Unavailable(_NOT_CLUSTERED.format(error)) from error
                if error.number == _NAME_IN_USE:
                    info = await self.info()
                    check_settings(info, settings)
                    self.was_seen = True
                    return info
                refusals += 1
                if error.number != _NO_PEERS or refusals > _PEERS_POLLS:
                    raise Unavailable(f"stream {self.name} cannot be created: {error}") from error
            else:
                info = msgspec.json.decode(answer, type=StreamInfo)
                check_settings(info, settings)
                self.was_seen = True
                return info
            await self.pause(pause)
        raise AssertionError("pauses never end")

    async def info(self) -> StreamInfo:
        """Return the settings and state of the stream. Raises ``Unavailable`` if the stream does
        not exist."""
        return await self._info({})

    async def try_info(self) -> StreamInfo | None:
        """Return the settings and state of the stream after a single request; None without an
        answer. Raises ``Unavailable`` if the stream does not exist."""
        try:
            answer = await self._connection.ask(f"$JS.API.STREAM.INFO.{self.name}", b"{}")
        except Unanswered:
            return None
        except JetStreamRefusal as error:
            raise Unavailable(f"stream {self.name}: {error}") from error
        return msgspec.json.decode(answer, type=StreamInfo)

    async def exists(self) -> bool:
        """Return whether the stream exists. A negative answer is checked several times, because
        servers that have just elected a leader may not know all streams yet."""
        for _ in range(_STREAM_POLLS):
            try:
                await self._ask_repeatedly(f"$JS.API.STREAM.INFO.{self.name}", {})
            except JetStreamRefusal as error:
                if error.number != _NO_STREAM:
                    raise Unavailable(f"stream {self.name}: {error}") from error
            else:
                self.was_seen = True
                return True
            await self.pause(_LONGEST_PAUSE_S)
        return False

    async def subjects(self, pattern: str) -> list[str]:
        """Return the subjects that have a message, in order."""
        subjects: list[str] = []
        while True:
            info = await self._info({"subjects_filter": pattern, "offset": len(subjects)})
            page = info.state.subjects or {}
            subjects += page
            if not page or len(subjects) >= info.total:
                return sorted(subjects)

    async def message(self, sequence: int) -> StoredMessage | None:
        """Return the message at a sequence of the stream, or None."""
        return await self._fetch({"seq": sequence})

    async def newest(self, subject: str) -> StoredMessage | None:
        """Return the newest message of a subject, or None."""
        return await self._fetch({"last_by_subj": subject})

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str]) -> int:
        """Send one request to store a message, and return its sequence. Raises ``Unanswered`` and
        ``JetStreamRefusal``."""
        # Without this header a message could reach another stream with the same subject.
        all_headers = {**headers, "Nats-Expected-Stream": self.name}
        leader_connection = self._leader_connection
        if leader_connection is None or not leader_connection.server:
            answer = await self._connection.ask(subject, data, all_headers)
        else:
            try:
                answer = await leader_connection.ask(subject, data, all_headers)
            except Unanswered:  # another one may lead now
                self._leader_connection = self._next_leader_connection = None
                raise
        return msgspec.json.decode(answer, type=_Ack).seq

    def append_by(self, leader_connection: NatsConnection | None) -> None:
        """Publish over a connection to the leader from the next :meth:`begin_block` on, until a
        request on it has no answer. None: publish over the shared connection."""
        self._next_leader_connection = leader_connection

    @property
    def nearest(self) -> str:
        """Name of the server that the newest block was sent to."""
        return (
            self._connection.server
            if self._leader_connection is None
            else self._leader_connection.server
        )

    def begin_block(self) -> None:
        """Begin a block, whose messages are published over one connection, in order."""
        self._leader_connection = self._next_leader_connection

    async def led_by(self) -> str:
        """Return the name of the leader after a single request; empty if unknown."""
        info = None if self.is_closed or not self.was_seen else await self.try_info()
        return "" if info is None else info.cluster.leader

    async def purge(self, *, below: int = 0, subject: str = "") -> None:
        """Remove messages: those of ``subject``, those below a sequence, or those that are both.
        Raises ``Unavailable`` if the servers refuse."""
        request: dict[str, object] = {}
        if below:
            request["seq"] = below
        if subject:
            request["filter"] = subject
        assert request, "a whole stream is never purged"
        try:
            await self._ask_repeatedly(f"$JS.API.STREAM.PURGE.{self.name}", request)
        except JetStreamRefusal as error:
            raise Unavailable(f"stream {self.name}: {error}") from error

    async def on_each_copy(self, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` returns from the leader, or from another replica if the leader's
        copy is damaged.

        A server with a damaged copy steps down. Raises ``Damaged`` when every replica that can lead
        was read, naming the damage of each.
        """
        damages: dict[str, str] = {}
        while True:
            leader = await self._leader()
            try:
                return await read()
            except Damaged as error:
                damages[leader] = f"{error}"
                self.damage[leader] = f"stream {self.name} on server {leader}: {error}"
                _log.warning(
                    "engine.copy_damaged", stream=self.name, server=leader, reason=f"{error}"
                )
                absent = await self._step_down(set(damages))
                if absent is None:
                    continue
                details = "; ".join(f"server {name}: {text}" for name, text in damages.items())
                more = f"; could not be asked: {', '.join(absent)}" if absent else ""
                raise Damaged(f"stream {self.name} is damaged: {details}{more}") from error

    async def why_missing(self, sequence: int) -> Trimmed | Damaged:
        """Return why a sequence has no message: ``Trimmed`` if it is before the first message,
        because purges remove from the beginning, otherwise ``Damaged``."""
        state = (await self.info()).state
        if sequence < state.first_seq:
            return Trimmed(f"sequence {sequence} was removed: stream {self.name} begins later")
        return Damaged(f"sequence {sequence} is missing")

    async def pause(self, seconds: float) -> None:
        """Wait before the next request. Raises ``StorageFailed`` when the stream is closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return
        raise StorageFailed(f"stream {self.name} was closed")

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self._closed.set()

    async def _info(self, request: dict[str, object]) -> StreamInfo:
        try:
            answer = await self._ask_repeatedly(f"$JS.API.STREAM.INFO.{self.name}", request)
        except JetStreamRefusal as error:
            raise Unavailable(f"stream {self.name}: {error}") from error
        return msgspec.json.decode(answer, type=StreamInfo)

    async def _fetch(self, request: dict[str, object]) -> StoredMessage | None:
        try:
            answer = await self._ask_repeatedly(f"$JS.API.STREAM.MSG.GET.{self.name}", request)
        except JetStreamRefusal as error:
            if error.number == _NO_MESSAGE:
                return None
            raise Unavailable(f"stream {self.name}: {error}") from error
        return msgspec.json.decode(answer, type=_FetchedMessage).message

    async def _ask_repeatedly(self, subject: str, request: dict[str, object]) -> bytes:
        """Send a request until it is answered, and return the answer. Raises ``JetStreamRefusal``,
        and ``StorageFailed`` when the stream is closed."""
        encoded = msgspec.json.encode(request)
        for pause in pauses():
            try:
                return await self._connection.ask(subject, encoded)
            except Unanswered:
                await self.pause(pause)
        raise AssertionError("pauses never end")

    async def _leader(self) -> str:
        """Return the name of the leader; wait until the servers have elected one."""
        for pause in pauses():
            if leader := (await self.info()).cluster.leader:
                return leader
            await self.pause(pause)
        raise AssertionError("pauses never end")

    async def _step_down(self, damaged: set[str]) -> list[str] | None:
        """Move the leadership to a replica without known damage. Returns None, or the names of the
        replicas that cannot lead now."""
        peers = (await self.info()).cluster
        others = [replica for replica in peers.replicas if replica.name not in damaged]
        ready = [replica.name for replica in others if not replica.offline]
        for name in ready:
            request: dict[str, object] = {"placement": {"preferred": name}}
            try:
                await self._ask_repeatedly(f"$JS.API.STREAM.LEADER.STEPDOWN.{self.name}", request)
            except JetStreamRefusal:
                continue
            for _ in range(_LEADER_POLLS):
                leader = await self._leader()
                if leader not in damaged:
                    return None
                await self.pause(_LONGEST_PAUSE_S)
        return [replica.name for replica in others]


_NOT_CLUSTERED: Final = (
    "the engine is a single server, and three have to keep each stream. To fix: add to "
    "nats-server.conf of each of three servers the line "
    "cluster {{ name: NAME, listen: HOST:PORT, routes: [nats://OTHER:PORT, ...] }} ({})"
)


def pauses() -> Iterator[float]:
    """Yield the seconds between repetitions of a request, without an end."""
    return chain(_PAUSES_S, repeat(_LONGEST_PAUSE_S))


def check_settings(info: StreamInfo, expected: Mapping[str, object]) -> None:
    """Raise ``Unavailable`` unless a stream has these settings. The error text has the command that
    corrects them."""
    name = info.config.get("name", "")
    wrong = [
        (setting, _setting(info.config, setting), value)
        for setting, value in expected.items()
        if setting not in _UNCOMPARED and _setting(info.config, setting) != value
    ]
    if not wrong:
        return
    differences = "; ".join(
        f"{setting} is {present}, not {value}" for setting, present, value in wrong
    )
    edits = [f"{_OPTIONS[s]}={_option_value(value)}" for s, _, value in wrong if s in _OPTIONS]
    others = [setting for setting, _, _ in wrong if setting not in _OPTIONS]
    changes = [f"nats stream edit {name} {' '.join(edits)}"] if edits else []
    changes += [f"correct {', '.join(others)} in the configuration of the stream"] if others else []
    change = "; ".join(changes)
    raise Unavailable(
        f"stream {name} has other settings than Penstock gave it: {differences}. To fix: {change}"
    )


_UNCOMPARED: Final = frozenset({"metadata", "description", "duplicate_window"})
"""Settings that may differ, because they do not affect the stored data."""


def _setting(config: Mapping[str, Any], name: str) -> object:
    """Return a setting of a stream. A setting that the server leaves out has its default."""
    value: object = config.get(name, _ABSENT.get(name))
    return value


def _option_value(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else f"{value}"
