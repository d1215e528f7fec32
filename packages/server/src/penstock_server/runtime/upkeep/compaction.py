"""Rewrites a channel's single file without its removed events, while traffic continues (SEM S).

The existing files are frozen: events that are sealed during the maintenance go to a new file. A
thread copies the live events, and one recorded step replaces the files by the copy. An event that
leaves the channel during the copy is a removed event in the new file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from penstock_core.api.channels import Maintained
from penstock_core.columns.files.growing_segment import (
    Growth,
    extended,
    growing_name,
    number_in,
    started,
)
from penstock_core.columns.files.lean_columns import Needs, fitted_in, lean_image
from penstock_core.columns.files.segments import (
    SegmentImage,
    SegmentIndex,
    SegmentReader,
    rows_of,
    segment_name,
)
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.schema.shapes import NO_SLOTS, StructShape
from penstock_core.ids.ids import IdSet
from penstock_core.loggers import logger
from penstock_core.messages.segments import Rewritten
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    IllegalState,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Offload
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.file_names import FileNames
from penstock_server.runtime.store.open_files import OpenFiles
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile, publishers_within
from penstock_server.runtime.upkeep.backoff import RetryPauses
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

SPINDLE_ROWS = 50_000
"""Largest number of events in a file of a single-file channel, where files do not grow."""
COPY_BYTES = 16 << 20
"""Approximate number of bytes that are read and written at once."""
UNPACKED_ROW_BYTES = 128
"""Smallest number of bytes that an event counts for :data:`COPY_BYTES`, because compressed events
use much more memory than their bytes in the file."""
JOINED_BYTES_MAX = 64 << 20
"""Largest number of bytes of live events in a file that replaces several files, on a store whose
files do not grow."""
ROUNDS_MAX = 4
"""Largest number of copying rounds; each round copies the events sealed during the previous round.
Events sealed after the last round stay in another file."""

_log = logger("penstock.maintaining")


RETRY_MAX_S = 30.0
"""Longest pause between two attempts in seconds, so that a disk with free space again is noticed
soon."""


class MaintenanceLimits(Struct, frozen=True):
    """Limits that decide when files are rewritten."""

    dead_share: float = 0.5
    """Share of dead bytes in a channel's files above which maintenance starts."""
    dead_bytes: int = 100 << 20
    """Maintenance starts only if a channel's files have at least this many dead bytes."""
    interval_s: float = 1.0
    """Seconds between two searches for work."""
    retry_s: float = 5.0
    """Seconds of pause after a first failure of the disk; each further failure doubles it."""
    retry_max_s: float = RETRY_MAX_S
    """Longest pause in seconds."""


