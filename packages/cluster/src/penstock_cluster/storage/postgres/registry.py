"""A :class:`~penstock_core.vocabulary.ports.Registry` in a table of PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

from penstock_cluster.storage.postgres.servers import CONFIRM, PAUSE_S, OutcomeUnknown, Servers
from penstock_core.vocabulary.errors import Conflict, InvalidArgument, NoQuorum
from penstock_core.vocabulary.ports import Change, VersionedRecord

POLL_S: Final = 1.0
"""Pause between two polls of a watcher: a notification is lost with its connection."""
CHANNEL: Final = "penstock_register"

GET: Final = "SELECT version, value FROM penstock_register WHERE register = $1 AND key = $2"
CREATE: Final = """
WITH changed AS (INSERT INTO penstock_register VALUES ($1, $2, 1, $3)
                 ON CONFLICT DO NOTHING RETURNING version)
SELECT version, pg_notify('penstock_register', $1) FROM changed
"""
CHANGE: Final = """
WITH changed AS (UPDATE penstock_register SET version = version + 1, value = $3
                 WHERE register = $1 AND key = $2 AND version = $4 RETURNING version)
SELECT version, pg_notify('penstock_register', $1) FROM changed
"""
DELETE: Final = """
WITH changed AS (DELETE FROM penstock_register
                 WHERE register = $1 AND key = $2 AND version = $3 RETURNING version)
SELECT version, pg_notify('penstock_register', $1) FROM changed
"""
LIST: Final = (
    "SELECT key FROM penstock_register WHERE register = $1 AND starts_with(key, $2) ORDER BY key"
)
CONTENTS: Final = (
    "SELECT key, version, value FROM penstock_register WHERE register = $1 AND starts_with(key, $2)"
)


class PostgresRegistry:
    """Records that several nodes change, each by compare-and-set."""

    def __init__(self, servers: Servers, register: str) -> None:
        """``register`` distinguishes the records of several clusters."""
        self._servers = servers
        self._register = register
        self._watches: WeakSet[PostgresWatch] = WeakSet()

    async def get(self, key: str) -> VersionedRecord | None:
        """Return the record, or None. It may be on no standby yet: only a ``cas`` proves that."""
        row = await self._servers.ask(lambda c: c.fetchrow(GET, self._register, key))
        return None if row is None else VersionedRecord(row["version"], row["value"])

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        """Set ``key`` if its version is ``expected``; return the new version
        (:meth:`penstock_core.vocabulary.ports.Registry.cas`)."""
        if not key:
            raise InvalidArgument("a registry key has at least one character")
        stored = VersionedRecord(expected + 1, bytes(value))
        if expected == 0:
            arguments: tuple[Any, ...] = (CREATE, self._register, key, stored.value)
        else:
            arguments = (CHANGE, self._register, key, stored.value, expected)
        row, has_unanswered = await self._change_until_answered(arguments)
        if row is None:
            # An attempt without an answer may have stored exactly this record.
            if not has_unanswered or await self.get(key) != stored:
                raise Conflict(f"{key!r} is not at version {expected}")
            # The record may be visible before a standby has it; this commit waits for that.
            await self._servers.ask(lambda c: c.execute(CONFIRM))
        self._note(key, stored)
        return stored.version

    async def delete(self, key: str, expected: int) -> None:
        """Remove ``key`` if its version is ``expected``
        (:meth:`penstock_core.vocabulary.ports.Registry.delete`)."""
        row, has_unanswered = await self._change_until_answered(
            (DELETE, self._register, key, expected)
        )
        if row is None:
            if await self.get(key) is not None or not (has_unanswered or expected == 0):
                raise Conflict(f"{key!r} is not at version {expected}")
            await self._servers.ask(lambda c: c.execute(CONFIRM))
        self._note(key, None)

    async def list(self, prefix: str = "") -> Sequence[str]:
        rows = await self._servers.ask(lambda c: c.fetch(LIST, self._register, prefix))
        return [row["key"] for row in rows]

    def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        """Yield changes of keys that begin with ``prefix``
        (:meth:`penstock_core.vocabulary.ports.Registry.watch`)."""
        watch = PostgresWatch(self._servers, self._register, prefix)
        self._watches.add(watch)
        return watch

    def _note(self, key: str, record: VersionedRecord | None) -> None:
        for watch in list(self._watches):
            watch.note(key, record)

    async def _change_until_answered(self, arguments: tuple[Any, ...]) -> tuple[Any, bool]:
        """Return the row of the change, or None if the last attempt has not made it; and whether an
        earlier attempt may have made it."""
        has_unanswered = False
        while True:
            try:
                return await self._servers.try_once(
                    lambda c: c.fetchrow(*arguments)
                ), has_unanswered
            except OutcomeUnknown as error:
                has_unanswered = True
                if self._servers.is_closed:
                    raise NoQuorum(f"the register was closed without an answer: {error}") from None
                await self._servers.pause(PAUSE_S)


class PostgresWatch:
    """Changes under a prefix, received by ``LISTEN`` and polled each second.

    Changes made by this node are reported immediately, so none since the creation of the watch is
    missed. Changes by others are found by comparing with the previous contents.
    """

    def __init__(self, servers: Servers, register: str, prefix: str) -> None:
        self._servers = servers
        self._register_and_prefix = (register, prefix)
        self._previous_contents: dict[str, VersionedRecord] | None = None
        self._unreported: dict[str, VersionedRecord | None] = {}
        self._changed = asyncio.Event()
        self._listener: Any = None

    def note(self, key: str, record: VersionedRecord | None) -> None:
        """Report a change that this node has made."""
        if key.startswith(self._register_and_prefix[1]):
            self._unreported[key] = record
            if self._previous_contents is not None:
                self._previous_contents.pop(key, None)
                if record is not None:
                    self._previous_contents[key] = record
            self._changed.set()

    def __aiter__(self) -> PostgresWatch:
        return self

    async def __anext__(self) -> Change:
        while not self._unreported:
            await self._listen()
            self._changed.clear()
            self._compare(await self._contents())
            if self._unreported:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._changed.wait()
        key = next(iter(self._unreported))
        return key, self._unreported.pop(key)

    async def _contents(self) -> dict[str, VersionedRecord]:
        rows = await self._servers.ask(lambda c: c.fetch(CONTENTS, *self._register_and_prefix))
        return {row["key"]: VersionedRecord(row["version"], row["value"]) for row in rows}

    def _compare(self, contents: dict[str, VersionedRecord]) -> None:
        """Report the differences between the previous contents and these. The first contents are
        no change."""
        previous = contents if self._previous_contents is None else self._previous_contents
        for key in previous.keys() - contents.keys():
            self._unreported[key] = None
        for key, record in contents.items():
            if previous.get(key) != record:
                self._unreported[key] = record
        self._previous_contents = contents

    async def _listen(self) -> None:
        """Listen for notifications of changes, unless a connection already listens."""
        if self._listener is not None and not self._listener.is_closed():
            return
        with suppress(OutcomeUnknown):  # polling finds changes anyway
            self._listener = await self._servers.listening(CHANNEL, self._on_notification)

    def _on_notification(self, *notification: Any) -> None:
        if notification[-1] == self._register_and_prefix[0]:
            self._changed.set()
