"""The tables of a realm: snapshots of channels and queues, and the grants to read their files.

A snapshot is made when a table is loaded, of the events that are stored in one turn of the writer
(SEM B1). The user who has loaded it can read its files for a while, with a separate key (SEM B5).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from uuid import NAMESPACE_URL, uuid5
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock_core.access.rights import Principal
from penstock_core.api.tables import SealedTableFile, SealedTableFiles, TableFile, TableFiles
from penstock_core.columns.files.table_rows import PROGRAM_COLUMNS
from penstock_core.columns.schema.ipc import schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import NameDoesNotExist, Unavailable
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Offload
from penstock_lakehouse.captured_channel import CapturedChannel, captured_channel
from penstock_lakehouse.event_files import DeleteFile, EventFile, EventFiles, StoredRows
from penstock_lakehouse.file_store import (
    FileHold,
    FileStore,
    SealedHold,
    SealedHolds,
    StoredFile,
    uri_of,
)
from penstock_lakehouse.manifests import (
    Content,
    ManifestFile,
    manifest,
    manifest_list,
)
from penstock_lakehouse.table_metadata import SnapshotFacts, table_metadata
from penstock_lakehouse.table_schema import TableSchema, table_schema
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.captured_events import UnreadableEvents
from penstock_server.runtime.transfer.exports import set_aside

T = TypeVar("T")

LOADS_AT_ONCE: Final = 1
"""Number of loads that may make files at the same time. Each load occupies a processor and needs
memory."""
ATTEMPTS: Final = 5
"""Largest number of attempts of a load that fails because its sealed files were rewritten."""
MANIFEST_FILES: Final = 128
"""Largest number of files that one manifest lists. The next snapshot uses a manifest again if its
files have not changed."""
LISTED_MAX: Final = 20
"""Largest number of snapshots in the metadata of a table. If each metadata file listed all held
snapshots, the total size would grow with the square of their number."""
SEALED_FILES_MAX: Final = 20
"""Largest number of files of sealed events in one answer. All of them are made before it is sent,
each in some 10 ms."""
MEMORY_BYTES_MAX: Final = 256 << 20
"""Largest number of bytes of table files in a realm without a data directory, which keeps them in
memory."""


class Snapshot(Struct, eq=False):
    """The content of a table at one instant: its data files and its metadata."""

    facts: SnapshotFacts
    metadata: dict[str, Any]
    """Iceberg metadata of the table. It lists this snapshot and up to 19 earlier ones that were
    held when this one was made."""
    location: str
    """Location of the metadata file, as clients name it."""
    parts: Sequence[StoredRows]
    """The Parquet files of events, each with the ids of its rows that are stored."""
    columns: pa.Schema
    """The columns that the table shows."""
    next_id: int
    """Id after the last event that the snapshot can contain."""
    version: object
    """The :attr:`CapturedChannel.version` from which the snapshot was made."""
    made_us: int
    """Time of the capture, in microseconds since 1970."""
    hold: FileHold
    """Protects the files of the snapshot from removal."""
    users: int = 0
    """Number of grants for the snapshot."""

    @property
    def is_clean(self) -> bool:
        """Whether no file of the snapshot contains rows of removed events."""
        return all(part.deletes is None for part in self.parts)


class TableGrant(Struct, eq=False):
    """The right of a user to read the files of a table until a given time."""

    key: str
    """Identifies the grant in requests for files, like an S3 access key."""
    secret: str
    """Secret that signs the client's requests for files."""
    reader: Principal
    table: ChannelTable
    snapshot: Snapshot
    """The snapshot that the grant holds."""
    until_us: int
    """End of the grant, in microseconds since 1970."""


class LoadedTable(Struct, frozen=True):
    """The metadata of a loaded table, and the key for reading its files."""

    metadata: dict[str, Any]
    metadata_location: str
    key: str
    secret: str
    """Secret of the key. It signs requests for files."""
    until_us: int
    """Time at which the key ends, in microseconds since 1970."""


