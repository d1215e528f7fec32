"""Moves events from the journal into segment files, and trims the journal.

Sealing writes every byte a second time, in large batches and in a thread, so that plain Arrow
readers such as Spark can map events without requests to the realm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import msgspec
import pyarrow as pa
from msgspec import Struct
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.growing_segment import (
    Growth,
    extended,
    tail_or_rebuilt,
)
from penstock_core.columns.files.lean_columns import fitted_in
from penstock_core.columns.files.segments import (
    SegmentImage,
    SegmentIndex,
    SegmentReader,
)
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.garbage import FreedMemory, uncollected
from penstock_core.ids.ids import IdSet, Span
from penstock_core.loggers import logger
from penstock_core.messages.segments import Extended, Sealed, SegmentDropped
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    IllegalState,
    NameDoesNotExist,
    StorageFailed,
)
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Buffer, Journal, Offload
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.file_names import SNAPSHOTS, snapshot_stem
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.open_files import CACHE_BYTES_MAX
from penstock_server.runtime.store.records import FactRecord, encode_block
from penstock_server.runtime.store.sealed_file import Publishers, SealedFile
from penstock_server.runtime.store.tail_batch import TailBatch
from penstock_server.runtime.upkeep.backoff import RetryPauses
from penstock_server.runtime.upkeep.compaction import (
    RETRY_MAX_S,
    SPINDLE_ROWS,
    Maintainer,
    MaintenanceLimits,
    new_file,
    put_segment,
    releasing_after_writer,
)
from penstock_server.runtime.upkeep.regular_work import ENDS, run_again
from penstock_server.runtime.upkeep.sealed_rows import NewRows, image_of, publishers_of
from penstock_server.runtime.upkeep.snapshot_image import encode_snapshot
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

FREED_BYTES_MIN = 1 << 20
"""A purge, deletion or maintenance causes a snapshot if the journal has at least this many useless
bytes."""

FEW_BLOCKS = 50
"""If at most this many blocks follow a snapshot, the next owner reads the blocks in less time than
this owner needs to write another snapshot."""

UNSEALABLE_BYTES_MAX = 64 << 20
"""Bytes of unsealed events above which a channel that cannot be sealed accepts no more events."""

SEALING, SNAPSHOTTING, DROPPING = "sealing", "snapshots", "dropping files"
"""Names of the sealer's tasks in incidents."""

_log = logger("penstock.sealing")


class SealingLimits(Struct, frozen=True):
    """Limits that decide when events are sealed and snapshots are taken."""

    segment_bytes_max: int = 64 << 20
    """Bytes of unsealed events that fill a segment, even if they are few events."""
    journal_bytes_max: int = 256 << 20
    """Bytes of the journal above which a snapshot is taken and the journal is trimmed."""
    snapshot_blocks_max: int = 10_000
    """Number of blocks after which a snapshot is taken on a storage engine, because a start there
    has to request each block after the snapshot."""
    snapshot_interval_s: float = 60.0
    """Seconds after which a snapshot is taken on a storage engine, if the state has changed."""
    part_bytes_max: int = 8 << 20
    """Limit on the bytes of events that are sealed immediately if they do not fill a segment. These
    events are in memory twice during the sealing."""
    snapshot_tail_bytes_max: int = 1 << 20
    """Largest number of unsealed bytes of a channel that a snapshot copies; a channel with more is
    sealed before the snapshot."""
    interval_s: float = 0.25
    """Seconds between two searches for work."""
    unsealable_bytes_max: int = UNSEALABLE_BYTES_MAX
    retry_s: float = 5.0
    """Seconds of pause after a first failure of the disk; each further failure doubles it."""
    retry_max_s: float = RETRY_MAX_S
    """Longest pause in seconds."""
    remade_bytes_max: int = 64 << 20
    """Largest size in bytes of a single file that is rewritten when its channel gets more columns.
    A larger file stays unchanged, and later events go to another file."""
    cache_bytes_max: int = CACHE_BYTES_MAX
    """Limit on the bytes of files that are open for reading."""
    maintenance: MaintenanceLimits = MaintenanceLimits()


