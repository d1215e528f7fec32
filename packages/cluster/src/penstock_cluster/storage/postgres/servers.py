"""One connection to the primary among several PostgreSQL servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import asyncpg

from penstock_cluster.storage.postgres import guard
from penstock_core.vocabulary.errors import NoQuorum, PenstockError, StorageFailed

T = TypeVar("T")
Call = Callable[[Any], Awaitable[T]]

ANSWER_S: Final = 10.0
"""Seconds after which a call without an answer is given up; its outcome is unknown then."""
BYTES_PER_S: Final = 1 << 20
"""A call gets one more second for each of this many bytes."""
SESSION: Final = {
    "application_name": "penstock",
    "client_connection_check_interval": "2s",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "idle_session_timeout": "0",
}
"""Settings of every connection. This side gives up calls; the server then notices the lost
connection, instead of waiting for ever for a row that another call has locked."""
CONNECT_S: Final = 2.0
"""Seconds within which a server has to accept a connection."""
PAUSE_S: Final = 0.2
"""Pause between two attempts."""

NO_ANSWER: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver in the middle of a call that was given up, or an answer it does not understand: a
    # server that is killed leaves both. It is a plain Exception, not an InterfaceError.
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.CannotConnectNowError,
    OSError,
    TimeoutError,
)
"""Errors that do not show whether the call was done: it may be repeated on another server."""
REFUSED: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)
"""Errors that every other attempt would also get."""
TEMPORARY: Final = ("08", "25006", "40", "53", "55", "57", "58", "XX000")
"""Prefixes of the SQLSTATE of errors that may not recur at the next attempt, or on another server:
connections, read-only servers, rollbacks, resources, states, shutdowns, I/O, internal."""

TABLES: Final = """
CREATE TABLE IF NOT EXISTS penstock_head (
    journal text PRIMARY KEY, last bigint NOT NULL, floor bigint NOT NULL,
    epoch bigint NOT NULL, writer uuid
) WITH (fillfactor = 20);
CREATE TABLE IF NOT EXISTS penstock_block (
    journal text, seq bigint, checksum bigint NOT NULL, previous bigint NOT NULL,
    body bytea NOT NULL, PRIMARY KEY (journal, seq)
);
ALTER TABLE penstock_block ALTER body SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS penstock_register (
    register text, key text COLLATE "C", version bigint NOT NULL, value bytea NOT NULL,
    PRIMARY KEY (register, key)
);
CREATE TABLE IF NOT EXISTS penstock_blob (
    store text, name text COLLATE "C", size bigint NOT NULL, checksum bigint NOT NULL,
    PRIMARY KEY (store, name)
);
CREATE TABLE IF NOT EXISTS penstock_blob_part (
    store text, name text COLLATE "C", part int, body bytea NOT NULL,
    PRIMARY KEY (store, name, part)
);
ALTER TABLE penstock_blob_part ALTER body SET STORAGE EXTERNAL;
"""
"""Creates the tables. Heads change with every append: free room in their pages keeps such an update
from touching the index. Bodies are not compressed again, because columns are packed already."""
LOCK: Final = 0x70656E73
"""Number of the advisory lock that is held while tables are created, because IF NOT EXISTS fails if
two sessions create the same table at the same time."""


CONFIRM: Final = "SELECT pg_current_xact_id()"
"""Takes a transaction number, so its commit waits for the standbys like all earlier commits."""


def shown(url: str) -> str:
    """Return the server's address without user and password, for messages."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or 5432}"


class OutcomeUnknown(Exception):
    """The connection ended or the call got no answer: whether it was done is unknown."""