class Maintainer:
    """Rewrites the files of channels with many removed events."""

    def __init__(
        self,
        shard: Shard,
        blobs: Blobs,
        files: OpenFiles,
        offload: Offload,
        limits: MaintenanceLimits,
        incidents: Incidents,
        *,
        has_gaps: bool = False,
    ) -> None:
        self._incidents = incidents
        self._shard = shard
        self._blobs = blobs
        self._files = files
        self.offload = offload
        """Runs the work on files."""
        self._limits = limits
        self._has_gaps = has_gaps
        """Whether facts may be missing, so that files may have unrecorded events and must not be
        replaced (SEM S1)."""
        self._backoff = RetryPauses(limits.retry_s, limits.retry_max_s)
        self._busy: set[int] = set()
        """Channels whose files are being rewritten."""
        self._damaged: set[int] = set()
        """Channels with a damaged file, which need ``penstock store repair``."""

    async def run(self) -> None:
        """Rewrite files that need it until cancelled."""
        state = self._shard.state
        while True:
            await asyncio.sleep(self._limits.interval_s)
            channel_ids, state.to_maintain = state.to_maintain, set()
            for channel_id in map(ChannelId, sorted(channel_ids)):
                if channel_id in self._busy or self._incidents.is_paused("maintenance", channel_id):
                    state.to_maintain.add(channel_id)  # checked again in the next round
                    continue
                with self._incidents.barrier("maintenance", channel_id):
                    # The channel stays in the set, also after a failure, until a check finds that
                    # it needs no maintenance.
                    state.to_maintain.add(channel_id)
                    if self._is_due(channel_id):
                        await self._try(channel_id)
                    else:
                        state.to_maintain.discard(channel_id)

    def _is_due(self, channel_id: ChannelId) -> bool:
        """Return whether enough bytes of a channel's sealed files are dead for maintenance to
        begin."""
        channel = self._shard.state.channels.get(channel_id)
        if channel is None or channel_id in self._damaged:
            return False
        storage, store = channel.state.definition.storage, self._shard.state.stores[channel_id]
        if storage.events_per_spindle or not storage.auto_maintenance:
            return False
        if store.sealed_bytes < self._limits.dead_bytes:
            return False
        # After the cheaper tests, because the events of all changed files are counted.
        store.recount(channel.state.stored)
        dead = store.dead_bytes
        return (
            dead >= self._limits.dead_bytes and dead > self._limits.dead_share * store.sealed_bytes
        )

    async def _try(self, channel_id: ChannelId) -> None:
        """Maintain a channel, and log a failure instead of raising it."""
        try:
            await self.maintain(channel_id)
            self._backoff.record_success()
        except StorageFailed as failure:
            _log.warning("maintenance.postponed", channel=channel_id, reason=str(failure))
            await asyncio.sleep(self._backoff.failed())
        except NameDoesNotExist:
            return  # the channel was deleted during the maintenance
        except (Damaged, pa.ArrowException) as error:
            self._damaged.add(channel_id)
            _log.error("channel.not_maintained", channel=channel_id, reason=str(error))

    async def maintain(self, channel_id: ChannelId, also: StructShape = NO_SLOTS) -> Maintained:
        """Rewrite the files of a channel as one file without removed events. The file has the
        columns for the properties of the live events and for those in ``also``. Ids do not change.

        For a channel of spindles or without files, nothing is rewritten and the answer has the
        reason. Raises ``NameDoesNotExist``, ``IllegalState`` if the channel is already being
        maintained, ``Damaged`` (the files are unchanged in this case) and ``StorageFailed``.
        """
        channel = self._shard.state.channels.get(channel_id)
        if channel is None:
            raise NameDoesNotExist(f"channel number {channel_id} no longer exists")
        if self._has_gaps:
            raise Damaged(
                f"{channel.state.name} is not maintained because the journal or a snapshot is "
                f"damaged and files may hold unrecorded events; run penstock store repair"
            )
        state, store = channel.state, self._shard.state.stores[channel_id]
        before = store.sealed_bytes
        if state.type.home != "journal" or state.engine.merges:
            reason = f"{state.name} has no segment files"
            return Maintained(before, before, len(state.stored), reason=reason)
        if rows := state.definition.storage.events_per_spindle:
            reason = f"{state.name} is kept in files of {rows} events; empty files are deleted"
            return Maintained(before, before, len(state.stored), reason=reason)
        if not store.files:
            return Maintained(0, 0, 0, reason=f"no event of {state.name} is in a file yet")
        if channel_id in self._busy:
            raise IllegalState(f"{state.name} is already being maintained")
        kind = _Rewriting if self._blobs.grows else _Joining
        return await self._alone(
            channel_id, kind(self, channel_id, store, name=state.name, also=also), before
        )

    async def _alone(self, channel_id: ChannelId, work: _Rewriting, before: int) -> Maintained:
        """Run the ``work`` while no other task changes the channel's files."""

        def release() -> None:
            self._busy.discard(channel_id)
            work.thaw()

        self._busy.add(channel_id)
        with releasing_after_writer(self._shard, release):
            return await work.run(before)


