"""A :class:`~penstock_core.vocabulary.ports.Journal` in PostgreSQL: a block is a row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

import asyncpg
from xxhash import xxh3_64_intdigest

from penstock_cluster.storage.engine_appends import EngineAppends
from penstock_cluster.storage.postgres import guard
from penstock_cluster.storage.postgres.servers import PAUSE_S, OutcomeUnknown, Servers
from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    InvalidArgument,
    PenstockError,
    StorageFailed,
    Trimmed,
    Unavailable,
    Unknown,
)
from penstock_core.vocabulary.ports import READ_BYTES_MAX, Block, Buffer, DamagedBlock, JournalInfo
from penstock_server.storage.journal_arguments import check_read, check_room, check_trim

BLOCK_BYTES_MAX: Final = 1000 << 20
"""Size of the largest block in bytes. PostgreSQL limits a value to 1 GiB, and a message has some
more bytes."""

MARKS: Final = "/journals"
"""Register with a record of each journal that was created. No cluster has this name."""
BEGIN: Final = f"""
WITH begun AS (INSERT INTO penstock_register VALUES ('{MARKS}', $1, 1, '')
               ON CONFLICT DO NOTHING RETURNING key)
INSERT INTO penstock_head (journal, last, floor, epoch) SELECT key, $2::bigint, $2, 0 FROM begun
ON CONFLICT DO NOTHING
"""
"""Creates the head of a journal, unless the journal was created before. If the head of a created
journal is missing later, it was lost."""
LOOK: Final = f"""
SELECT EXISTS (SELECT FROM penstock_register WHERE register = '{MARKS}' AND key = $1) AS begun,
       last - floor - (SELECT count(*) FROM penstock_block
                       WHERE journal = $1 AND seq > floor AND seq <= last) AS missing
FROM (VALUES (1)) AS one LEFT JOIN penstock_head ON journal = $1
"""
_RESTORE: Final = (
    "To fix: restore the database from a backup, or promote a standby that has everything"
)
FENCE: Final = """
UPDATE penstock_head SET epoch = $2, writer = $3 WHERE journal = $1 AND epoch <= $2
RETURNING last, floor
"""
"""Makes a writer the only one that can append. Each opening has a new writer id, so an earlier
opening of the same epoch can no longer append either."""
HEAD: Final = "SELECT last, floor FROM penstock_head WHERE journal = $1"
APPEND: Final = """
WITH waits AS (SELECT set_config('synchronous_commit', $7, true)),
     head AS (UPDATE penstock_head SET last = last + 1
              WHERE journal = $1 AND last = $2 AND writer = $3 RETURNING last)
INSERT INTO penstock_block (journal, seq, checksum, previous, body)
SELECT $1, last, $4, $5, $6 FROM head, waits RETURNING seq
"""
CONFIRM: Final = (
    "UPDATE penstock_head SET last = last WHERE journal = $1 AND writer = $2 RETURNING last"
)
"""Commits without a change, which waits for the standbys like all earlier commits."""
STORED: Final = """
SELECT body, (SELECT writer FROM penstock_head WHERE journal = $1) AS writer
FROM penstock_block WHERE journal = $1 AND seq = $2
"""
READ: Final = """
SELECT seq, checksum, previous, body FROM (
    SELECT *, sum(octet_length(body)) OVER (ORDER BY seq) AS upto
    FROM penstock_block WHERE journal = $1 AND seq BETWEEN $2 AND $3
) AS blocks WHERE upto <= $4 OR seq = $2 ORDER BY seq
"""
TRIM: Final = """
WITH head AS (UPDATE penstock_head SET floor = $2
              WHERE journal = $1 AND writer = $3 RETURNING 1),
     gone AS (DELETE FROM penstock_block USING head WHERE journal = $1 AND seq <= $2
              RETURNING octet_length(body) AS size)
SELECT (SELECT count(*) FROM head) AS owned,
       (SELECT coalesce(sum(size), 0)::bigint FROM gone) AS size
