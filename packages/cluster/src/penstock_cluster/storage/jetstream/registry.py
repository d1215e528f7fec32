"""A registry on a key-value bucket: a stream that keeps the newest message of each subject.

A bucket counts its changes over all keys, but a registry counts them for each key. So the version
is part of the value, and a compare-and-set compares the bucket's count.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from email.parser import BytesParser
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import (
    UNDER_WAY_MAX,
    JetStreamRefusal,
    NatsConnection,
    together,
)
from penstock_cluster.storage.jetstream.stream import REPLICATED, WRONG_SEQUENCE, NatsStream, pauses
from penstock_core.vocabulary.errors import Conflict, InvalidArgument
from penstock_core.vocabulary.ports import Change, VersionedRecord
from penstock_server.storage.watching import Watches

_VERSION: Final = struct.Struct("<Q")
"""Version of a record, before its value."""
_OPERATION: Final = "KV-Operation"
_DELETED: Final = "DEL"
_MESSAGE_ID: Final = "Nats-Msg-Id"
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


class _KeyState(NamedTuple):
    """The record of a key, and the revision of the bucket that wrote it."""

    revision: int
    record: VersionedRecord | None
    written_as: str = ""
    """Random token that identifies this change."""


class BucketRegistry:
    """The :class:`~penstock_core.vocabulary.ports.Registry` under one prefix of a bucket."""

    def __init__(self, connection: NatsConnection, bucket: str, prefix: str = "k") -> None:
        self.stream: Final = NatsStream(connection, f"KV_{bucket}")
        self._connection = connection
        self._root = f"$KV.{bucket}."
        self._prefix = f"{self._root}{prefix}."
        self._watches = Watches()
        self._notified_revisions: dict[str, int] = {}
        """Newest revision of each key that watchers were notified of."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings for creating the bucket."""
        return {
            **REPLICATED,
            "subjects": [f"{self._root}>"],
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
        }

    async def open(self, *, watches: bool = True) -> BucketRegistry:
        """Create the bucket, or verify an existing one. With ``watches``, changes by other nodes
        are reported to watchers."""
        await self.stream.make(self.settings)
        for pause in pauses() if watches else ():
            try:
                await self._connection.follow(self.stream.name, f"{self._prefix}>", self._follow)
            except Unanswered:
                await self.stream.pause(pause)
            else:
                break
        return self

    async def get(self, key: str) -> VersionedRecord | None:
        return (await self._read_state(key)).record

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected``; return the new version
        (:meth:`penstock_core.vocabulary.ports.Registry.cas`)."""
        record = VersionedRecord(expected + 1, bytes(value))
        await self._change(key, expected, record)
        return record.version

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``
        (:meth:`penstock_core.vocabulary.ports.Registry.delete`)."""
        revision = await self._change(key, expected, None)
        if revision:
            # The marker has notified watchers and stopped slower writers, so it can be removed.
            await self.stream.purge(subject=self._subject(key), below=revision + 1)

    async def list(self, prefix: str = "") -> Sequence[str]:
        subjects = await self.stream.subjects(f"{self._prefix}>")
        keys = [key for key in map(self._key, subjects) if key.startswith(prefix)]
        present: list[str] = []
        for start in range(0, len(keys), UNDER_WAY_MAX):
            batch = keys[start : start + UNDER_WAY_MAX]
            states = await together(self._read_state(key) for key in batch)
            present += [
                key for key, state in zip(batch, states, strict=True) if state.record is not None
            ]
        return sorted(present)

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield changes of keys that begin with ``prefix``
        (:meth:`penstock_core.vocabulary.ports.Registry.watch`)."""
        return self._watches.add(prefix)

    async def _change(self, key: str, expected: int, record: VersionedRecord | None) -> int:
        """Store a record, or a marker of a deletion. Returns the revision of the bucket."""
        state = await self._read_state_at(key, expected)
        if record is None and state.record is None:
            return 0
        headers = {_MESSAGE_ID: secrets.token_hex(16), _EXPECTED: f"{state.revision}"}
        data = b""
        if record is None:
            headers[_OPERATION] = _DELETED
        else:
            data = _VERSION.pack(record.version) + record.value
        for pause in pauses():
            try:
                # With the message id the server acknowledges a repeated change without storing it.
                revision = await self.stream.publish(self._subject(key), data, headers)
            except Unanswered:
                pass  # the next attempt shows whether this one was stored
            except JetStreamRefusal as refusal:
                if refusal.number in WRONG_SEQUENCE:
                    current = await self._read_state(key)
                    if current.written_as == headers[_MESSAGE_ID]:
                        return self._note(key, current.revision, record)
                    if current.revision != state.revision:
                        raise Conflict(f"{key!r} was changed by another writer") from refusal
            else:
                return self._note(key, revision, record)
            await self.stream.pause(pause)
        raise AssertionError("pauses never end")

    async def _read_state_at(self, key: str, expected: int) -> _KeyState:
        """Return the state of a key that has the expected version. Raises ``Conflict``,
        ``InvalidArgument``."""
        if not key:
            raise InvalidArgument("a registry key has at least one character")
        state = await self._read_state(key)
        version = state.record.version if state.record is not None else 0
        if version != expected:
            raise Conflict(f"{key!r} is at version {version}, not {expected}")
        return state

    async def _read_state(self, key: str) -> _KeyState:
        """Return the current state of a key."""
        message = await self.stream.newest(self._subject(key))
        if message is None:
            return _KeyState(0, None)
        headers = BytesParser().parsebytes(message.hdrs.partition(b"\r\n")[2])
        record = _record(message.data, dict(headers.items()))
        return _KeyState(message.seq, record, headers.get(_MESSAGE_ID, ""))

    def _follow(self, message: Any) -> None:
        """Report a change of the bucket to watchers."""
        record = _record(message.data, message.headers or {})
        self._note(self._key(message.subject), message.metadata.sequence.stream, record)

    def _note(self, key: str, revision: int, record: VersionedRecord | None) -> int:
        # A change by this node is noted twice: at its answer, and when it is followed.
        if revision > self._notified_revisions.get(key, 0):
            self._notified_revisions[key] = revision
            self._watches.note(key, record)
        return revision

    def _subject(self, key: str) -> str:
        return self._prefix + escape_key(key)

    def _key(self, subject: str) -> str:
        return unescape_key(subject.removeprefix(self._prefix))


def escape_key(key: str) -> str:
    """Return a key in the characters of a bucket: letters, digits, ``/_-``, and ``=XX`` for other
    bytes."""
    quoted = quote(key, safe="/").replace(".", "%2E").replace("~", "%7E")
    return quoted.replace("%", "=")


def unescape_key(escaped: str) -> str:
    """Return the key that `escape_key` has converted."""
    return unquote(escaped.replace("=", "%"))


def _record(data: bytes, headers: Mapping[str, str]) -> VersionedRecord | None:
    """Return the record in a message of the bucket; None for the marker of a deletion."""
    if headers.get(_OPERATION) == _DELETED:
        return None
    (version,) = _VERSION.unpack_from(data)
    return VersionedRecord(version, data[_VERSION.size :])