class _Rewriting:
    """The maintenance of one channel."""

    def __init__(
        self,
        owner: Maintainer,
        channel_id: ChannelId,
        store: ChannelStore,
        name: str,
        also: StructShape,
    ) -> None:
        self._shard = owner._shard
        self._blobs = owner._blobs
        self._files = owner._files
        self._offload = owner.offload
        self._channel_id = channel_id
        self._name = name
        self._store = store
        self._columns = store.columns
        """The columns that the channel had when the maintenance began."""
        self._needs = Needs(store.columns)
        """The columns that the live events need."""
        self._also = also
        """Properties whose columns the copy also gets."""
        self._schema = store.columns
        """The schema of the copy."""
        self._copied: list[SealedFile] = []
        state = owner._shard.state.channels[channel_id].state
        self._compression = state.definition.storage.compression
        self._copy = FileCopy(
            owner._blobs,
            owner.offload,
            store.folder(name, channel_id),
            compression=self._compression,
        )

    async def run(self, before: int) -> Maintained:
        """Rewrite the files. ``before`` is the size of the channel's files in bytes, for the
        result."""
        switched: bool | None = False
        try:
            for file in self._freeze():
                await self._each_batch(file, self._note_needs)
            self._schema = self._needs.open_schema(self._also)
            self._copy.note = self._columns.note(self._schema.arrow)
            for _ in range(ROUNDS_MAX):
                # Files are replaced in the order of their ids, so the first one that does not fit
                # ends the round.
                files = list(takewhile(self._fits, self._freeze()))
                if not files:
                    break
                for file in files:
                    await self._each_batch(file, self._add)
                    self._copied.append(file)
            # After a cancellation from here on it is unknown whether the copy is in use.
            switched = None
            switched = await self._shard.act(self._switch)
        finally:
            if switched is False and self._copy.name:
                # A failure of the disk must not replace a cancellation. No fact refers to a file
                # that remains, so the next start deletes it.
                with suppress(StorageFailed):
                    await self._blobs.delete(self._copy.name)
        if not switched:
            raise NameDoesNotExist(f"channel number {self._channel_id} was deleted in the meantime")
        # Only now, because the fact that replaces these files is on disk.
        for file in self._copied:
            self._files.close(file)
            await self._blobs.delete(file.name)
        events = self._copy.index.rows if self._copy.index else 0
        _log.info("channel.maintained", channel=self._channel_id, before=before, events=events)
        return Maintained(before, self._store.sealed_bytes, events)

    def thaw(self) -> None:
        """Let the channel's files grow again."""
        for file in self._store.files:
            file.is_frozen = False

    def _uncopied(self) -> list[SealedFile]:
        """Return the files of the store that this run has not copied."""
        return [file for file in self._store.files if file not in self._copied]

    def _freeze(self) -> Sequence[SealedFile]:
        """Freeze the files that are not copied yet, so that sealing does not append to them."""
        files = self._uncopied()
        for file in files:
            file.is_frozen = True
        return files

    def _fits(self, file: SealedFile) -> bool:
        """Whether the copy has all columns of a file: the channel had them when the maintenance
        began, and the copy has those outside the properties. A file that does not fit is not
        copied."""
        file_columns = ChannelSchema.of_file(file.index.schema).arrow
        other_columns = ChannelSchema.from_bytes(file.index.schema).names - {"properties"}
        has_columns = self._columns.grown(file_columns) is self._columns
        return has_columns and other_columns <= self._schema.names

    async def _note_needs(self, batches: list[pa.RecordBatch]) -> None:
        """Record the columns that these batches need."""
        await self._offload(lambda: self._needs.add_all(batches))

    async def _add(self, batches: list[pa.RecordBatch]) -> None:
        """Append batches of live events to the copy, in its schema."""
        schema, columns = self._schema, self._columns
        await self._copy.add(await self._offload(lambda: fitted_in(batches, schema, columns)))

    async def _each_batch(
        self, file: SealedFile, work: Callable[[list[pa.RecordBatch]], Awaitable[None]]
    ) -> None:
        """Apply ``work`` to the live events of a file, some batches at a time. Every batch is
        verified, because the file will be deleted."""
        buffer = await self._blobs.get(file.name)
        reader = SegmentReader(buffer, file.index, name=file.name)
        first = 0
        while first < len(file.index.batches):
            end, size = first, 0
            while end < len(file.index.batches) and size < COPY_BYTES:
                place = file.index.batches[end]
                size += max(place.length, place.rows * UNPACKED_ROW_BYTES)
                end += 1
            live_ids = [self._live(file, number) for number in range(first, end)]
            try:
                batches = await self._offload(partial(_rows, reader, first, live_ids))
            except Damaged as error:
                self._store.keep_damaged(file, str(error))
                error.add_note("`penstock store repair` sets damaged events aside")
                raise
            if batches:
                await work(batches)
            first = end

    def _live(self, file: SealedFile, batch: int) -> IdSet:
        """Return the ids of a batch whose events the channel still has."""
        channel = self._shard.state.channels.get(self._channel_id)
        if channel is None:
            raise NameDoesNotExist(f"channel number {self._channel_id} was deleted in the meantime")
        live = channel.state.stored.within(file.index.batches[batch].span)
        # Transient and late events have ids within the spans of files, but are not in the files.
        live.remove_all(channel.state.volatile)
        live.remove_all(self._store.late)
        return live

    def _publishers(self, files: Sequence[SealedFile]) -> Publishers:
        """Return the publishers of the live events of these files."""
        ids = self._shard.state.channels[self._channel_id].state.stored
        parts = [
            part
            for file in files
            for part in publishers_within(file.publishers, ids.within(file.span))
        ]
        return _joined(parts)

    def _switch(self, group: Group) -> bool:
        """Replace the copied files by the copy. Return False if the channel was deleted."""
        if group.state.stores.get(self._channel_id) is not self._store:
            return False
        names = tuple(file.name for file in self._copied)
        fact = Rewritten(names)
        if index := self._copy.index:
            encoded = msgspec.msgpack.encode(index)
            fact = Rewritten(
                names, self._copy.name, encoded, publishers=self._publishers(self._copied)
            )
        group.realm_fact(self._channel_id, fact)
        return True