class Servers:
    """A connection to the primary, re-opened after a failover.

    It runs one call at a time. Every new connection is checked by
    :mod:`penstock_cluster.storage.postgres.guard`.
    """

    def __init__(self, urls: Sequence[str], *, answer_s: float = ANSWER_S) -> None:
        self.urls = tuple(urls)
        self._answer_s = answer_s
        self.leader = ""
        """Address of the latest primary."""
        self._connection: Any = None
        self._listening: list[Any] = []
        self._lock = asyncio.Lock()
        self._closed = asyncio.Event()
        self._warned = False
        """Whether the server has sent a warning during the current call."""
        self._last_failure = "none of them has been tried"

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def ask(self, call: Call[T], *, size: int = 0) -> T:
        """Return the result of ``call``, which may be made twice and carries ``size`` bytes. Waits
        as long as no server answers. Raises ``NoQuorum`` when closed meanwhile, and
        ``StorageFailed`` when refused."""
        while True:
            try:
                return await self.try_once(call, size=size)
            except OutcomeUnknown:
                if await self._is_closed_within(PAUSE_S):
                    raise NoQuorum(self.complaint()) from None

    async def try_once(self, call: Call[T], *, size: int = 0) -> T:
        """Return the result of ``call``. Raises ``OutcomeUnknown`` if its outcome is unknown.

        A commit may return without its standby because an operator cancelled the wait. Only a
        warning shows that, and its outcome is unknown as well.
        """
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connected()
                self._warned = False
                async with asyncio.timeout(self._answer_s + size / BYTES_PER_S):
                    result = await call(self._connection)
            except NO_ANSWER as error:
                self._drop()
                self._last_failure = f"{type(error).__name__}: {error}".strip(": ")
                raise OutcomeUnknown(self._last_failure) from error
            except (PenstockError, asyncpg.DataCorruptedError):
                raise  # an answer: the connection can serve the next call
            except asyncpg.PostgresError as error:
                if not _is_temporary(error):
                    raise StorageFailed(f"PostgreSQL refuses: {error}") from error
                self._drop()
                self._last_failure = f"{type(error).__name__}: {error}".strip(": ")
                raise OutcomeUnknown(self._last_failure) from error
            except BaseException:
                self._drop()  # the next call must not take the answer to this one for its own
                raise
            if self._warned:
                self._last_failure = "a commit did not wait for its standby"
                raise OutcomeUnknown(self._last_failure)
            return result

    async def close(self) -> None:
        """Close the connection; a call that waits for a server ends with ``NoQuorum``."""
        self._closed.set()
        for connection in self._listening:
            connection.terminate()
        async with self._lock:
            self._drop()

    async def listening(self, channel: str, on_notification: Callable[..., None]) -> Any:
        """Return a separate connection that calls ``on_notification`` for each notification on
        ``channel``. Raises ``OutcomeUnknown``."""
        self._listening = [
            connection for connection in self._listening if not connection.is_closed()
        ]
        try:
            connection = await self._connected()
            self._listening.append(connection)
            try:
                async with asyncio.timeout(self._answer_s):
                    await connection.add_listener(channel, on_notification)
            except BaseException:
                connection.terminate()  # a connection without the listener must not be used
                raise
        except (*NO_ANSWER, asyncpg.PostgresError) as error:
            raise OutcomeUnknown(f"{error}") from error
        return connection

    def _drop(self) -> None:
        """Drop the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _connected(self) -> Any:
        """Return a new connection to the server that takes writes. Raises ``ConnectionError`` if
        no server does."""
        for url in self.urls:
            try:
                connection = await self._connected_to(url)
            except (*NO_ANSWER, asyncpg.PostgresError) as error:
                if not isinstance(error, NO_ANSWER) and not _is_temporary(error):
                    raise
                self._last_failure = f"{shown(url)}: {f'{error}' or type(error).__name__}"
                continue  # another server may take writes, whatever this one does
            if connection is None:
                self._last_failure = f"{shown(url)} is a standby"
                continue
            connection.add_log_listener(self._note_warning)
            self.leader = shown(url)
            return connection
        raise ConnectionError(self.complaint())

    async def _connected_to(self, url: str) -> Any:
        """Return a checked connection to a primary; None if the server is a standby. A server may
        freeze after it has accepted the connection, so all steps share one timeout."""
        connection = await asyncpg.connect(url, timeout=CONNECT_S, server_settings=SESSION)
        try:
            async with asyncio.timeout(self._answer_s):
                if await connection.fetchval("SELECT pg_is_in_recovery()"):
                    await connection.close(timeout=CONNECT_S)
                    return None
                await guard.check_settings(connection, shown(url))
                await make_tables(connection, shown(url))
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _note_warning(self, _: Any, message: Any) -> None:
        self._warned = self._warned or message.severity_en == "WARNING"

    def complaint(self) -> str:
        """Return why no request is possible at the moment."""
        addresses = ", ".join(map(shown, self.urls))
        return f"no PostgreSQL server of {addresses} takes writes ({self._last_failure})"

    async def pause(self, delay_s: float) -> None:
        """Wait for ``delay_s`` seconds, or until the connection is closed."""
        await self._is_closed_within(delay_s)

    async def _is_closed_within(self, delay_s: float) -> bool:
        try:
            async with asyncio.timeout(delay_s):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True


def _is_temporary(error: asyncpg.PostgresError) -> bool:
    """Return whether another attempt may succeed. A full disk is reported immediately: nothing was
    stored."""
    is_full = isinstance(error, asyncpg.DiskFullError)
    return not is_full and str(error.sqlstate or "").startswith(TEMPORARY)


async def make_tables(connection: Any, server: str) -> None:
    """Create the missing tables. Raises ``Unavailable`` if the commit would wait for standbys that
    are not connected."""
    # The table that is created last shows that all of them exist.
    if await connection.fetchval("SELECT to_regclass('penstock_blob_part')") is not None:
        return
    await guard.check_standbys(connection, server)
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        await connection.execute(TABLES)