class Sealer:
    """Seals events, takes snapshots, and drops files without live events."""

    def __init__(
        self,
        shard: Shard,
        journal: Journal,
        blobs: Blobs,
        dispatch: Dispatch,
        offload: Offload,
        limits: SealingLimits,
        *,
        snapshot: int,
        unsealed_bytes_max: int,
        keeps_journal: bool = False,
    ) -> None:
        """Create a sealer. ``snapshot`` is the sequence of the last block that the newest snapshot
        includes; 0 without a snapshot. Publishers wait while more than ``unsealed_bytes_max`` bytes
        are unsealed. ``keeps_journal`` is set if the recovery has found gaps."""
        self._shard = shard
        self._unsealed_bytes_max = unsealed_bytes_max
        self._journal = journal
        self._blobs = blobs
        self._files = dispatch.files
        self._lease = dispatch.lease
        self._offload = offload
        self._limits = limits
        self._snapshot = snapshot
        """Sequence of the last block that the newest snapshot includes; 0 without a snapshot."""
        self._keeps_journal = keeps_journal
        """Whether recovery has detected gaps. Then no snapshot is taken and no block is trimmed,
        because a snapshot would hide the gaps from a repair (SEM S1)."""
        self._names = shard.state.file_names
        self._snapshot_s = 0.0
        """Time of the newest snapshot of this run, or of its start, in seconds of the loop's
        clock."""
        self._covered_s = 0.0
        """Latest time at which a stored snapshot included all blocks, or the start of this run, in
        seconds of the loop's clock."""
        self._is_prepared = False
        """Whether a snapshot was taken for the end of this run."""
        self._snapshot_lock = asyncio.Lock()
        """Lock held while a snapshot is taken."""
        self._covered_bytes = 0
        """Bytes of the journal that were not trimmed after the newest snapshot."""
        self._image_bytes = 0
        """Bytes of the newest snapshot of this run. A snapshot costs as many bytes of writing, in
        order to free journal space."""
        self._incidents = dispatch.incidents
        self.unsealable_bytes = 0
        """Bytes of unsealed events of channels whose sealing fails. They do not count for
        :attr:`is_behind`, so that publishers to other channels do not wait for them."""
        self._backoff = RetryPauses(limits.retry_s, limits.retry_max_s)
        self.freed = FreedMemory()
        # The recovery has read the journal, and freed the memory for its bytes.
        self.freed.bytes = journal.info().size
        self._busy: dict[int, asyncio.Event] = {}
        """Channels that a task is sealing, each with an asyncio event that is set at the end. Only
        one task seals a channel at a time."""
        self.maintainer = Maintainer(
            shard,
            blobs,
            dispatch.files,
            offload=offload,
            limits=limits.maintenance,
            incidents=dispatch.incidents,
            has_gaps=keeps_journal,
        )

    async def run(self) -> None:
        """Seal and maintain channels until cancelled. After a failure of the disk, for example
        because it is full, work is retried after a pause. If the sealing of a channel fails
        unexpectedly, it is paused for this channel as an incident."""
        async with asyncio.TaskGroup() as group:
            group.create_task(run_again(self._incidents, SEALING, self._run))
            group.create_task(run_again(self._incidents, "maintenance", self.maintainer.run))

    async def _run(self) -> None:
        self._snapshot_s = self._covered_s = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self._limits.interval_s)
            try:
                await self._run_round()
                self._backoff.record_success()
            except StorageFailed as failure:
                _log.warning("sealing.postponed", reason=str(failure))
                await asyncio.sleep(self._backoff.failed())

    async def _run_round(self) -> None:
        changed, self._shard.changed = self._shard.changed, set()
        try:
            for channel_id in map(ChannelId, sorted(changed)):
                while await self.seal(channel_id):
                    pass
            await self.drop_empty(changed)
        except BaseException:
            self._shard.changed |= changed  # the next round tries these channels again
            raise
        self._shard.changed.update(number for number in changed if self._waits(ChannelId(number)))
        self._note_unsealable()
        if self.is_behind:
            await self._catch_up()
        if not self._incidents.is_paused(SNAPSHOTTING, None):
            await self._reporting(self._snapshot_when_due)
        if self.freed.is_worth_it(self._journal.info().size):
            await self._offload(self.freed.give_back)

    @property
    def is_behind(self) -> bool:
        """Whether publishers wait for the sealing."""
        return self._sealable_bytes > self._unsealed_bytes_max

    @property
    def _sealable_bytes(self) -> int:
        return self._shard.state.meter.waiting_bytes - self.unsealable_bytes

    async def _catch_up(self) -> None:
        """Seal the channels with the most unsealed bytes, even if they do not fill a segment, until
        half the limit is free. Without this, publishers could wait for ever if many channels have
        few unsealed bytes each."""
        stores = self._shard.state.stores
        sizes = {number: store.meter.waiting_bytes for number, store in stores.items()}
        for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if self._sealable_bytes <= self._unsealed_bytes_max // 2 or not sizes[number]:
                return
            while self._sealable_bytes > self._unsealed_bytes_max // 2:
                if not await self.seal(ChannelId(number), everything=True):
                    break

    async def _snapshot_when_due(self) -> None:
        """Take a snapshot if the journal is large, the newest snapshot is old, or space can be
        freed."""
        await self.snapshot_above(self._limits.journal_bytes_max)
        if self._names.epoch and self._is_long_ago():
            await self._snapshot_unless_gaps()
        # A snapshot must free at least as many bytes as it writes.
        if self._shard.state.freed_bytes >= max(FREED_BYTES_MIN, self._image_bytes):
            await self.snapshot_above(FREED_BYTES_MIN)
            self._shard.state.freed_bytes = 0

    def _note_unsealable(self) -> None:
        """Mark the channels that accept no more events because their sealing fails and too many
        bytes wait in memory; unmark the others."""
        sizes = {
            channel_id: self._unsealed_bytes(channel_id)
            for channel_id in self._incidents.channels_of(SEALING)
        }
        self.unsealable_bytes = sum(sizes.values())
        self._shard.state.unsealable = {
            channel_id: size
            for channel_id, size in sizes.items()
            if size > self._limits.unsealable_bytes_max
        }

    async def _reporting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run ``work``, which takes snapshots. If it fails unexpectedly, report the channels whose
        state cannot be encoded. Sealing continues, and the journal is not trimmed."""
        try:
            await work()
        except ENDS:
            raise
        except StorageFailed:
            raise
        except Exception as failure:  # noqa: BLE001  it is logged as an incident
            await self._report_snapshot(failure)

    async def _report_snapshot(self, failure: Exception) -> None:
        """Report an incident for each channel whose state cannot be encoded, or else for the
        realm."""
        has_cause = False
        for channel_id in list(self._shard.state.channels):
            if (channel := self._shard.state.channels.get(channel_id)) is None:
                continue
            try:
                encode_block(0, [FactRecord(channel_id, channel.snapshot())], ())
            except Exception as channel_failure:  # noqa: BLE001  it is logged as an incident
                self._incidents.report(SNAPSHOTTING, channel_failure, channel_id)
                has_cause = True
            await asyncio.sleep(0)
        if not has_cause:
            self._incidents.report(SNAPSHOTTING, failure)

    async def snapshot_above(self, size: int) -> None:
        """Take a snapshot if the journal has more than ``size`` bytes that no snapshot covers."""
        if self._journal.info().size - self._covered_bytes > size and not self._keeps_journal:
            await self.snapshot()

    async def prepare_the_end(self) -> None:
        """Take snapshots for the next owner in advance, so that the end of this run is short.

        Two snapshots are taken, because the journal is trimmed only up to the older one, and the
        next owner reads the whole journal.
        """
        if self._names.epoch:
            await self._reporting(self._snapshot_unless_gaps)
            await self._reporting(self._snapshot_unless_gaps)
            self._is_prepared = True

    async def snapshot_at_the_end(self, size: int) -> None:
        """Take the last snapshot of this run. In a cluster it is left out if only a few blocks
        follow the newest snapshot; without a cluster, if the journal has at most ``size`` bytes
        that no snapshot covers."""
        await self._reporting(partial(self._snapshot_at_the_end, size))

    async def _snapshot_at_the_end(self, size: int) -> None:
        if self._names.epoch:
            if not self._is_prepared or self._shard.tail - self._snapshot > FEW_BLOCKS:
                await self._snapshot_unless_gaps()
        else:
            await self.snapshot_above(size)

    async def _snapshot_unless_gaps(self) -> None:
        """Take a snapshot, unless recovery has found gaps, which a snapshot would hide."""
        if not self._keeps_journal:
            await self.snapshot()

    def _is_long_ago(self) -> bool:
        """Whether the newest snapshot is too many blocks, or too long, ago."""
        blocks = self._shard.tail - self._snapshot
        passed_s = asyncio.get_running_loop().time() - self._snapshot_s
        return blocks > 0 and (
            blocks >= self._limits.snapshot_blocks_max
            or passed_s >= self._limits.snapshot_interval_s
        )

    def unsealed_s(self) -> float:
        """Return the seconds since a snapshot last included all blocks; 0 if the newest snapshot
        includes all blocks."""
        if self._shard.tail == self._snapshot:
            return 0.0
        return max(0.0, asyncio.get_running_loop().time() - self._covered_s)

    async def free_journal(self) -> None:
        """Take a snapshot and trim the journal, if enough of its bytes can be freed."""
        await self.snapshot_above(FREED_BYTES_MIN)

    def _waits(self, channel_id: ChannelId) -> bool:
        """Whether the channel has to be checked again, because another task uses its files or
        the task is paused for it."""
        store = self._shard.state.stores.get(channel_id)
        frozen = store is not None and any(file.is_frozen for file in store.files)
        is_paused = self._incidents.is_paused(SEALING, channel_id)
        return frozen or is_paused or channel_id in self._busy

    async def seal(self, channel_id: ChannelId, *, everything: bool = False) -> bool:
        """Seal the oldest unsealed events of a channel if they fill a segment; with ``everything``
        also if they do not. Return whether events were sealed."""
        if channel_id in self._busy or self._incidents.is_paused(SEALING, channel_id):
            return False
        self._busy[channel_id] = asyncio.Event()
        with releasing_after_writer(self._shard, lambda: self._busy.pop(channel_id).set()):
            with self._incidents.barrier(SEALING, channel_id):
                return await self._try_seal(channel_id, everything=everything)
            return False  # after an incident, the events are still in the journal

    async def _try_seal(self, channel_id: ChannelId, *, everything: bool) -> bool:
        """Seal events of a channel as :meth:`seal` says, and return whether events were sealed."""
        channel = self._shard.state.channels.get(channel_id)
        if channel is None or channel.state.type.home != "journal":
            return False
        store = self._shard.state.stores[channel_id]
        storage = channel.state.definition.storage
        rows_max, compression = storage.events_per_spindle, storage.compression
        if not self._blobs.grows:
            rows_max = rows_max or SPINDLE_ROWS
        due = store.unsealed(rows_max or 1 << 40, self._limits.segment_bytes_max)
        if due is None and everything:
            due = store.oldest_unsealed(self._limits.part_bytes_max)
        if due is None:
            return False
        end, tail_batches = due
        self.freed.bytes += sum([tail_batch.weight for tail_batch in tail_batches])
        began = store.sealed_end
        stored_ids = channel.state.stored.within(Span(max(tail_batches[0].first, began), end))
        stored_ids.remove_all(channel.state.volatile)
        folder = store.folder(channel.state.name, channel_id)
        if not stored_ids and len(channel.state.stored) == len(channel.state.passing):
            return False  # all events of the channel are passing: they are never sealed (SEM J4)
        fact: Sealed | Extended = Sealed(end)
        if stored_ids and rows_max:
            fact = await self._into_spindle(
                folder,
                store,
                end,
                tail_batches=tail_batches,
                stored_ids=stored_ids,
                compression=compression,
            )
        elif stored_ids:
            build = partial(NewRows.of, tail_batches, stored_ids, store.columns, compression)
            added = await self._offload(build)
            if await self._is_remade(channel_id, store, added):
                return True
            fact = await self._into_single_file(folder, store, end, added=added)
        recorded = await self._shard.act(
            lambda group: _record_sealed(group, channel_id, fact, began=began)
        )
        if isinstance(fact, Sealed) and fact.name and not recorded:
            await self._blobs.delete(fact.name)  # the channel was deleted during the sealing
        _log.debug(
            "channel.sealed", channel=channel.state.name, through=end, events=len(stored_ids)
        )
        return bool(recorded)

    async def _into_spindle(
        self,
        folder: str,
        store: ChannelStore,
        end: int,
        tail_batches: list[TailBatch],
        stored_ids: IdSet,
        compression: Compression,
    ) -> Sealed:
        """Write events to a new file that never grows, and return the fact about it."""
        columns = store.columns

        def build() -> tuple[SegmentImage, Publishers]:
            image = image_of(tail_batches, stored_ids, columns, compression=compression)
            return image, publishers_of(tail_batches, stored_ids)

        image, publishers = await self._offload(build)
        name = await put_segment(self._blobs, self._names, folder, image=image)
        index = msgspec.msgpack.encode(image.index)
        return Sealed(end, name, index, publishers=publishers)

    async def _into_single_file(
        self, folder: str, store: ChannelStore, end: int, added: NewRows
    ) -> Sealed | Extended:
        """Append events to the newest file, or write them to a new file if the channel has no file
        yet or the events need columns that the newest file lacks."""
        columns, publishers = added.columns, added.publishers
        file = store.files[-1] if store.files else None
        if file is not None and file.grows and added.fits(file) and not file.is_frozen:
            physical = ChannelSchema.from_bytes(file.index.schema)
            try:
                batches = await self._offload(lambda: fitted_in(added.batches, physical, columns))
                return await self._grow(file, end, batches, rows=added)
            except (Damaged, NameDoesNotExist) as error:
                file.is_frozen = True  # so that these and later events go to another file
                _log.error("segment.not_extended", name=file.name, reason=str(error))
        previous = file.index.schema if file is not None else b""
        growth = await self._offload(lambda: added.started(previous))
        name = await new_file(self._blobs, folder, growth)
        return Sealed(
            end, name, msgspec.msgpack.encode(growth.index), publishers=publishers, grows=True
        )

    async def _grow(
        self, file: SealedFile, end: int, batches: list[pa.RecordBatch], rows: NewRows
    ) -> Extended:
        """Append events to a growing file, and return the fact about it."""
        data = await self._blobs.get(file.name)
        growth: Growth = await self._offload(
            partial(_growth, data, file.index, batches, rows.compression)
        )
        await self._blobs.extend(file.name, growth.at, growth.chunks)
        added = msgspec.msgpack.encode(growth.added)
        size, checksum = growth.index.size, growth.index.checksum
        return Extended(
            end, file.name, size, checksum=checksum, batches=added, publishers=rows.publishers
        )

    async def _is_remade(self, channel_id: ChannelId, store: ChannelStore, added: NewRows) -> bool:
        """Rewrite the only file of a channel with the channel's new columns, if it is small. Return
        whether it was rewritten. A large file is kept and another one begun, so that a new column
        causes a limited amount of writing."""
        if len(store.files) != 1 or store.sealed_bytes > self._limits.remade_bytes_max:
            return False
        file = store.files[0]
        if not file.grows or file.is_frozen or added.fits(file):
            return False
        try:
            await self.maintainer.maintain(channel_id, added.shape)
        except (Damaged, IllegalState):
            return False
        return not store.files or added.fits(store.files[-1])

    async def drop_empty(self, numbers: Iterable[int]) -> None:
        """Delete the files of these channels that have no stored events any more."""
        state = self._shard.state
        for channel_id in map(ChannelId, numbers):
            if channel_id not in state.channels:  # deleted since it was changed
                continue
            if self._incidents.is_paused(DROPPING, channel_id):
                self._shard.changed.add(channel_id)
                continue
            with self._incidents.barrier(DROPPING, channel_id):
                await self._drop_empty_of(channel_id)

    async def _drop_empty_of(self, channel_id: ChannelId) -> None:
        """Delete the empty files of one channel, and keep damaged ones."""
        state = self._shard.state
        store = state.stores[channel_id]
        store.recount(state.channels[channel_id].state.stored)
        for file in store.empty_files():
            if reason := await self._damage(file):
                store.keep_damaged(file, reason)
                _log.error("segment.kept", name=file.name, reason=reason)
            else:
                await self._drop(channel_id, file)

    async def _damage(self, file: SealedFile) -> str:
        """Return a description of a file's damage; empty if the file is sound.

        A file can be empty because all its events were unreadable and therefore left the channel.
        The caller keeps such a damaged file: a repair may recover the events.
        """
        try:
            data = await self._blobs.get(file.name)
        except NameDoesNotExist:
            return ""
        reader = SegmentReader(data, file.index, name=file.name)
        if faults := await self._offload(reader.check):
            return f"{faults[0]}; it is kept"
        is_sound = file.grows or (
            await self._offload(lambda: xxh3_64_intdigest(data)) == file.index.checksum
        )
        return "" if is_sound else f"{file.name} fails its checksum; it is kept"

    async def _drop(self, channel_id: ChannelId, file: SealedFile) -> None:
        """Remove a file without events from the channel, and delete it."""
        # The fact is stored first. After a crash in between, no fact names the file, and the next
        # start deletes it as a stray.
        fact = SegmentDropped(file.name)
        await self._shard.act(lambda group: _record(group, channel_id, fact))
        self._files.close(file)
        await self._blobs.delete(file.name)
        _log.debug("segment.dropped", name=file.name)

    async def snapshot(self) -> None:
        """Write the whole state to a snapshot, and trim the journal."""
        async with self._snapshot_lock:
            await self._take_snapshot()

    async def _take_snapshot(self) -> None:
        """Seal channels with many unsealed events, write a snapshot, and trim the journal."""
        for channel_id in map(ChannelId, list(self._shard.state.stores)):
            if self._is_large(channel_id):
                await self._seal_if_large(channel_id)
        sequence, encode_image = await self._shard.act(self._image, first=True, sweeps=())
        merge_stores = {
            channel_id: [file.name for file in store.files]
            for channel_id, store in self._shard.state.stores.items()
            if isinstance(store, MergeStore) and store.files
        }
        self._snapshot_s = covered_s = asyncio.get_running_loop().time()
        if sequence == self._snapshot:
            self._covered_s = covered_s
            return  # no block was stored after the newest snapshot
        # The journal must be on disk before the snapshot. Otherwise a power cut could leave a
        # snapshot of blocks that the journal has lost, and new blocks would use their sequences
        # again.
        await self._shard.exclusively(self._journal.sync)
        image = await encode_image()
        self._image_bytes = sum([memoryview(chunk).nbytes for chunk in image])
        try:
            for name in self._names.snapshots(sequence):
                await self._blobs.put(name, image)
        except Conflict:
            # An interrupted attempt has left a snapshot of this block. The journal is not trimmed,
            # because that snapshot may not be completely on disk.
            _log.warning("snapshot.skipped", reason=f"block {sequence} has one already")
            return
        # On an engine two snapshots are kept, because another node may be reading the older one.
        needed = self._snapshot if self._names.epoch else sequence
        await self._shard.exclusively(lambda: self._trim_journal(sequence, needed))
        await self._journal.free()
        self._covered_s = covered_s
        await self._forget_before(needed)
        if self._shard.large_blocks is not None:
            await self._shard.large_blocks.forget(needed)
        for number, names in merge_stores.items():
            if isinstance(store := self._shard.state.stores.get(number), MergeStore):
                store.covered.update(names)
                self._shard.changed.add(number)
        self._incidents.close(SNAPSHOTTING, None)
        _log.info("realm.snapshot_taken", block=sequence)

    async def _seal_if_large(self, channel_id: ChannelId) -> None:
        """Seal a channel until it has few unsealed events, because the snapshot copies them."""
        while self._is_large(channel_id):
            if (busy := self._busy.get(channel_id)) is not None:
                await busy.wait()
            elif not await self.seal(channel_id, everything=True):
                return

    async def _trim_journal(self, sequence: int, through: int) -> None:
        await self._journal.trim(through)
        self._snapshot = sequence
        self._covered_bytes = self._journal.info().size

    def _is_large(self, channel_id: ChannelId) -> bool:
        return self._unsealed_bytes(channel_id) > self._limits.snapshot_tail_bytes_max

    def _unsealed_bytes(self, channel_id: int) -> int:
        store = self._shard.state.stores.get(channel_id)
        unsealed = store.all_unsealed() if store else ()
        return sum([len(tail_batch.body) for tail_batch in unsealed])

    def _image(self, group: Group) -> tuple[int, Callable[[], Awaitable[list[Buffer]]]]:
        """Return the sequence of the newest stored block, and a function that encodes the state
        after that block. This must be the first action of a group, because earlier decisions of the
        group would be in the state but not in the block.
        """
        assert not group.records, "a snapshot is the first action of its group"
        with uncollected():
            records, bodies = self._shard.state.snapshot()
        format = self._lease.format
        image = partial(encode_snapshot, self._offload, group.now_us, records, bodies, format)
        return self._shard.tail, image

    async def _forget_before(self, sequence: int) -> None:
        """Delete the snapshots older than the one of block ``sequence``."""
        for info in await self._blobs.list(SNAPSHOTS):
            if info.name < snapshot_stem(sequence) and self._names.may_remove(info.name):
                await self._blobs.delete(info.name)


def _record_sealed(
    group: Group, channel_id: ChannelId, fact: Sealed | Extended, began: int
) -> bool:
    """Record a sealing and return True. Return False if the channel was deleted, or its files have
    changed, since the sealing began at the id ``began``."""
    store = group.state.stores.get(channel_id)
    if store is None or store.sealed_end != began:
        return False
    if isinstance(fact, Extended):
        newest = store.files[-1] if store.files else None
        if newest is None or newest.name != fact.name or newest.is_frozen:
            return False
    return _record(group, channel_id, fact)


def _growth(
    data: memoryview,
    index: SegmentIndex,
    batches: list[pa.RecordBatch],
    compression: Compression,
) -> Growth:
    return extended(index, tail_or_rebuilt(data, index), batches, compression=compression)


def _record(group: Group, channel_id: ChannelId, fact: Sealed | Extended | SegmentDropped) -> bool:
    """Record a fact and return True; return False if the channel was deleted."""
    if channel_id not in group.state.channels:
        return False
    group.realm_fact(channel_id, fact)
    return True