class ChannelTable:
    """The table of one channel or queue, and its snapshots."""

    def __init__(
        self,
        number: ChannelId,
        table_uuid: str,
        files: EventFiles,
        store: FileStore,
        offload: Offload,
    ) -> None:
        self.number = number
        self.uuid = table_uuid
        self.lock = asyncio.Lock()
        """Acquired by each load, so that a table makes one snapshot at a time."""
        self.files = files
        self.snapshots: list[Snapshot] = []
        """Snapshots that have grants, in the order of their ids."""
        self._store = store
        self._offload = offload
        self._manifests: dict[object, tuple[StoredFile, ManifestFile]] = {}
        """The manifests of the newest snapshot, by content type and names of the listed files."""

    async def add(self, channel: CapturedChannel, *, is_clean: bool) -> Snapshot:
        """Make a snapshot of a captured channel and add it to :attr:`snapshots`.

        With ``is_clean``, its files contain no rows of removed events. Raises ``NameDoesNotExist``
        if a sealed file was rewritten since the capture, ``UnreadableEvents`` if events cannot be
        read, and the errors of ``FileStore.put``."""
        # Each file is held as soon as it exists: a later file of the same load may need room, for
        # which unused files are removed.
        hold = self._store.hold()
        try:
            parts = await self.files.prepare(channel, hold, is_clean=is_clean)
            columns = self._columns(channel, parts)
            facts = await self._facts(channel, parts, hold, columns=columns)
            metadata = table_metadata(
                self.uuid,
                uri_of(self.uuid),
                [*(snapshot.facts for snapshot in self.snapshots[1 - LISTED_MAX :]), facts],
            )
            name = f"{self.uuid}/metadata/{facts.snapshot_id}.metadata.json"
            await self._put(name, msgspec.json.encode(metadata), hold)
        except BaseException:
            hold.release()
            raise
        snapshot = Snapshot(
            facts,
            metadata,
            uri_of(name),
            parts=parts,
            columns=columns,
            next_id=channel.next_id,
            version=channel.version,
            made_us=channel.at_us,
            hold=hold,
        )
        self.snapshots.append(snapshot)
        return snapshot

    def end(self, snapshot: Snapshot) -> None:
        """Forget a snapshot that has no grants, and release its files."""
        self.snapshots.remove(snapshot)
        snapshot.hold.release()

    async def keep_only(self, names: Collection[str]) -> None:
        """Remove the manifests and the files of events, except those made from the sealed files
        ``names``. Files that a snapshot holds are removed when it ends."""
        await self.files.keep_only(names)
        for file, _ in self._manifests.values():
            await self._store.remove(file)
        self._manifests = {}

    async def _put(self, name: str, content: bytes, hold: FileHold) -> None:
        """Store a file that is removed as soon as ``hold`` is released."""
        file = await self._store.put(name, content)
        hold.add(file)
        # The file is in use, so this only marks it: it is removed with its last user.
        await self._store.remove(file)

    def _columns(self, channel: CapturedChannel, parts: Sequence[StoredRows]) -> pa.Schema:
        """Return the columns of a snapshot: all that at least one of its files has."""
        layout, _ = self.files.layout(channel)
        # Most files have equal sets of names, so that the union is of a few sets.
        names = frozenset[str]().union(*{part.events.names for part in parts})
        inexact = frozenset[str]().union(*{part.events.inexact for part in parts})
        return layout.columns_with(inexact, names)

    async def _facts(
        self,
        channel: CapturedChannel,
        parts: Sequence[StoredRows],
        hold: FileHold,
        columns: pa.Schema,
    ) -> SnapshotFacts:
        """Write the manifests of a snapshot and return its entry for the table metadata."""
        _, all_columns = self.files.layout(channel)
        # Files may have a column of doubles that the table does not show; clients refuse files with
        # columns that the mapping lacks.
        schema = table_schema(columns)._replace(mapping=all_columns.mapping)
        # `newest` is read before the first await: grants may end while files are written, and their
        # snapshots with them.
        newest = self.snapshots[-1].facts if self.snapshots else None
        # Ids and times have to rise even if two snapshots fall into one microsecond (SEM B2).
        snapshot_id = max(channel.at_us, 0 if newest is None else newest.snapshot_id + 1)
        manifests = await self._manifest_files(parts, schema, hold)
        listed = await self._offload(partial(manifest_list, manifests, snapshot_id))
        name = f"{self.uuid}/metadata/{snapshot_id}.avro"
        await self._put(name, listed, hold)
        events = sum(len(part.stored) for part in parts)
        return SnapshotFacts(
            snapshot_id,
            max(channel.at_us // 1_000, 0 if newest is None else newest.at_ms + 1),
            uri_of(name),
            schema=schema,
            summary={
                "operation": "append",
                "total-records": str(events),
                "total-data-files": str(len(parts)),
                "penstock.end": str(channel.next_id),
            },
        )

    async def _manifest_files(
        self, parts: Sequence[StoredRows], schema: TableSchema, hold: FileHold
    ) -> list[ManifestFile]:
        """Return the manifests of a snapshot. A manifest of the previous snapshot is used again if
        it lists the same files; the others are written."""
        contents: tuple[tuple[Content, Sequence[EventFile | DeleteFile]], ...] = (
            ("data", [part.events for part in parts]),
            ("deletes", [part.deletes for part in parts if part.deletes is not None]),
        )
        manifests: dict[object, tuple[StoredFile, ManifestFile]] = {}
        for content, files in contents:
            for start in range(0, len(files), MANIFEST_FILES):
                group = files[start : start + MANIFEST_FILES]
                key = content, tuple(listed.file.name for listed in group)
                stored = self._manifests.get(key)
                # The store may have removed an unused manifest to make room.
                if stored is None or self._store.get(stored[0].name) is not stored[0]:
                    stored = await self._write_manifest(content, group, schema)
                manifests[key] = stored
                hold.add(stored[0])
        for old_key in self._manifests.keys() - manifests.keys():
            await self._store.remove(self._manifests[old_key][0])
        self._manifests = manifests
        return [manifest_file for _, manifest_file in manifests.values()]

    async def _write_manifest(
        self, content: Content, files: Sequence[EventFile | DeleteFile], schema: TableSchema
    ) -> tuple[StoredFile, ManifestFile]:
        """Store a manifest of ``files``. Return the stored file and its entry for the manifest
        list."""
        records = [listed.record for listed in files]
        data = await self._offload(partial(manifest, records, content, schema.document(0)))
        name = f"{self.uuid}/metadata/{self._store.next_suffix()}-{content}.avro"
        file = await self._store.put(name, data)
        rows = sum(listed.rows for listed in files)
        return file, ManifestFile(uri_of(name), file.size, content, files=len(files), rows=rows)


class ChannelTables:
    """All tables of a realm."""

    def __init__(self, realm: RunningRealm) -> None:
        self._realm = realm
        self._limits = limits = realm.limits.tables
        folder, bytes_max = realm.scratch_folder, limits.cache_bytes_max
        if folder is None:
            bytes_max = min(bytes_max, MEMORY_BYTES_MAX)
        self._store = FileStore(folder, bytes_max, realm.offload)
        self._tables: dict[str, ChannelTable] = {}
        """Tables by UUID."""
        self._grants: dict[str, TableGrant] = {}
        """Grants by key."""
        self._grants_of: dict[str, dict[Snapshot, TableGrant]] = {}
        """Grants by user and snapshot, the least recently loaded first."""
        self._sealed_holds = SealedHolds(limits.snapshots_per_user_max)
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        """Limits the number of loads that make files at the same time."""

    async def load(self, number: ChannelId, epoch: str, reader: Principal) -> LoadedTable:
        """Return a snapshot of a channel or queue, made now or at most ``tables.fresh_ms`` ago.

        ``epoch`` identifies the channel's sequence of ids. Raises ``NameDoesNotExist`` if the
        channel does not exist, ``LimitReached``, ``StorageFailed``, and ``Damaged`` if events
        cannot be read.
        """
        grant = await self._grant_to_current(number, epoch, reader, is_clean=False)
        snapshot = grant.snapshot
        return LoadedTable(
            snapshot.metadata,
            snapshot.location,
            grant.key,
            secret=grant.secret,
            until_us=grant.until_us,
        )

    async def locate(self, number: ChannelId, epoch: str, reader: Principal) -> TableFiles:
        """Return the paths of the files of a snapshot, for readers on the realm's machine (SEM B7).

        The files contain no rows of removed events. Raises the errors of :meth:`load`.
        """
        grant = await self._grant_to_current(number, epoch, reader, is_clean=True)
        snapshot = grant.snapshot
        columns = pa.schema(
            field for field in snapshot.columns if field.name not in PROGRAM_COLUMNS
        )
        return TableFiles(
            tuple(
                TableFile(self._store.path_of(part.events.file), part.events.file.size)
                for part in snapshot.parts
            ),
            schema_bytes(columns),
            end_id=snapshot.next_id,
            until_us=grant.until_us,
        )

    async def locate_sealed(
        self, number: ChannelId, epoch: str, reader: Principal, *, span: Span, rows_min: int
    ) -> SealedTableFiles:
        """Return the paths of files with the sealed events of ``span``, for archives on the realm's
        machine (SEM B8). The other events of ``span`` are read over the wire.

        Raises ``NameDoesNotExist``, ``LimitReached``, ``StorageFailed`` and ``Damaged`` as
        :meth:`load`.
        """
        table = self._table(number, epoch)

        async def prepare(channel: CapturedChannel) -> SealedTableFiles:
            hold = self._store.hold()
            try:
                files = await table.files.prepare_sealed(
                    channel, hold, span, rows_min=rows_min, files_max=SEALED_FILES_MAX
                )
            except BaseException:
                hold.release()
                raise
            until_us = self._realm.clock.now_us() + self._limits.hold_s * 1_000_000
            self._sealed_holds.replace(reader.name, table.uuid, SealedHold(hold, until_us))
            return SealedTableFiles(
                tuple(
                    SealedTableFile(
                        self._store.path_of(whole_file.events.file),
                        whole_file.events.file.size,
                        whole_file.events.rows,
                        span=whole_file.span,
                    )
                    for whole_file in files
                ),
                schema_bytes(channel.columns.arrow),
                until_us=until_us,
            )

        async with table.lock:
            return await self._of_capture(table, prepare)

    async def _grant_to_current(
        self, number: ChannelId, epoch: str, reader: Principal, *, is_clean: bool
    ) -> TableGrant:
        """Return a grant for ``reader`` to a current snapshot; make the snapshot if necessary."""
        table = self._table(number, epoch)
        async with table.lock:
            snapshot = await self._snapshot(table, is_clean=is_clean)
            return self._grant(table, snapshot, reader)

    def _table(self, number: ChannelId, epoch: str) -> ChannelTable:
        """Return the table of a channel; it is new if nobody has used it before."""
        # The UUID follows from the epoch, so that a table keeps it over restarts of the realm, and
        # a channel that was deleted and created again is another table (SEM B4).
        table_uuid = str(uuid5(NAMESPACE_URL, f"penstock:{epoch}"))
        table = self._tables.get(table_uuid)
        if table is None:
            files = EventFiles(
                table_uuid, self._store, self._realm.blobs, offload=self._realm.offload
            )
            table = self._tables[table_uuid] = ChannelTable(
                number, table_uuid, files, store=self._store, offload=self._realm.offload
            )
        return table

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return self._store.bytes

    @property
    def count(self) -> int:
        """Number of channels and queues that were loaded and still exist."""
        return len(self._tables)

    def grant_of(self, key: str) -> TableGrant | None:
        """Return the grant with this key; None if it has ended."""
        grant = self._grants.get(key)
        return None if grant is None or grant.until_us <= self._realm.clock.now_us() else grant

    def file_of(self, grant: TableGrant, name: str) -> StoredFile:
        """Return the file ``name`` of the grant's table.

        Raises ``NameDoesNotExist`` if the table has no such file in a held snapshot.
        """
        file = self._store.get(name)
        # The prefix keeps a key from opening files of other tables (SEM B5). A file without users
        # belongs to no snapshot any more and may be removed at any moment.
        if file is None or not file.users or not name.startswith(f"{grant.table.uuid}/"):
            raise NameDoesNotExist(
                f"no snapshot of the table has the file {name[:200]!r}; load the table again"
            )
        return file

    async def read(self, file: StoredFile, offset: int, length: int) -> bytes:
        """Return a range of a file's bytes. Raises ``NameDoesNotExist`` if it was removed."""
        return await self._store.read(file, offset, length)

    # --- snapshots -----------------------------------------------------------------------

    async def _snapshot(self, table: ChannelTable, *, is_clean: bool) -> Snapshot:
        """Return the newest snapshot of ``table`` if it is not older than ``tables.fresh_ms``, or
        if no event was stored or removed since it was made; otherwise make one. With ``is_clean``,
        the files of the snapshot contain no rows of removed events.

        Raises ``Unavailable`` if sealed files were rewritten during each of the attempts, and
        ``Damaged`` if events cannot be read; they are quarantined then.
        """
        newest = table.snapshots[-1] if table.snapshots else None
        if newest is not None and is_clean and not newest.is_clean:
            newest = None
        fresh_us = self._realm.clock.now_us() - self._limits.fresh_ms * 1_000
        if newest is not None and newest.made_us > fresh_us:
            return newest

        async def make(channel: CapturedChannel) -> Snapshot:
            return await table.add(channel, is_clean=is_clean)

        def current(channel: CapturedChannel) -> Snapshot | None:
            # The last grant of the snapshot may have ended during the turn; its files may then be
            # removed.
            is_current = newest is not None and newest.users and newest.version == channel.version
            return newest if is_current else None

        return await self._of_capture(
            table, make, current=current, events_max=self._limits.memory_events_max
        )

    async def _of_capture(
        self,
        table: ChannelTable,
        make: Callable[[CapturedChannel], Awaitable[T]],
        *,
        current: Callable[[CapturedChannel], T | None] = lambda channel: None,
        events_max: int | None = None,
    ) -> T:
        """Capture the channel of a table and return what ``make`` makes of it, or ``current`` if
        that is not None. ``events_max`` is the largest number of events in memory.

        Raises ``Unavailable`` if sealed files were rewritten during each of the attempts, and
        ``Damaged`` if events cannot be read; they are quarantined then.
        """
        name = ""
        for _ in range(ATTEMPTS):
            channel: CapturedChannel = await self._realm.shard.act(
                lambda group: captured_channel(group, table.number, events_max),
                sweeps=(table.number,),
            )
            if (existing := current(channel)) is not None:
                return existing
            name = channel.name
            try:
                async with self._load_slots:
                    return await make(channel)
            except NameDoesNotExist:
                continue  # a sealed file was rewritten since the capture; capture its successor
            except UnreadableEvents as error:
                raise set_aside(
                    self._realm.shard,
                    table.number,
                    f"{name} has unreadable events: {error}; they are now set aside: load the "
                    f"table again to get the others",
                    unreadable=error,
                ) from error
        raise Unavailable(
            f"the files of {name} changed {ATTEMPTS} times while its table was made; try again"
        )

    def _grant(self, table: ChannelTable, snapshot: Snapshot, reader: Principal) -> TableGrant:
        """Return the user's grant for the snapshot, with a later end, or a new grant. A new grant
        ends the user's least recently loaded one if the user has the maximum number."""
        until_us = self._realm.clock.now_us() + self._limits.hold_s * 1_000_000
        grants = self._grants_of.setdefault(reader.name, {})
        grant = grants.pop(snapshot, None)
        if grant is None:
            if len(grants) >= self._limits.snapshots_per_user_max:
                self._end(next(iter(grants.values())))
                grants = self._grants_of.setdefault(reader.name, {})
            key, secret = secrets.token_hex(16), secrets.token_urlsafe(32)
            grant = self._grants[key] = TableGrant(
                key, secret, reader, table=table, snapshot=snapshot, until_us=until_us
            )
            snapshot.users += 1
        grant.until_us = until_us
        grants[snapshot] = grant
        return grant

    def _end(self, grant: TableGrant) -> None:
        """End a grant, and its snapshot if it was the last grant of it."""
        del self._grants[grant.key]
        grants = self._grants_of[grant.reader.name]
        del grants[grant.snapshot]
        if not grants:
            del self._grants_of[grant.reader.name]
        grant.snapshot.users -= 1
        if not grant.snapshot.users:
            grant.table.end(grant.snapshot)

    async def expire(self) -> None:
        """End the grants whose time is over, and remove files that are no longer needed.

        The realm calls this regularly.
        """
        now_us = self._realm.clock.now_us()
        for grants in list(self._grants_of.values()):
            for grant in [grant for grant in grants.values() if grant.until_us <= now_us]:
                self._end(grant)
        self._sealed_holds.expire(now_us)
        for table in list(self._tables.values()):
            # A table without snapshots has no readers. A locked table is about to get a snapshot,
            # whose files must not be removed.
            if table.snapshots or table.lock.locked():
                continue
            store = self._realm.shard.state.stores.get(table.number)
            if store is None:
                del self._tables[table.uuid]
            await table.keep_only([] if store is None else [file.name for file in store.files])
        await self._store.remove_dropped()


_tables: Final[WeakKeyDictionary[RunningRealm, ChannelTables]] = WeakKeyDictionary()


def tables_of(realm: RunningRealm) -> ChannelTables:
    """Return the :class:`ChannelTables` of a realm. The first call creates it and has the realm
    call :meth:`ChannelTables.expire` regularly."""
    tables = _tables.get(realm)
    if tables is None:
        tables = _tables[realm] = ChannelTables(realm)
        realm.regular_steps["tables"] = tables.expire
    return tables
