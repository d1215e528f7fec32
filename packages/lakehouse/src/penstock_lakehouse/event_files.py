"""The Parquet files with the events of one channel, made when its table is loaded.

Each sealed file becomes one or several Parquet files of whole batches. Events in memory are written
by the first load that finds them; later loads use the file again, so that a load costs only as much
as was published since the last one. A file is made again when more than a fifth of its events were
removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import Final

import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.files.segments import SegmentReader
from penstock_core.columns.files.table_rows import PROGRAM_COLUMNS, TableLayout, TableRows
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.ports import Blobs, Offload
from penstock_lakehouse.captured_channel import CapturedChannel, SealedAtCapture
from penstock_lakehouse.data_files import Image, deletes_image, events_image, removed_positions
from penstock_lakehouse.file_store import FileHold, FileStore, StoredFile, uri_of
from penstock_lakehouse.manifests import Content, ManifestEntry, manifest_record
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
"""Largest number of rows in a Parquet file, unless one batch has more. A sealed file of the default
50,000 events becomes a single Parquet file."""
BYTES_MAX: Final = 32 << 20
"""Maximum number of bytes of events in a Parquet file, before compression, unless one batch has
more."""
REMOVED_MAX: Final = 0.2
"""Share of removed events above which a Parquet file is made again without them."""
MEMORY_FILES_MAX: Final = 16
"""Number of files of events in memory at which a load replaces them by one file."""
WORK_AT_ONCE: Final = 256
"""Number of unchanged sealed files that a load passes before it lets the event loop do other
work."""
COST_OF_CHANGED: Final = 16
"""Work for a sealed file that has to be inspected, in unchanged files."""


class EventFile(Struct, eq=False):
    """A Parquet file of events."""

    file: StoredFile
    rows: int
    record: bytes
    """Description of the file for manifests."""
    ids: IdSet
    """The event ids of the rows, in the order of the rows."""
    names: frozenset[str]
    """Names of the file's columns."""
    joined: frozenset[str]
    """Properties whose integers and floats shared one column of doubles when the file was made."""
    inexact: frozenset[str]
    """The properties of :attr:`joined` with an integer that a double cannot represent exactly."""
    prefixed: frozenset[str]
    """Paths of the columns and fields whose names had a prefix when the file was made."""
    deletes: DeleteFile | None = None
    """The newest delete file for this file; None if no event was removed."""


class DeleteFile(Struct, eq=False):
    """A position delete file, which marks rows of a file of events as removed."""

    file: StoredFile
    rows: int
    record: bytes
    """Description of the file for manifests."""


class StoredRows(Struct, eq=False):
    """A file of events as one snapshot shows it."""

    events: EventFile
    stored: IdSet
    """Ids of the rows whose events are stored; not empty."""
    deletes: DeleteFile | None = None
    """Marks the other rows as removed; None if all rows are stored."""


class WholeFile(Struct, frozen=True):
    """A file of events whose rows are all the stored events of a range of ids."""

    events: EventFile
    span: Span


class _SealedParts(Struct, eq=False):
    """The division of one sealed file into Parquet files."""

    batch_count: int
    """Number of batches that the sealed file had when it was divided."""
    parts: list[range]
    """Ranges of indexes of batches in the sealed file, one range for each Parquet file."""
    made: dict[range, EventFile]
    """The Parquet files that exist, by part."""
    layout: TableLayout | None = None
    """The layout that was valid for :attr:`rows`; None before the first load."""
    rows: Sequence[StoredRows] = ()
    """The Parquet files as the last load has shown them."""


class _SealedReading:
    """A sealed file that is opened when its events are needed."""

    def __init__(self, file: SealedAtCapture, blobs: Blobs) -> None:
        self.file = file
        self._blobs = blobs
        self._reader: SegmentReader | None = None

    async def reader(self) -> SegmentReader:
        """Return the opened file. Raises ``NameDoesNotExist`` if it was rewritten since the
        capture."""
        if self._reader is None:
            buffer = await self._blobs.get(self.file.name)
            self._reader = SegmentReader(buffer, self.file.index, name=self.file.name)
        return self._reader


