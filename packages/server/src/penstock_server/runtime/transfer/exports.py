"""Exports in progress: a channel as it was at one point in the order, read in parts (SEM C7).

The point is one turn of the shard. What was captured there stays readable while traffic goes on:
batches in memory never change, and a mapped file stays mapped when it is rewritten or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.transfers import ExportBegun, ExportedBytes
from penstock_core.channel.state import ChannelState
from penstock_core.columns.files.exports import (
    FileFacts,
    StateFile,
    described,
    described_state,
    state_bytes,
)
from penstock_core.columns.files.lean_columns import lean_image
from penstock_core.columns.files.segments import SegmentImage, SegmentReader, rows_of
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import IdSet, Span
from penstock_core.loggers import logger
from penstock_core.messages.retention import Quarantine
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.realm.exports import ExportedState, exported
from penstock_core.vocabulary.errors import Damaged, IllegalState, NameDoesNotExist
from penstock_core.vocabulary.ports import Blobs, Clock, Offload
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile, publishers_within
from penstock_server.runtime.store.tail_batch import TailBatch, stored_rows
from penstock_server.runtime.transfer.transfer_registry import Transfer, TransferRegistry
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

PART_BYTES = 32 << 20
"""A file of an export is closed above this."""
READ_BYTES = 4 << 20
"""Most bytes of one answer."""
EXPORTS_MAX = 16
"""Exports under way at a time; each may hold one file in memory."""


_log = logger("penstock.exporting")


class _FilePart(Struct):
    """The content of one exported file: rows of one sealed file, or of batches in memory."""

    ids: IdSet
    publishers: Publishers
    in_memory: bool = False
    reader: SegmentReader | None = None
    numbers: tuple[int, ...] = ()
    """Indexes of the batches in the sealed file."""
    pieces: tuple[TailBatch, ...] = ()


class _Mapped(NamedTuple):
    """A sealed file that is open, and what its batches take unpacked, in bytes."""

    reader: SegmentReader
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, reader: SegmentReader) -> _Mapped:
        count = len(reader.index.batches)
        return cls(reader, tuple(reader.unpacked_size(number) for number in range(count)))


class _Captured(Struct):
    """Everything of a channel, by reference."""

    number: int
    name: str
    at_us: int
    state: ExportedState
    columns: ChannelSchema
    parts: tuple[_FilePart, ...]
    events: int


class _RunningExport(Transfer):
    def __init__(self, session: str, captured: _Captured) -> None:
        super().__init__(session)
        self.captured = captured
        self.facts: list[FileFacts | None] = [None] * len(captured.parts)
        self.at = -1
        """The file held ready."""
        self.file = ExportedFile(name="", size=0, checksum="")
        self.content = memoryview(b"")


class Exports(TransferRegistry[_RunningExport]):
    """All exports in progress."""

    def __init__(
        self, shard: Shard, blobs: Blobs, clock: Clock, offload: Offload, *, realm: str
    ) -> None:
        super().__init__(
            "export", EXPORTS_MAX, clock, ends="ended with its connection, or was not read"
        )
        self._shard = shard
        self._blobs = blobs
        self._offload = offload
        self._realm = realm

    async def begin(self, session: str, name: str, kind: str) -> ExportBegun:
        """Capture a channel or queue. Raises ``NameDoesNotExist``, ``Unavailable``, ``Damaged``."""
        self.check_room()
        captured = await self._capture(name, kind)
        return ExportBegun(
            export=self.add(_RunningExport(session, captured)),
            name=captured.name,
            definition=captured.state.restored.definition,
            realm=self._realm,
            at_us=captured.at_us,
            events=captured.events,
            files=len(captured.parts),
        )

    async def read(self, session: str, name: str, file: int, offset: int) -> ExportedBytes:
        """Some bytes of a file: those of events from 0 on, then the state.

        Raises ``IllegalState`` for an export that has ended, ``Damaged`` when events turn out to
        be unreadable: they are quarantined (SEM S1), and a new export has all the others.
        """
        export = self.known(session, name)
        if export.users:
            raise IllegalState(f"{name} is already being read; only one read at a time is possible")
        with self.at_work(export):
            if export.at != file:
                await self._prepare(export, file)
        if not 0 <= offset < export.file.size:
            raise IllegalState(f"{export.file.name} has no byte {offset}")
        return ExportedBytes(export.file, bytes(export.content[offset : offset + READ_BYTES]))

    async def end(self, session: str, name: str) -> None:
        """End an export and release what was captured."""
        self.known(session, name)
        self.remove(name)

    def _log_expired(self, transfer: _RunningExport) -> None:
        _log.info("export.expired", channel=transfer.captured.name)

    # --- capturing -----------------------------------------------------------------------

    async def _capture(self, name: str, kind: str) -> _Captured:
        """Capture a channel. Files are mapped beforehand; files that appear meanwhile need another
        round."""
        readers: dict[str, _Mapped] = {}
        while True:
            found = await self._shard.act(
                lambda group: _captured(group, name, kind, readers=readers)
            )
            if isinstance(found, _Captured):
                return found
            for file in found:
                try:
                    buffer = await self._blobs.get(file.name)
                except NameDoesNotExist:
                    continue  # rewritten meanwhile; otherwise it is asked for again
                reader = SegmentReader(buffer, file.index, name=file.name)
                readers[file.name] = await self._offload(partial(_Mapped.of, reader))

    # --- making files --------------------------------------------------------------------

    async def _prepare(self, export: _RunningExport, file: int) -> None:
        parts = export.captured.parts
        if not 0 <= file <= len(parts):
            raise IllegalState(f"there is no file {file}; the export has {len(parts) + 1}")
        if file == len(parts):
            facts = tuple(known for known in export.facts if known is not None)
            if len(facts) < len(parts):
                raise IllegalState(
                    "the state must be read last, because it describes the files before it"
                )
            content = await self._offload(
                lambda: state_bytes(StateFile(export.captured.state, facts))
            )
            export.file, export.content = described_state(content), memoryview(content)
        else:
            part = parts[file]
            image = await self._image(export.captured, part)
            export.facts[file] = FileFacts(image.index, part.publishers)
            export.file = described(image, in_memory=part.in_memory)
            export.content = memoryview(image.buffer)
        export.at = file

    async def _image(self, captured: _Captured, part: _FilePart) -> SegmentImage:
        try:
            image: SegmentImage = await self._offload(partial(_image, part, captured))
        except _Unreadable as error:
            store = self._shard.state.stores.get(captured.number)
            if store is not None:
                store.quarantined.append(str(error))
            _log.error("events.quarantined", channel=captured.number, reason=str(error))
            self._shard.quarantine(captured.number, Quarantine(error.ids.spans))
            raise Damaged(
                f"{captured.name} cannot be exported whole: {error}; the unreadable events are "
                f"now set aside: export again to get the rest"
            ) from error
        return image


class _Unreadable(Exception):
    def __init__(self, reason: Damaged, ids: IdSet) -> None:
        super().__init__(str(reason))
        self.ids = ids


def _captured(
    group: Group, name: str, kind: str, readers: dict[str, _Mapped]
) -> _Captured | list[SealedFile]:
    """The channel as it stands in this very turn, or the files to be mapped first."""
    number = group.state.directory.channel_id_of(name, kind)
    group.sweep(number)
    state, store = group.state.channels[number].state, group.state.stores[number]
    missing = [
        file
        for file in store.files
        if (known := readers.get(file.name)) is None or known.reader.index is not file.index
    ]
    if missing:
        return missing
    return _Captured(
        number,
        state.name,
        group.now_us,
        state=exported(state),
        columns=store.columns,
        parts=tuple(_parts(state, store, readers)),
        events=len(state.stored),
    )


def _parts(
    state: ChannelState, store: ChannelStore, readers: dict[str, _Mapped]
) -> Iterator[_FilePart]:
    """All stored events in parts: first those on disk, in the order of ids, then those in memory
    only."""
    left = state.stored.copy()
    left.discard_all(state.volatile)
    unsealed = []
    held = store.held()
    for piece in held:
        span = Span(piece.first, piece.end)
        if piece.home != "pages":  # others lie in files below this
            span = span.clipped(Span(store.sealed_through, max(span.end, store.sealed_through)))
        own = piece.overlap(left.within(span))
        own.add_all(piece.overlap(store.late))
        if own:
            left.discard_all(own)
            unsealed.append((piece, own))
    lasting = [*_sealed_parts(store, left, readers), *_memory_parts(unsealed)]
    if left:
        raise Damaged(f"{state.name} cannot be exported whole: {left!r} are in no file")
    yield from sorted(lasting, key=lambda part: part.ids.lowest or 0)
    fleeting = [(piece, own) for piece in held if (own := piece.overlap(state.volatile))]
    yield from _memory_parts(fleeting, in_memory=True)


def _sealed_parts(
    store: ChannelStore, left: IdSet, readers: dict[str, _Mapped]
) -> Iterator[_FilePart]:
    """The parts that are in files; their ids are removed from ``left``."""
    for file in store.files:
        reader, sizes = readers[file.name]
        ids, size = IdSet(), 0
        numbers: list[int] = []
        for number, place in enumerate(reader.index.batches):
            own = left.remove(place.span)
            if not own:
                continue
            if size and size + sizes[number] > PART_BYTES:
                yield _sealed_part(file, reader, ids, numbers=numbers)
                ids, numbers, size = IdSet(), [], 0
            ids.add_all(own)
            numbers.append(number)
            size += sizes[number]
        if numbers:
            yield _sealed_part(file, reader, ids, numbers=numbers)


def _sealed_part(
    file: SealedFile, reader: SegmentReader, ids: IdSet, numbers: Sequence[int]
) -> _FilePart:
    publishers = publishers_within(file.publishers, ids)
    return _FilePart(ids, publishers, reader=reader, numbers=tuple(numbers))


def _memory_parts(
    found: Sequence[tuple[TailBatch, IdSet]], *, in_memory: bool = False
) -> Iterator[_FilePart]:
    start = size = 0
    for at, (piece, _) in enumerate(found):
        if size and size + len(piece.body) > PART_BYTES:
            yield _memory_part(found[start:at], in_memory=in_memory)
            start, size = at, 0
        size += len(piece.body)
    if found:
        yield _memory_part(found[start:], in_memory=in_memory)


def _memory_part(found: Sequence[tuple[TailBatch, IdSet]], *, in_memory: bool) -> _FilePart:
    ids = IdSet()
    publishers: dict[str, IdSet] = {}
    for piece, own in found:
        ids.add_all(own)
        if piece.publisher:
            publishers.setdefault(piece.publisher, IdSet()).add_all(own)
    named = tuple((publisher, own.spans) for publisher, own in publishers.items())
    pieces = tuple(piece for piece, _ in found)
    return _FilePart(ids, named, in_memory=in_memory, pieces=pieces)


# --- away from the loop -------------------------------------------------------------------


def _image(part: _FilePart, captured: _Captured) -> SegmentImage:
    """A file of the export, which is compressed as the channel's own are: an import keeps it."""
    columns = captured.columns
    batches = _from_file(part) if part.reader is not None else stored_rows(part.pieces, part.ids)
    compression = captured.state.restored.definition.storage.compression
    return lean_image(list(batches), columns, compression)


def _from_file(part: _FilePart) -> Iterator[pa.RecordBatch]:
    assert part.reader is not None, "it is a part of a file"
    unreadable, reason = IdSet(), None
    for number in part.numbers:
        span = part.reader.index.batches[number].span
        own = part.ids.within(span)
        try:
            batch = part.reader.batch(number)
        except Damaged as error:
            unreadable.add_all(own)
            reason = reason or error
            continue
        yield batch if len(own) == batch.num_rows else rows_of(batch, own.spans)
    if reason is not None:
        raise _Unreadable(reason, unreadable)