class _Joining(_Rewriting):
    """Maintenance on a store whose files do not grow: neighbouring sparse files become one new
    file, at most as large as a spindle."""

    async def run(self, before: int) -> Maintained:
        channel = self._shard.state.channels[self._channel_id]
        self._store.recount(channel.state.stored)
        for files in _neighbours(self._store.files):
            for file in files:
                file.is_frozen = True
            await self._join(files)
        events = sum(file.live for file in self._store.files)
        _log.info("channel.maintained", channel=self._channel_id, before=before, events=events)
        return Maintained(before, self._store.sealed_bytes, events)

    async def _join(self, files: Sequence[SealedFile]) -> None:
        """Replace neighbouring files by a new one with their live events, or by none if all have
        left."""
        live: list[pa.RecordBatch] = []
        names, image = tuple(file.name for file in files), None

        async def collect(batches: list[pa.RecordBatch]) -> None:
            live.extend(batches)

        for file in files:
            await self._each_batch(file, collect)
        name = ""
        if live:
            encode = partial(lean_image, live, self._store.columns, self._compression)
            image = await self._offload(encode)
            folder = self._store.folder(self._name, self._channel_id)
            file_names = self._shard.state.file_names
            name = await put_segment(self._blobs, file_names, folder, image=image)
        if not await self._shard.act(partial(self._replace, files, names, name, image)):
            if name:  # no fact refers to the new file
                await self._blobs.delete(name)
            raise NameDoesNotExist(f"channel number {self._channel_id} was deleted in the meantime")
        for file in files:
            self._files.close(file)
            await self._blobs.delete(file.name)

    def _replace(
        self,
        files: Sequence[SealedFile],
        names: tuple[str, ...],
        name: str,
        image: SegmentImage | None,
        group: Group,
    ) -> bool:
        """Record that the file ``name`` replaces ``files``. Return False if the channel was
        deleted."""
        if group.state.stores.get(self._channel_id) is not self._store:
            return False
        fact = Rewritten(names, grows=False)
        if image is not None:
            encoded, publishers = msgspec.msgpack.encode(image.index), self._publishers(files)
            fact = Rewritten(names, name, encoded, publishers=publishers, grows=False)
        group.realm_fact(self._channel_id, fact)
        return True


