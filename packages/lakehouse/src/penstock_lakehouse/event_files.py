"""Parquet files with the events of one channel, made when its table is loaded and kept.

The events of a sealed file are in one or several Parquet files, by the batches of the sealed file.
Events in memory are in files by the load that found them first, so that a load costs only what was
published since the last one. A file is made again if a fifth of its events were removed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.files.segments import SegmentReader
from penstock_core.columns.files.table_rows import PROGRAM_COLUMNS, TableLayout, TableRows
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.ports import Blobs, Offload
from penstock_lakehouse.captured_channel import CapturedChannel, SealedEvents
from penstock_lakehouse.data_files import (
    Image,
    Metrics,
    deletes_image,
    events_image,
    removed_positions,
)
from penstock_lakehouse.file_store import FileHold, FileStore, StoredFile, uri_of
from penstock_lakehouse.table_schema import TableSchema, table_schema
from penstock_server.runtime.store.captured_events import (
    EventsOfBatch,
    in_parts,
    publishers_in_memory,
    rows_in_file,
)
from penstock_server.runtime.store.outgoing_batch import spans_in
from penstock_server.runtime.store.sealed_file import Publishers, publishers_within
from penstock_server.runtime.store.tail_batch import stored_rows

ROWS_MAX: Final = 1 << 16
"""Rows of a Parquet file. A file of the default 50,000 events becomes one."""
BYTES_MAX: Final = 32 << 20
"""Maximum number of bytes of events in a Parquet file, before compression, unless one batch has
more."""
REMOVED_MAX: Final = 0.2
"""Share of removed events above which a file is made again without them."""
MEMORY_FILES_MAX: Final = 16
"""Files of events in memory after which all of them are made into one."""


class EventFile(Struct, eq=False):
    """A Parquet file of events."""

    file: StoredFile
    rows: int
    metrics: Metrics
    ids: IdSet
    """The ids of its rows, ascending."""
    names: frozenset[str]
    """Names of its columns."""
    joined: frozenset[str]
    """The properties whose integers and floats were one column of the table when it was made."""
    inexact: frozenset[str]
    """The joined properties with an integer that is not exact as a double."""
    prefixed: frozenset[str]
    """The paths of columns and fields whose names had a prefix when the file was made."""
    deletes: DeleteFile | None = None


class DeleteFile(Struct, eq=False):
    """The file that names the removed rows of a file of events."""

    file: StoredFile
    rows: int
    metrics: Metrics


class StoredRows(Struct, eq=False):
    """A file of events in a snapshot."""

    events: EventFile
    stored: IdSet
    """The ids of its rows whose events are stored; not empty."""
    deletes: DeleteFile | None = None


class _Sealed(Struct, eq=False):
    """The Parquet files of one sealed file."""

    batch_count: int
    """Batches of the sealed file when it was divided."""
    parts: list[range]
    """Numbers of the batches that are in one Parquet file."""
    made: dict[range, EventFile]


class EventFiles:
    """The Parquet files of one channel."""

    def __init__(self, folder: str, store: FileStore, blobs: Blobs, offload: Offload) -> None:
        """``folder`` begins the names of the files."""
        self._folder = folder
        self._store = store
        self._blobs = blobs
        self._offload = offload
        self._of_sealed: dict[str, _Sealed] = {}
        """Files by the name of the sealed file."""
        self._of_memory: list[EventFile] = []
        self._layout: tuple[pa.Schema, TableLayout, TableSchema] | None = None

    def layout(self, channel: CapturedChannel) -> tuple[TableLayout, TableSchema]:
        """Return the layout of the channel's table, and a schema of all columns that a file may
        have."""
        stored = channel.columns.arrow
        if self._layout is None or self._layout[0] is not stored:
            layout = TableLayout(stored)
            all_columns = table_schema(layout.columns_with((), PROGRAM_COLUMNS))
            self._layout = stored, layout, all_columns
        return self._layout[1], self._layout[2]

    async def prepare(
        self, channel: CapturedChannel, hold: FileHold, *, is_clean: bool = False
    ) -> list[StoredRows]:
        """Return files with all stored events of a channel, and only those. ``hold`` keeps them.

        With ``is_clean`` no file has removed rows; otherwise up to a fifth of them may be removed.
        Raises ``NameDoesNotExist`` if a sealed file was rewritten since the channel was captured,
        ``LimitReached``, ``StorageFailed``, ``UnreadableEvents``.
        """
        await self._forget_all_but({file.name for file in channel.files})
        removed_max = 0.0 if is_clean else REMOVED_MAX
        parts: list[StoredRows] = []
        for file in channel.files:
            parts += await self._of_file(channel, file, hold, removed_max=removed_max)
        parts += await self._in_memory(channel, hold, removed_max=removed_max)
        for part in parts:
            await self._note_removed(part, hold)
        return parts

    async def keep_only(self, names: Collection[str]) -> None:
        """Remove the files of events in memory, and of all sealed files but ``names``."""
        await self._forget_all_but({*names})
        await self._drop(self._of_memory)
        self._of_memory = []

    async def _forget_all_but(self, names: Set[str]) -> None:
        for name in self._of_sealed.keys() - names:
            await self._drop(self._of_sealed.pop(name).made.values())

    # --- sealed files --------------------------------------------------------------------

    async def _of_file(
        self, channel: CapturedChannel, file: SealedEvents, hold: FileHold, removed_max: float
    ) -> list[StoredRows]:
        reader: SegmentReader | None = None
        sealed = self._of_sealed.get(file.name)
        if sealed is None or sealed.batch_count != len(file.index.batches):
            reader = await self._open(file)
            parts = await self._offload(partial(_divided, reader))
            made = {} if sealed is None else sealed.made
            # The last part may have grown, with the batches that were appended since.
            await self._drop([made.pop(part) for part in made.keys() - {*parts}])
            sealed = self._of_sealed[file.name] = _Sealed(len(file.index.batches), parts, made)
        rows = []
        for part in sealed.parts:
            batches = file.index.batches
            ids = file.stored.within(
                Span(batches[part.start].first_id, batches[part.stop - 1].end_id)
            )
            events = sealed.made.pop(part, None)
            if events is not None and not self._is_good(
                events, ids, channel, removed_max=removed_max
            ):
                await self._drop([events])
                events = None
            if not ids:
                continue
            if events is None:
                reader = reader or await self._open(file)
                events = await self._make(
                    channel, partial(rows_in_file, reader, ids, part), file.publishers, ids=ids
                )
            sealed.made[part] = events
            hold.add(events.file)
            rows.append(StoredRows(events, events.ids.overlap(ids)))
        return rows

    async def _open(self, file: SealedEvents) -> SegmentReader:
        buffer = await self._blobs.get(file.name)
        return SegmentReader(buffer, file.index, name=file.name)

    def _is_good(
        self, events: EventFile, stored: IdSet, channel: CapturedChannel, removed_max: float
    ) -> bool:
        """Return whether a file may be in a snapshot of the channel; if not, it is made again.

        ``removed_max`` is the share of its events that may be removed.
        """
        layout, _ = self.layout(channel)
        return (
            self._store.get(events.file.name) is events.file
            and len(stored) >= len(events.ids) * (1 - removed_max)
            and layout.fits(events.names, events.joined)
            # Otherwise rows of the file would have null in a column that has another name now.
            and events.prefixed == layout.prefixed
        )

    # --- events in memory ----------------------------------------------------------------

    async def _in_memory(
        self, channel: CapturedChannel, hold: FileHold, removed_max: float
    ) -> list[StoredRows]:
        remaining = IdSet.union(batch.ids for batch in channel.in_memory)
        rows = []
        for events in self._of_memory:
            stored = events.ids.overlap(remaining)
            if self._is_good(events, stored, channel, removed_max=removed_max):
                remaining.discard_all(stored)
                rows.append(StoredRows(events, stored))
        if remaining and len(rows) >= MEMORY_FILES_MAX:
            remaining, rows = IdSet.union(batch.ids for batch in channel.in_memory), []
        kept = [part.events for part in rows]
        for events in kept:
            hold.add(events.file)
        await self._drop(events for events in self._of_memory if events not in kept)
        self._of_memory = kept
        for batches in _parts_of_memory(channel.in_memory, remaining):
            ids = IdSet.union(batch.ids for batch in batches)
            tail_batches = [batch.tail_batch for batch in batches]
            events = await self._make(
                channel,
                partial(stored_rows, tail_batches, ids),
                publishers_in_memory(batches),
                ids=ids,
            )
            self._of_memory.append(events)
            hold.add(events.file)
            rows.append(StoredRows(events, events.ids))
        return rows

    # --- making files --------------------------------------------------------------------

    async def _make(
        self,
        channel: CapturedChannel,
        rows_of: Callable[[], Iterable[pa.RecordBatch]],
        publishers: Publishers,
        ids: IdSet,
    ) -> EventFile:
        """Return a new file of stored events; ``rows_of`` reads them off the loop."""
        layout, schema = self.layout(channel)

        def make() -> tuple[Image, TableRows]:
            rows = layout.rows_of(rows_of(), publishers_within(publishers, ids))
            return events_image(rows.table, schema, channel.compression), rows

        image, rows = await self._offload(make)
        name = f"{self._folder}/data/{ids.lowest:020d}-{self._store.next_suffix()}.parquet"
        file = await self._store.put(name, image.buffer)
        return EventFile(
            file,
            image.rows,
            image.metrics,
            ids=ids_in(rows.table),
            names=frozenset(rows.table.column_names),
            joined=layout.joined,
            inexact=rows.inexact,
            prefixed=layout.prefixed,
        )

    async def _note_removed(self, part: StoredRows, hold: FileHold) -> None:
        """Add the file that names the removed rows, if there are any."""
        events = part.events
        removed = len(events.ids) - len(part.stored)
        deletes = events.deletes
        if deletes is not None and (
            deletes.rows != removed or self._store.get(deletes.file.name) is not deletes.file
        ):
            await self._store.remove(deletes.file)
            events.deletes = deletes = None
        if removed and deletes is None:
            path = uri_of(events.file.name)
            image = await self._offload(
                lambda: deletes_image(path, removed_positions(events.ids, part.stored))
            )
            name = f"{self._folder}/deletes/{self._store.next_suffix()}.parquet"
            file = await self._store.put(name, image.buffer)
            events.deletes = deletes = DeleteFile(file, image.rows, image.metrics)
        if deletes is not None:
            hold.add(deletes.file)
        part.deletes = deletes

    async def _drop(self, files: Iterable[EventFile]) -> None:
        for events in list(files):
            await self._store.remove(events.file)
            if events.deletes is not None:
                await self._store.remove(events.deletes.file)


def ids_in(rows: pa.Table) -> IdSet:
    """Return the ids of rows, which are ascending."""
    (batch,) = rows.select(["event_id"]).to_batches() or [None]
    return IdSet() if batch is None else IdSet(spans_in(batch))


# --- off the loop -------------------------------------------------------------------------


def _divided(reader: SegmentReader) -> list[range]:
    """Return the batches of a sealed file that are in one Parquet file, part by part."""
    batches = (
        (number, batch.rows, reader.unpacked_size(number))
        for number, batch in enumerate(reader.index.batches)
    )
    return [range(part[0], part[-1] + 1) for part in in_parts(batches, BYTES_MAX, ROWS_MAX)]


def _parts_of_memory(
    batches: Sequence[EventsOfBatch], wanted: IdSet
) -> Iterator[list[EventsOfBatch]]:
    """Yield the batches of the files that are to be made of the events ``wanted``."""
    events = (
        (EventsOfBatch(batch.tail_batch, ids), len(ids), len(batch.tail_batch.body))
        for batch in batches
        if (ids := batch.ids.overlap(wanted))
    )
    return in_parts(events, BYTES_MAX, ROWS_MAX)
