"""Exports in progress: the state of a channel in one turn of the writer, read in parts (SEM C7).

Captured events stay readable while traffic continues: batches in memory never change, and a mapped
file stays mapped when it is rewritten or dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

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
from penstock_core.columns.files.segments import SegmentImage, SegmentReader
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import IdSet
from penstock_core.loggers import logger
from penstock_core.messages.retention import Quarantine
from penstock_core.realm.exported_file import ExportedFile
from penstock_core.realm.exports import ExportedState, export_state
from penstock_core.vocabulary.errors import Damaged, IllegalState, NameDoesNotExist
from penstock_core.vocabulary.ports import Blobs, Clock, Offload
from penstock_server.runtime.store.captured_events import (
    EventsOfBatch,
    UnreadableEvents,
    captured_events,
    in_parts,
    publishers_in_memory,
    rows_in_file,
)
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile, publishers_within
from penstock_server.runtime.store.tail_batch import TailBatch, stored_rows
from penstock_server.runtime.transfer.transfer_registry import Transfer, TransferRegistry
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

PART_BYTES = 32 << 20
"""Bytes above which the next events go to another file of the export."""
READ_BYTES = 4 << 20
"""Largest number of bytes in one answer."""
EXPORTS_MAX = 16
"""Largest number of exports at the same time, because each may have one file in memory."""


_log = logger("penstock.exporting")


class _FilePart(Struct):
    """The content of an exported file: rows of one sealed file, or of batches in memory."""

    ids: IdSet
    publishers: Publishers
    in_memory: bool = False
    reader: SegmentReader | None = None
    numbers: tuple[int, ...] = ()
    """Indexes of the batches in the sealed file."""
    tail_batches: tuple[TailBatch, ...] = ()


class _MappedFile(NamedTuple):
    """An open sealed file, with the uncompressed sizes of its batches in bytes."""

    reader: SegmentReader
    sizes: tuple[int, ...]

    @classmethod
    def from_reader(cls, reader: SegmentReader) -> _MappedFile:
        count = len(reader.index.batches)
        return cls(reader, tuple(reader.unpacked_size(number) for number in range(count)))


class _CapturedChannel(Struct):
    """The state and all events of a channel, by reference."""

    number: int
    name: str
    at_us: int
    state: ExportedState
    columns: ChannelSchema
    parts: tuple[_FilePart, ...]
    events: int


class _RunningExport(Transfer):
    def __init__(self, session: str, captured: _CapturedChannel) -> None:
        super().__init__(session)
        self.captured = captured
        self.facts: list[FileFacts | None] = [None] * len(captured.parts)
        self.ready = -1
        """Number of the file whose content is in memory."""
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
        self._realm, self.part_bytes = realm, PART_BYTES

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
        """Return bytes of a file from ``offset`` on. The files of events have numbers from 0 on;
        the last file has the state.

        Raises ``IllegalState`` for an export that has ended, and ``Damaged`` if events are
        unreadable: these are quarantined (SEM S1), and a new export has all other events.
        """
        export = self.find(session, name)
        if export.users:
            raise IllegalState(f"{name} is already being read; only one read at a time is possible")
        with self.at_work(export):
            if export.ready != file:
                await self._prepare(export, file)
        if not 0 <= offset < export.file.size:
            raise IllegalState(
                f"{export.file.name} has {export.file.size} bytes, so no byte {offset}"
            )
        return ExportedBytes(export.file, bytes(export.content[offset : offset + READ_BYTES]))

    async def end(self, session: str, name: str) -> None:
        """End an export and release the captured events."""
        self.find(session, name)
        self.remove(name)

    def _log_expired(self, transfer: _RunningExport) -> None:
        _log.info("export.expired", channel=transfer.captured.name)

    # --- capturing -----------------------------------------------------------------------

    async def _capture(self, name: str, kind: str) -> _CapturedChannel:
        """Capture a channel in one turn of the writer. Its files must be mapped before that turn,
        so the capture is tried again while the turn finds files that are not mapped."""
        readers: dict[str, _MappedFile] = {}
        while True:
            captured_or_unmapped = await self._shard.act(
                lambda group: _captured(
                    group, name, kind, readers=readers, part_bytes=self.part_bytes
                )
            )
            if isinstance(captured_or_unmapped, _CapturedChannel):
                return captured_or_unmapped
            for file in captured_or_unmapped:
                try:
                    buffer = await self._blobs.get(file.name)
                except NameDoesNotExist:
                    continue  # the file was rewritten; the next round lists its replacement
                reader = SegmentReader(buffer, file.index, name=file.name)
                readers[file.name] = await self._offload(partial(_MappedFile.from_reader, reader))

    # --- making files --------------------------------------------------------------------

    async def _prepare(self, export: _RunningExport, file: int) -> None:
        """Make the content of a file of the export, and keep it in memory for its reads."""
        parts = export.captured.parts
        if not 0 <= file <= len(parts):
            raise IllegalState(
                f"file {file} does not exist; the export has files 0 to {len(parts)}"
            )
        if file == len(parts):
            facts = tuple(facts for facts in export.facts if facts is not None)
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
        export.ready = file

    async def _image(self, captured: _CapturedChannel, part: _FilePart) -> SegmentImage:
        """Return the file of events for a part of an export, built in a thread. Unreadable events
        are set aside, and an error then asks the client to export again."""
        try:
            image: SegmentImage = await self._offload(partial(_image, part, captured))
        except UnreadableEvents as error:
            raise set_aside(
                self._shard,
                captured.number,
                f"{captured.name} cannot be exported as a whole: {error}; the unreadable events "
                f"are now set aside: export again to get the others",
                unreadable=error,
            ) from error
        return image


def set_aside(shard: Shard, channel_id: int, text: str, unreadable: UnreadableEvents) -> Damaged:
    """Quarantine the ``unreadable`` events (SEM S1), and return an error with ``text``."""
    store = shard.state.stores.get(channel_id)
    if store is not None:  # the channel may have been deleted during the export
        store.quarantined.append(str(unreadable))
    _log.error("events.quarantined", channel=channel_id, reason=str(unreadable))
    shard.quarantine(channel_id, Quarantine(unreadable.ids.spans))
    return Damaged(text)


def _captured(
    group: Group, name: str, kind: str, readers: dict[str, _MappedFile], part_bytes: int
) -> _CapturedChannel | list[SealedFile]:
    """Return the channel as it is in this turn. If files of the channel are not mapped yet, return
    these files instead."""
    number = group.state.directory.channel_id_of(name, kind)
    # Expired events leave the channel first, so that the export does not have them.
    group.sweep(number)
    state, store = group.state.channels[number].state, group.state.stores[number]
    # A file has a new index if it has grown since it was mapped.
    missing = [
        file
        for file in store.files
        if (mapped := readers.get(file.name)) is None or mapped.reader.index is not file.index
    ]
    if missing:
        return missing
    return _CapturedChannel(
        number,
        state.name,
        group.now_us,
        state=export_state(state),
        columns=store.columns,
        parts=tuple(_parts(state, store, readers, part_bytes=part_bytes)),
        events=len(state.stored),
    )


def _parts(
    state: ChannelState, store: ChannelStore, readers: dict[str, _MappedFile], part_bytes: int
) -> Iterator[_FilePart]:
    """Yield all stored events in parts: first persistent events in the order of ids, then transient
    events."""
    events = captured_events(state, store)
    remaining = events.in_files
    persistent = [
        *_sealed_parts(store, remaining, readers, part_bytes=part_bytes),
        *_memory_parts(events.unsealed, part_bytes),
    ]
    if remaining:
        raise Damaged(
            f"{state.name} cannot be exported as a whole: the events {remaining!r} are in no file; "
            f"run penstock store repair"
        )
    yield from sorted(persistent, key=lambda part: part.ids.lowest or 0)
    yield from _memory_parts(events.transient, part_bytes, in_memory=True)


def _sealed_parts(
    store: ChannelStore, remaining: IdSet, readers: dict[str, _MappedFile], part_bytes: int
) -> Iterator[_FilePart]:
    """Yield the parts of the events in files, and remove their ids from ``remaining``."""
    for file in store.files:
        reader, sizes = readers[file.name]
        batches = (
            ((number, ids), place.rows, sizes[number])
            for number, place in enumerate(reader.index.batches)
            if (ids := remaining.remove(place.span))
        )
        for part in in_parts(batches, part_bytes):
            part_ids = IdSet.union(ids for _, ids in part)
            numbers = [number for number, _ in part]
            yield _sealed_part(file, reader, part_ids, numbers=numbers)


def _sealed_part(
    file: SealedFile, reader: SegmentReader, ids: IdSet, numbers: Sequence[int]
) -> _FilePart:
    """Return the part of an export that has the events ``ids`` of a sealed file, from the record
    batches ``numbers``."""
    publishers = publishers_within(file.publishers, ids)
    return _FilePart(ids, publishers, reader=reader, numbers=tuple(numbers))


def _memory_parts(
    batches: Sequence[EventsOfBatch], part_bytes: int, *, in_memory: bool = False
) -> Iterator[_FilePart]:
    """Yield the parts of an export whose events are in memory, each of at most ``part_bytes``
    bytes."""
    sized = ((batch, len(batch.ids), len(batch.tail_batch.body)) for batch in batches)
    for part in in_parts(sized, part_bytes):
        yield _memory_part(part, in_memory=in_memory)


def _memory_part(batches: Sequence[EventsOfBatch], *, in_memory: bool) -> _FilePart:
    """Return the part of an export that has the events of these batches."""
    ids = IdSet.union(batch.ids for batch in batches)
    tail_batches = tuple(batch.tail_batch for batch in batches)
    publishers = publishers_in_memory(batches)
    return _FilePart(ids, publishers, in_memory=in_memory, tail_batches=tail_batches)


# --- in a thread --------------------------------------------------------------------------


def _image(part: _FilePart, captured: _CapturedChannel) -> SegmentImage:
    """Return a file of the export. It is compressed like the channel's files, because an import
    stores it unchanged."""
    columns = captured.columns
    batches = (
        stored_rows(part.tail_batches, part.ids)
        if part.reader is None
        else rows_in_file(part.reader, part.ids, part.numbers)
    )
    compression = captured.state.restored.definition.storage.compression
    return lean_image(list(batches), columns, compression)