def _neighbours(files: Sequence[SealedFile]) -> list[list[SealedFile]]:
    """Return groups of neighbouring files, each of which is to become one new file of limited size.
    A group of one file without removed events is left out."""
    groups: list[list[SealedFile]] = []
    rows = size = 0
    for file in files:
        live_bytes = file.index.size - file.dead_bytes
        if not groups or rows + file.live > SPINDLE_ROWS or size + live_bytes > JOINED_BYTES_MAX:
            groups.append([])
            rows = size = 0
        groups[-1].append(file)
        rows, size = rows + file.live, size + live_bytes
    return [
        group
        for group in groups
        if len(group) > 1 or any(file.live < file.index.rows for file in group)
    ]


@contextmanager
def releasing_after_writer(shard: Shard, release: Callable[[], None]) -> Iterator[None]:
    """Call ``release`` at the end of the ``with`` block. If the block is cancelled, call it only
    after the writer has served all requests that were made before.

    At a cancellation, a fact about files may be in the writer's queue, and the writer still records
    it. Another task that used the same files before that would write the same events again, and
    then delete the file that has them.
    """
    try:
        yield
    except asyncio.CancelledError:
        shard.call_after_earlier(release)
        raise
    except BaseException:
        release()
        raise
    release()


async def put_segment(blobs: Blobs, file_names: FileNames, folder: str, image: SegmentImage) -> str:
    """Store a segment and return its name. If an interrupted sealing has left a file of this name,
    the checksum is added to the name."""
    plain = segment_name(folder, image.index.first_id, image.index.end_id)
    name = file_names.segment(plain)
    try:
        await blobs.put(name, image.chunks)
    except Conflict:
        plain = f"{plain.removesuffix('.arrow')}.{image.index.checksum:016x}.arrow"
        name = file_names.segment(plain)
        await blobs.put(name, image.chunks)
    return name


class FileCopy:
    """A file of a channel that is written some batches at a time."""

    def __init__(
        self, blobs: Blobs, offload: Offload, folder: str, compression: Compression
    ) -> None:
        self._compression: Compression = compression
        self._blobs = blobs
        self._offload = offload
        self._folder = folder
        self.name = ""
        self.index: SegmentIndex | None = None
        self._tail: Any = b""
        self.note: dict[bytes, bytes] | None = None
        """Metadata of the file's schema."""

    async def add(self, batches: list[pa.RecordBatch]) -> None:
        """Append batches; they are on disk on return."""
        index, tail, compression = self.index, self._tail, self._compression
        if index is None:
            growth: Growth = await self._offload(
                lambda: started(batches, note=self.note, compression=compression)
            )
            self.name = await new_file(self._blobs, self._folder, growth)
        else:
            growth = await self._offload(
                lambda: extended(index, tail, batches, compression=compression)
            )
            await self._blobs.extend(self.name, growth.at, growth.chunks)
        self.index, self._tail = growth.index, growth.chunks[-1]


async def new_file(blobs: Blobs, folder: str, growth: Growth) -> str:
    """Store a new growing file under an unused name of the channel; return the name."""
    existing = await blobs.list(f"segments/{folder}/")
    number = max((number_in(info.name) for info in existing), default=0)
    while True:
        number += 1
        name = growing_name(folder, number)
        try:
            await blobs.put(name, growth.chunks)
        except Conflict:
            continue  # another task has taken the name
        return name


def _rows(reader: SegmentReader, first: int, ids_by_batch: Sequence[IdSet]) -> list[pa.RecordBatch]:
    """Return the events of ``ids_by_batch``, which has the ids to read from each batch, beginning
    with the batch ``first``."""
    rows = []
    for number, ids in enumerate(ids_by_batch, first):
        batch = reader.batch(number)  # verifies the batch, even if no row of it is needed
        if ids:
            rows.append(rows_of(batch, ids.spans))
    return rows


def _joined(parts: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return one entry for each publisher in ``parts``, with all its ids."""
    ids_by_publisher: dict[str, IdSet] = {}
    for publisher, spans in parts:
        ids = ids_by_publisher.setdefault(publisher, IdSet())
        for span in spans:
            ids.add(span)
    return tuple((publisher, ids.spans) for publisher, ids in ids_by_publisher.items())