class EventFiles:
    """The Parquet files of one channel."""

    def __init__(self, folder: str, store: FileStore, blobs: Blobs, offload: Offload) -> None:
        """``folder`` is the first part of the names of the files."""
        self._folder = folder
        self._store = store
        self._blobs = blobs
        self._offload = offload
        self._sealed_parts: dict[str, _SealedParts] = {}
        """Parquet files by the name of the sealed file."""
        self._memory_files: list[EventFile] = []
        """Parquet files of events that were in memory when the file was made."""
        self._layout: tuple[pa.Schema, TableLayout, TableSchema] | None = None
        """The channel's newest Arrow schema, with the results of :meth:`layout` for it."""
        self._in_files: IdSet | None = None
        """The :attr:`CapturedChannel.in_files` of the last load; None if there was none, or if it
        failed."""

    def layout(self, channel: CapturedChannel) -> tuple[TableLayout, TableSchema]:
        """Return the layout of the channel's table, and the schema of all columns that a file may
        have."""
        channel_schema = channel.columns.arrow
        if self._layout is None or self._layout[0] is not channel_schema:
            layout = TableLayout(channel_schema)
            all_columns = table_schema(layout.columns_with((), PROGRAM_COLUMNS))
            self._layout = channel_schema, layout, all_columns
        return self._layout[1], self._layout[2]

    async def prepare(
        self, channel: CapturedChannel, hold: FileHold, *, is_clean: bool = False
    ) -> list[StoredRows]:
        """Return Parquet files that together contain the stored events of a channel.

        The files are added to ``hold``. With ``is_clean`` they contain no removed events; otherwise
        up to a fifth of a file's rows may be removed, and a delete file marks them. Raises
        ``NameDoesNotExist`` if a sealed file was rewritten since the channel was captured,
        ``UnreadableEvents`` if events cannot be read, and the errors of ``FileStore.put``."""
        await self._forget_all_but({file.name for file in channel.files})
        removed_max = 0.0 if is_clean else REMOVED_MAX
        changed_spans = self._changed_spans(channel.in_files)
        # If this load fails, it has noted the rows of some files only.
        self._in_files = None
        parts: list[StoredRows] = []
        work = 0
        for file in channel.files:
            rows = self._unchanged_rows(
                channel, file, hold, changed_spans=changed_spans, is_clean=is_clean
            )
            if rows is None:
                rows = await self._prepare_sealed(channel, file, hold, removed_max=removed_max)
                work += COST_OF_CHANGED
            parts += rows
            work += 1
            if work >= WORK_AT_ONCE:
                # A channel may have thousands of files, and publishers must not wait for all.
                work = 0
                await asyncio.sleep(0)
        self._in_files = channel.in_files
        for part in await self._prepare_unsealed(channel, hold, removed_max=removed_max):
            await self._set_deletes(part, hold)
            parts.append(part)
        return parts

    def _changed_spans(self, in_files: IdSet) -> tuple[Span, ...] | None:
        """Return spans outside which no event has been removed or sealed since the last load; None
        if all files have to be inspected."""
        if self._in_files is None:
            return None
        removed, added = self._in_files.copy(), in_files.copy()
        removed.discard_all(in_files)
        added.discard_all(self._in_files)
        return tuple(
            Span(ids.lowest, ids.highest + 1)
            for ids in (removed, added)
            if ids.lowest is not None and ids.highest is not None
        )

    async def keep_only(self, names: Collection[str]) -> None:
        """Remove the files of events in memory, and those of all sealed files except ``names``."""
        await self._forget_all_but({*names})
        await self._drop(self._memory_files)
        self._memory_files = []

    async def _forget_all_but(self, names: Set[str]) -> None:
        """Remove the Parquet files of all sealed files except those with one of ``names``."""
        for name in self._sealed_parts.keys() - names:
            await self._forget(name)

    async def _forget(self, name: str) -> None:
        """Remove the Parquet files of the sealed file ``name``, if there are any."""
        sealed = self._sealed_parts.pop(name, None)
        if sealed is not None:
            await self._drop(sealed.made.values())

    def _unchanged_rows(
        self,
        channel: CapturedChannel,
        file: SealedAtCapture,
        hold: FileHold,
        changed_spans: Sequence[Span] | None,
        *,
        is_clean: bool,
    ) -> Sequence[StoredRows] | None:
        """Return the Parquet files of a sealed file as the last load has shown them, and hold them;
        None if they have to be inspected or made."""
        if changed_spans is None:
            return None
        # A channel may have thousands of files, so each of these steps counts.
        index = file.index
        for span in changed_spans:
            if span.first < index.end_id and index.first_id < span.end:
                return None
        sealed = self._sealed_parts.get(file.name)
        if (
            sealed is None
            or sealed.layout is not self.layout(channel)[0]
            or sealed.batch_count != len(index.batches)
        ):
            return None
        for part in sealed.rows:
            stored = part.events.file
            # The store may have removed an unused file to make room.
            if self._store.get(stored.name) is not stored:
                return None
            hold.add(stored)
            if part.deletes is not None:
                stored = part.deletes.file
                if is_clean or self._store.get(stored.name) is not stored:
                    return None
                hold.add(stored)
        return sealed.rows

    # --- sealed files --------------------------------------------------------------------

    async def prepare_sealed(
        self, channel: CapturedChannel, hold: FileHold, span: Span, *, rows_min: int, files_max: int
    ) -> list[WholeFile]:
        """Return up to ``files_max`` Parquet files, with at least ``rows_min`` rows each, of the
        sealed events of ``span``, in the order of their ids; missing files are made.

        Each file contains all stored events of its range, and no removed ones. Events between two
        ranges are in memory, in small files, or in sealed files with more than one range of ids.
        The files are added to ``hold``. Raises the errors of :meth:`prepare`.
        """
        whole_files: list[WholeFile] = []
        if channel.is_merged:  # its events are changes of states, which tables do not show
            return whole_files
        first = span.first
        for file in channel.files:
            if file.index.end_id <= first or file.index.first_id >= span.end:
                continue
            reading = _SealedReading(file, self._blobs)
            sealed = await self._divided(reading)
            for part in sealed.parts:
                ids = channel.in_files.within(file.span_of(part))
                part_end = file.span_of(part).end
                # The last part of a file that grows is made again with every growth.
                if not ids or part_end > span.end or (file.may_grow and part is sealed.parts[-1]):
                    continue
                covered = Span(first, part_end)
                first = max(first, part_end)
                if (
                    len(ids) < rows_min
                    or ids.spans[0].first < covered.first
                    or channel.stored_count(covered) != len(ids)
                ):
                    continue
                rows = await self._prepare_part(
                    channel, reading, sealed, part=part, hold=hold, removed_max=0.0
                )
                assert rows is not None, "the part has stored events"
                whole_files.append(WholeFile(rows.events, covered))
                if len(whole_files) >= files_max:
                    return whole_files
        return whole_files

    async def _prepare_sealed(
        self, channel: CapturedChannel, file: SealedAtCapture, hold: FileHold, removed_max: float
    ) -> Sequence[StoredRows]:
        """Return the Parquet files of one sealed file. Missing files are made, and files with a
        larger share of removed events than ``removed_max`` are made again."""
        stored_ids = channel.in_files.within(Span(file.index.first_id, file.index.end_id))
        if not stored_ids:
            # The realm has not removed the file yet.
            await self._forget(file.name)
            return ()
        reading = _SealedReading(file, self._blobs)
        stored_rows_of_parts = []
        sealed = await self._divided(reading)
        for part in sealed.parts:
            rows = await self._prepare_part(
                channel, reading, sealed, part=part, hold=hold, removed_max=removed_max
            )
            if rows is not None:
                await self._set_deletes(rows, hold)
                stored_rows_of_parts.append(rows)
        sealed.rows, sealed.layout = stored_rows_of_parts, self.layout(channel)[0]
        return stored_rows_of_parts

    async def _divided(self, reading: _SealedReading) -> _SealedParts:
        """Return the division of a sealed file into Parquet files, for all of its batches."""
        file = reading.file
        sealed = self._sealed_parts.get(file.name)
        if sealed is None or sealed.batch_count != len(file.index.batches):
            parts = await self._offload(partial(_divide, await reading.reader()))
            made = {} if sealed is None else sealed.made
            # The last part may have grown, with the batches that were appended since.
            await self._drop([made.pop(part) for part in made.keys() - {*parts}])
            sealed = self._sealed_parts[file.name] = _SealedParts(
                len(file.index.batches), parts, made
            )
        return sealed

    async def _prepare_part(
        self,
        channel: CapturedChannel,
        reading: _SealedReading,
        sealed: _SealedParts,
        part: range,
        hold: FileHold,
        *,
        removed_max: float,
    ) -> StoredRows | None:
        """Return the Parquet file of a part of a sealed file; None if none of its events is stored.

        It is made if it is missing, or if a larger share of its events than ``removed_max`` was
        removed.
        """
        file, made = reading.file, sealed.made
        ids = channel.in_files.within(file.span_of(part))
        # The file is not in the dictionary until it is known to be good, so that a failure of the
        # following steps does not leave a dropped file in it.
        events = made.pop(part, None)
        if events is not None and not self._is_usable(
            events, ids, channel, removed_max=removed_max
        ):
            await self._drop([events])
            events = None
        if not ids:
            return None
        if events is None:
            reader = await reading.reader()
            events = await self._make(
                channel, partial(rows_in_file, reader, ids, part), file.publishers, ids=ids
            )
        made[part] = events
        hold.add(events.file)
        return StoredRows(events, events.ids.overlap(ids))

    def _is_usable(
        self, events: EventFile, stored: IdSet, channel: CapturedChannel, removed_max: float
    ) -> bool:
        """Return whether a file of events can be used for a snapshot of the channel.

        ``stored`` are the ids of its events that are still stored; ``removed_max`` is the largest
        acceptable share of removed events. If the file cannot be used, the caller makes another
        one.
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

    async def _prepare_unsealed(
        self, channel: CapturedChannel, hold: FileHold, removed_max: float
    ) -> list[StoredRows]:
        """Return Parquet files with the events that are in memory. Existing files are used as far
        as possible; new files get the remaining events."""
        remaining = IdSet.union(batch.ids for batch in channel.in_memory)
        rows = []
        for events in self._memory_files:
            stored = events.ids.overlap(remaining)
            if self._is_usable(events, stored, channel, removed_max=removed_max):
                remaining.discard_all(stored)
                rows.append(StoredRows(events, stored))
        if remaining and len(rows) >= MEMORY_FILES_MAX:
            # One more file would be one too many: write all events into new files.
            remaining, rows = IdSet.union(batch.ids for batch in channel.in_memory), []
        used_files = [part.events for part in rows]
        for events in used_files:
            hold.add(events.file)
        await self._drop(events for events in self._memory_files if events not in used_files)
        self._memory_files = used_files
        for batches in _parts_of_memory(channel.in_memory, remaining):
            ids = IdSet.union(batch.ids for batch in batches)
            tail_batches = [batch.tail_batch for batch in batches]
            events = await self._make(
                channel,
                partial(stored_rows, tail_batches, ids),
                publishers_in_memory(batches),
                ids=ids,
            )
            self._memory_files.append(events)
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
        """Write a Parquet file of the events ``ids``. ``rows_of`` reads them; it runs in another
        thread."""
        layout, schema = self.layout(channel)
        name = f"{self._folder}/data/{ids.lowest:020d}-{self._store.next_suffix()}.parquet"

        def make() -> tuple[Image, TableRows, IdSet, bytes]:
            rows = layout.rows_of(rows_of(), publishers_within(publishers, ids))
            image = events_image(rows.table, schema, channel.compression)
            return image, rows, ids_in(rows.table), _record(name, image, "data")

        image, rows, row_ids, record = await self._offload(make)
        file = await self._store.put(name, image.buffer)
        return EventFile(
            file,
            image.rows,
            record,
            ids=row_ids,
            names=frozenset(rows.table.column_names),
            joined=layout.joined,
            inexact=rows.inexact,
            prefixed=layout.prefixed,
        )

    async def _set_deletes(self, part: StoredRows, hold: FileHold) -> None:
        """Set ``part.deletes`` to a delete file for its removed rows, if it has any."""
        events = part.events
        removed_count = len(events.ids) - len(part.stored)
        deletes = events.deletes
        # Removed events never come back, so an equal count means the same removed rows.
        if deletes is not None and (
            deletes.rows != removed_count or self._store.get(deletes.file.name) is not deletes.file
        ):
            await self._store.remove(deletes.file)
            events.deletes = deletes = None
        if removed_count and deletes is None:
            path = uri_of(events.file.name)
            name = f"{self._folder}/deletes/{self._store.next_suffix()}.parquet"

            def make() -> tuple[Image, bytes]:
                image = deletes_image(path, removed_positions(events.ids, part.stored))
                return image, _record(name, image, "deletes", data_path=path)

            image, record = await self._offload(make)
            file = await self._store.put(name, image.buffer)
            events.deletes = deletes = DeleteFile(file, image.rows, record)
        if deletes is not None:
            hold.add(deletes.file)
        part.deletes = deletes

    async def _drop(self, files: Iterable[EventFile]) -> None:
        """Remove files of events and their delete files from the store."""
        for events in list(files):
            await self._store.remove(events.file)
            if events.deletes is not None:
                await self._store.remove(events.deletes.file)


def ids_in(rows: pa.Table) -> IdSet:
    """Return the event ids of ``rows``, which are in ascending order."""
    (batch,) = rows.select(["event_id"]).to_batches() or [None]
    return IdSet() if batch is None else IdSet(spans_in(batch))


# --- off the loop -------------------------------------------------------------------------


def _record(name: str, image: Image, content: Content, data_path: str = "") -> bytes:
    """Return the description of the new file ``name`` for manifests."""
    entry = ManifestEntry(
        uri_of(name), image.rows, image.buffer.size, metrics=image.metrics, data_path=data_path
    )
    return manifest_record(entry, content)


def _divide(reader: SegmentReader) -> list[range]:
    """Divide the batches of a sealed file among Parquet files: one range of batch indexes for each
    Parquet file."""
    batches = (
        (index, batch.rows, reader.unpacked_size(index))
        for index, batch in enumerate(reader.index.batches)
    )
    return [range(part[0], part[-1] + 1) for part in in_parts(batches, BYTES_MAX, ROWS_MAX)]


def _parts_of_memory(batches: Sequence[EventsOfBatch], ids: IdSet) -> Iterator[list[EventsOfBatch]]:
    """Divide the events ``ids`` of ``batches`` among Parquet files; yield the batches of each."""
    events = (
        (EventsOfBatch(batch.tail_batch, batch_ids), len(batch_ids), len(batch.tail_batch.body))
        for batch in batches
        if (batch_ids := batch.ids.overlap(ids))
    )
    return in_parts(events, BYTES_MAX, ROWS_MAX)