"""


async def check_is_whole(servers: Servers, name: str) -> None:
    """Raise ``Unavailable`` if a created journal is missing, and ``Damaged`` if it lacks blocks."""
    await servers.ask(lambda c: compare_with_head(c, servers.leader, name))


async def compare_with_head(connection: Any, server: str, name: str) -> None:
    """Compare a journal with its head over a connection to ``server``. Raises as
    :func:`check_is_whole` does."""
    row = await connection.fetchrow(LOOK, name)
    if row["begun"] and row["missing"] is None:
        raise Unavailable(
            f"journal {name} is missing in the table penstock_head of PostgreSQL at "
            f"{server}: it was deleted, or the table was re-created. {_RESTORE}"
        )
    if row["missing"]:
        raise Damaged(
            f"journal {name} has lost {row['missing']} blocks: their rows are missing in the table "
            f"penstock_block of PostgreSQL at {server}. {_RESTORE}"
        )


async def _fetch_row(arguments: tuple[Any, ...], connection: Any) -> Any:
    return await connection.fetchrow(*arguments)


def signed(checksum: int) -> int:
    """Convert an unsigned 64-bit number to PostgreSQL's ``bigint``."""
    return checksum - (1 << 64) if checksum >> 63 else checksum


def chained(body: Buffer, previous: int) -> int:
    """Return the checksum of a block that follows one with the checksum ``previous``."""
    return signed(xxh3_64_intdigest(body, seed=previous & (1 << 64) - 1))


class PostgresJournal:
    """The journal of one shard for the owner of one epoch. :meth:`open` fences earlier owners."""

    def __init__(self, servers: Servers, name: str, epoch: int) -> None:
        self._servers = servers
        self._name = name
        self._epoch = epoch
        self._tail = self._floor = self._size = 0
        self._last_checksum = 0
        self._writer = uuid4()
        """Identifies this opening in the head row; only its writer can append."""
        self._closed = False
        self._deposed = ""
        """Why this owner can no longer append; empty if it can."""
        self._unknown = ""
        """Why the outcome of an append is unknown, which ends appending; empty otherwise."""
        self._appends = EngineAppends(lambda: int(asyncio.get_running_loop().time() * 1_000_000))

    @classmethod
    async def open(
        cls, servers: Servers, name: str, epoch: int, *, begins: int = 0
    ) -> PostgresJournal:
        """Fence every older epoch, then read the head. A new journal begins after ``begins``.
        Raises ``Deposed`` if a newer epoch has fenced, ``Unavailable`` if the servers could lose
        what they acknowledge, and ``Damaged`` if they have lost blocks."""
        journal = cls(servers, name, epoch)
        await servers.ask(lambda c: guard.check_standbys(c, servers.leader))
        await servers.ask(lambda c: c.execute(BEGIN, name, begins))
        await check_is_whole(servers, name)
        head = await servers.ask(lambda c: c.fetchrow(FENCE, name, epoch, journal._writer))
        if head is None:
            raise Deposed(f"journal {name}: an owner of a newer epoch than {epoch} has it")
        journal._tail, journal._floor = head["last"], head["floor"]
        row = await servers.ask(
            lambda c: c.fetchrow(
                "SELECT coalesce(sum(octet_length(body)), 0)::bigint AS size,"
                " max(checksum) FILTER (WHERE seq = $3) AS checksum"
                " FROM penstock_block WHERE journal = $1 AND seq > $2",
                name,
                journal._floor,
                journal._tail,
            )
        )
        journal._size, journal._last_checksum = row["size"], row["checksum"] or 0
        return journal

    @classmethod
    async def open_without_fence(cls, servers: Servers, name: str) -> PostgresJournal | None:
        """Open the journal as it is now, without a fence and for reading only. None if it was never
        created. Raises as :meth:`open` does."""
        await check_is_whole(servers, name)
        head = await servers.ask(lambda c: c.fetchrow(HEAD, name))
        if head is None:
            return None
        journal = cls(servers, name, 0)
        journal._tail, journal._floor = head["last"], head["floor"]
        journal._deposed = "it was opened to be read only"
        return journal

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        """Add a block after block ``expected``, which must be the last one; return its sequence
        (:meth:`penstock_core.vocabulary.ports.Journal.append`). Without ``sync`` the block is in
        the primary's log on return, and the next commit with ``sync`` waits for it."""
        self._check_usable()
        body = b"".join(block)
        if len(body) > BLOCK_BYTES_MAX:
            raise InvalidArgument(
                f"a block of {len(body)} bytes; PostgreSQL takes {BLOCK_BYTES_MAX} at most"
            )
        if expected != self._tail:
            return await self._find_appended(expected, body)
        self._check_is_owner()
        checksum = chained(body, self._last_checksum)
        # The reason stays set if the call is cancelled: only reopening shows whether the block is
        # stored.
        self._unknown = f"the append of block {expected + 1} was cancelled: its outcome is unknown"
        try:
            with self._appends.under_way():
                await self._insert(expected, body, checksum, sync=sync)
        except StorageFailed:
            self._unknown = ""  # PostgreSQL has refused the block, so it is not stored
            raise
        self._unknown = ""
        self._tail, self._last_checksum = expected + 1, checksum
        self._size += len(body)
        return self._tail

    async def _insert(self, expected: int, body: bytes, checksum: int, *, sync: bool) -> None:
        """Store a block, and return once that is certain. Raises ``Deposed`` or ``Unknown``."""
        waits = "on" if sync else "local"
        arguments = (self._name, expected, self._writer, checksum, self._last_checksum, body, waits)
        has_unanswered = False
        while True:
            try:
                added = await self._servers.try_once(
                    lambda c: c.fetchval(APPEND, *arguments), size=len(body)
                )
            except OutcomeUnknown as error:
                has_unanswered = True
                self._appends.record_missing_answer()
                await self._pause(error)
                continue
            if added is None:
                await self._resolve(expected, body, has_unanswered=has_unanswered)
            return

    async def _resolve(self, expected: int, body: bytes, *, has_unanswered: bool) -> None:
        """Decide why the tail has moved: an earlier attempt has stored this block, or another
        process owns the journal, which raises ``Deposed``."""
        row = await self._servers.ask(lambda c: c.fetchrow(STORED, self._name, expected + 1))
        is_own = has_unanswered and row is not None and row["writer"] == self._writer
        if not is_own or row["body"] != body:
            raise self._depose(f"block {expected + 1} is not what this owner has written")
        # The row may be visible before a standby has it; this commit also waits for that.
        await self._confirm()

    async def _confirm(self) -> None:
        """Wait until the standbys have all earlier commits. Raises ``Deposed``."""
        row = await self._servers.ask(lambda c: c.fetchval(CONFIRM, self._name, self._writer))
        if row is None:
            raise self._depose("an owner of a newer epoch has opened the journal")

    async def _find_appended(self, expected: int, body: bytes) -> int:
        """Return the number of a block that has already been appended. Raises ``Deposed``
        otherwise."""
        if self._floor <= expected < self._tail:
            (stored,) = await self.read(expected + 1, 1)
            if isinstance(stored, Block) and stored.data == body:
                return expected + 1
        raise self._depose(f"expected the tail to be {expected}, it is {self._tail}", final=False)

    async def _pause(self, error: OutcomeUnknown) -> None:
        """Wait before an append is repeated. Raises ``Unknown`` if the journal was closed."""
        if self._closed or self._servers.is_closed:
            raise Unknown(
                f"journal {self._name} was closed while an append had no answer ({error}); whether "
                f"the block is stored will be known when the journal is opened again"
            ) from None
        await self._servers.pause(PAUSE_S)

    async def reserve(self, size: int) -> None:
        """Check the size only: PostgreSQL does not report the room on its disks, so a full disk
        refuses the append instead."""
        self._check_usable()
        check_room(size)

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        """Read blocks, in order, from sequence ``first`` on
        (:meth:`penstock_core.vocabulary.ports.Journal.read`)."""
        self._check_usable()
        check_read(first, limit, floor=self._floor)
        last = min(self._tail, first + limit - 1)
        if last < first:
            return []
        try:
            rows = await self._servers.ask(
                lambda c: c.fetch(READ, self._name, first, last, bytes_max), size=bytes_max
            )
        except asyncpg.DataCorruptedError:
            rows = await self._read_singly(first, last, bytes_max)
        return await self._checked(first, last, {row["seq"]: row for row in rows})

    async def _read_singly(self, first: int, last: int, bytes_max: int) -> list[Any]:
        """Return the readable rows, each read separately because one of them is damaged."""
        readable: list[Any] = []
        size = 0
        for seq in range(first, last + 1):
            try:
                arguments = (READ, self._name, seq, seq, bytes_max)
                row = await self._servers.ask(partial(_fetch_row, arguments))
            except asyncpg.DataCorruptedError:
                continue
            if row is not None:
                readable.append(row)
                size += len(row["body"])
            if size >= bytes_max:
                break
        return readable

    async def _checked(
        self, first: int, last: int, rows: dict[int, Any]
    ) -> list[Block | DamagedBlock]:
        """Return the blocks in order, with a ``DamagedBlock`` for each that is missing or fails its
        checksum."""
        if rows and max(rows) < last:
            last = max(rows)  # the later rows exceeded `bytes_max`
        if first not in rows and await self._is_trimmed(first):
            raise Trimmed(f"block {first} was removed: the journal starts after {self._floor}")
        blocks: list[Block | DamagedBlock] = []
        for seq in range(first, last + 1):
            row = rows.get(seq)
            where = f"penstock_block {self._name}/{seq}"
            if row is None:
                blocks.append(
                    DamagedBlock(seq, where, "the row is missing or cannot be read", size=0)
                )
            elif chained(row["body"], row["previous"]) != row["checksum"]:
                size = len(row["body"])
                blocks.append(DamagedBlock(seq, where, "its checksum does not match", size=size))
            else:
                blocks.append(Block(seq, memoryview(row["body"])))
        return blocks

    async def _is_trimmed(self, seq: int) -> bool:
        """Return whether a deposed owner has trimmed the block meanwhile, which it may do up to its
        last snapshot."""
        floor = await self._servers.ask(
            lambda c: c.fetchval("SELECT floor FROM penstock_head WHERE journal = $1", self._name)
        )
        if floor is not None:
            self._floor = max(self._floor, floor)
        return seq <= self._floor

    async def sync(self) -> None:
        """Wait until a standby has every block on its disk. Raises ``Deposed``."""
        self._check_usable()
        self._check_is_owner()
        await self._confirm()

    async def free(self) -> None:
        """Do nothing: :meth:`trim` frees the room itself."""

    async def trim(self, through: int) -> None:
        """Drop the blocks up to and including ``through``
        (:meth:`penstock_core.vocabulary.ports.Journal.trim`). Raises ``Deposed``."""
        self._check_usable()
        check_trim(through, tail=self._tail)
        if through <= self._floor:
            return
        row = await self._servers.ask(lambda c: c.fetchrow(TRIM, self._name, through, self._writer))
        if not row["owned"]:
            raise self._depose("an owner of a newer epoch has opened the journal")
        self._floor = through
        self._size -= row["size"]

    def info(self) -> JournalInfo:
        return JournalInfo(
            self._floor,
            self._tail,
            self._size,
            cut=0,
            durability="quorum",
            waiting_us=self._appends.waiting_us,
            appends=self._appends.timings,
            ambiguous=self._appends.ambiguous,
        )

    async def close(self) -> None:
        """Stop writing. A pending append ends with ``Unknown``."""
        self._closed = True

    def _depose(self, reason: str, *, final: bool = True) -> PenstockError:
        """Return ``Deposed`` with a reason. If ``final``, later appends also fail with it."""
        if final:
            self._deposed = reason
        return Deposed(f"journal {self._name}, epoch {self._epoch}: {reason}")

    def _check_usable(self) -> None:
        if self._closed:
            raise StorageFailed("the journal is closed")

    def _check_is_owner(self) -> None:
        if self._deposed:
            raise self._depose(self._deposed)
        if self._unknown:
            raise Unknown(self._unknown)
