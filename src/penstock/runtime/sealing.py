"""Moving events from the journal into segment files, and cutting the journal behind them.

Sealing writes every byte a second time, in large batches and off the loop, so that plain Arrow
readers, Spark among them, can map events without asking the realm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import structlog
from msgspec import Struct
from xxhash import xxh3_64, xxh3_64_intdigest

from penstock.columns.schema import ChannelSchema
from penstock.columns.segments import SegmentImage, encode_segment, segment_name
from penstock.core.errors import Fenced, NameDoesNotExist, StorageFailed
from penstock.core.ids import IdSet, Span
from penstock.core.ports import Blobs, Buffer, Journal
from penstock.runtime.channel_store import (
    MERGE_BELOW,
    Piece,
    Publishers,
    SealedFile,
    stored_together,
)
from penstock.runtime.records import Sealed, SegmentDropped, encode_block
from penstock.runtime.recovery import SNAPSHOTS, snapshot_name
from penstock.runtime.shard import Shard
from penstock.runtime.work import Group

Offload = Callable[[Callable[[], Any]], Awaitable[Any]]

_log = structlog.get_logger("penstock.sealing")


class SealingLimits(Struct, frozen=True):
    segment_bytes_max: int = 64 << 20
    """A segment is closed above this, however few events it has."""
    journal_bytes_max: int = 256 << 20
    """A snapshot is taken, and the journal cut, above this."""
    snapshot_tail_bytes_max: int = 1 << 20
    """A channel with more than this unsealed is sealed before a snapshot, not copied into it."""
    interval_s: float = 0.25
    """How often to look for work."""
    retry_s: float = 5.0
    """Pause after the disk refused."""


class Sealer:
    def __init__(
        self,
        shard: Shard,
        journal: Journal,
        blobs: Blobs,
        offload: Offload,
        limits: SealingLimits,
        *,
        snapshot: int,
    ) -> None:
        self._shard = shard
        self._journal = journal
        self._blobs = blobs
        self._offload = offload
        self._limits = limits
        self._snapshot = snapshot
        """The block the newest snapshot stands for; 0: there is none."""
        self._covered_bytes = 0
        self._broken: set[int] = set()
        """Channels whose events could not be sealed: they stay in the journal."""

    async def run(self) -> None:
        """Look for work until cancelled. A full disk is reported and tried again later.

        Should sealing itself be broken, it ends and says so; the realm goes on from the journal.
        """
        try:
            while True:
                await asyncio.sleep(self._limits.interval_s)
                try:
                    await self._look()
                except StorageFailed as failure:
                    _log.warning("sealing.postponed", reason=str(failure))
                    await asyncio.sleep(self._limits.retry_s)
        except Exception:  # noqa: BLE001  the root of a task: said once, with its traceback
            _log.exception("sealing.ended")

    async def _look(self) -> None:
        await self.seal_all()
        await self._drop_empty()
        if self.grown_bytes > self._limits.journal_bytes_max:
            await self.snapshot()

    @property
    def grown_bytes(self) -> int:
        """Bytes in the journal that the newest snapshot does not cover."""
        return self._journal.info().size - self._covered_bytes

    async def seal_all(self) -> None:
        """Seal every channel that has a full segment's worth of events."""
        for number in list(self._shard.state.stores):
            while await self._seal(number):
                pass

    async def _seal(self, number: int, *, everything: bool = False) -> bool:
        """Seal the oldest unsealed events of a channel if they fill a segment."""
        if number in self._broken:
            return False
        try:
            return await self._try_seal(number, everything=everything)
        except pa.ArrowException as error:
            # Such a channel must not take the realm with it; its events are safe where they are.
            self._broken.add(number)
            _log.error("channel.not_sealed", channel=number, reason=str(error))
            return False

    async def _try_seal(self, number: int, *, everything: bool) -> bool:
        channel = self._shard.state.channels.get(number)
        if channel is None or not channel.state.type.survives_restart:
            return False
        store = self._shard.state.stores[number]
        rows_max = channel.state.definition.storage.events_per_spindle or 1 << 40
        due = store.unsealed(rows_max, self._limits.segment_bytes_max)
        if due is None and everything and (rest := store.all_unsealed()):
            due = rest[-1].end, rest
        if due is None:
            return False
        end, pieces = due
        span = Span(max(pieces[0].first, store.sealed_through), end)
        wanted = channel.state.stored.within(span)
        wanted.remove_all(channel.state.volatile)
        fact = Sealed(end)
        if wanted:
            columns = store.columns
            image: SegmentImage = await self._offload(lambda: _image(pieces, wanted, columns))
            name = segment_name(
                f"{channel.state.name}.{number}", image.index.first_id, image.index.end_id
            )
            name = await self._put(name, image)
            index = msgspec.msgpack.encode(image.index)
            fact = Sealed(end, name, index, _publishers(pieces, wanted))
        recorded = await self._shard.act(lambda group: _record(group, number, fact))
        if fact.name and not recorded:  # the channel was deleted meanwhile
            await self._blobs.delete(fact.name)
        _log.debug("channel.sealed", channel=channel.state.name, through=end, events=len(wanted))
        return True

    async def _put(self, name: str, image: SegmentImage) -> str:
        """Store a segment; where a file of an unfinished sealing is in the way, beside it."""
        try:
            await self._blobs.put(name, image.chunks)
        except Fenced:
            name = f"{name.removesuffix('.arrow')}.{image.index.checksum:016x}.arrow"
            await self._blobs.put(name, image.chunks)
        return name

    async def _drop_empty(self) -> None:
        for number, store in list(self._shard.state.stores.items()):
            for file in store.empty_files():
                if reason := await self._damage(file):
                    store.keep_damaged(file, reason)
                    _log.error("segment.kept", name=file.name, reason=reason)
                else:
                    await self._drop(number, file)

    async def _damage(self, file: SealedFile) -> str:
        """What is wrong with a file; its events may have left because they were unreadable."""
        try:
            data = await self._blobs.get(file.name)
        except NameDoesNotExist:
            return ""
        if await self._offload(lambda: xxh3_64_intdigest(data)) == file.index.checksum:
            return ""
        return f"{file.name} fails its checksum; it is kept"

    async def _drop(self, number: int, file: SealedFile) -> None:
        fact = SegmentDropped(file.name)
        await self._shard.act(lambda group: _record(group, number, fact))
        await self._blobs.delete(file.name)
        _log.debug("segment.dropped", name=file.name)

    async def snapshot(self) -> None:
        """Write the whole state down and cut the journal behind it."""
        for number in list(self._shard.state.stores):
            while self._is_large(number) and await self._seal(number, everything=True):
                pass
        sequence, chunks = await self._shard.act(self._image, first=True)
        if sequence == self._snapshot:
            return  # nothing has happened since
        # What it stands for has to be on disk first: block numbers after it must never come again.
        await self._shard.exclusively(self._journal.sync)
        image = await self._offload(lambda: _summed(chunks))
        try:
            await self._blobs.put(snapshot_name(sequence), image)
        except Fenced:
            # An attempt the disk broke off has left its own image of this very block. Which one
            # is on disk for good nobody can tell: leave both it and the journal as they are.
            _log.warning("snapshot.skipped", reason=f"block {sequence} has one already")
            return
        await self._shard.exclusively(lambda: self._journal.trim(sequence))
        self._snapshot = sequence
        self._covered_bytes = self._journal.info().size
        await self._forget_before(sequence)
        _log.info("realm.snapshot_taken", block=sequence)

    def _is_large(self, number: int) -> bool:
        store = self._shard.state.stores.get(number)
        unsealed = store.all_unsealed() if store else []
        return sum(len(piece.body) for piece in unsealed) > self._limits.snapshot_tail_bytes_max

    def _image(self, group: Group) -> tuple[int, list[Buffer]]:
        """The state as the newest stored block left it.

        Asked for at the head of a group: what a group decides before is applied already, but
        lies in the next block.
        """
        assert not group.records, "a snapshot is the first thing in its group"
        records, bodies = self._shard.state.snapshot()
        return self._shard.tail, encode_block(group.now_us, records, bodies)

    async def _forget_before(self, sequence: int) -> None:
        for info in await self._blobs.list(SNAPSHOTS):
            if info.name < snapshot_name(sequence):
                await self._blobs.delete(info.name)


def _record(group: Group, number: int, fact: Sealed | SegmentDropped) -> bool:
    if number not in group.state.channels:
        return False
    group.realm_fact(number, fact)
    return True


def _publishers(pieces: list[Piece], wanted: IdSet) -> Publishers:
    """Who published which of the events that are sealed (SEM E3)."""
    found: dict[str, IdSet] = {}
    for piece in pieces:
        if piece.publisher:
            own = wanted.within(Span(piece.first, piece.end))
            found.setdefault(piece.publisher, IdSet()).add_all(own)
    return tuple((publisher, ids.spans) for publisher, ids in found.items() if ids)


def _image(pieces: list[Piece], wanted: IdSet, columns: ChannelSchema) -> SegmentImage:
    return encode_segment([columns.conform(batch) for batch in _stored(pieces, wanted)])


def _stored(pieces: list[Piece], wanted: IdSet) -> Iterator[pa.RecordBatch]:
    """The rows of ``wanted``; neighbouring small pieces of one schema come as one batch."""
    run: list[Piece] = []
    for piece in pieces:
        whole = Span(piece.first, piece.end)
        own = wanted.within(whole).spans
        joins = piece.is_whole and own == (whole,) and whole.size < MERGE_BELOW
        if run and not (joins and piece.number == run[0].number):
            yield stored_together(run)
            run = []
        if joins:
            run.append(piece)
        elif own:
            yield piece.stored(own)
    if run:
        yield stored_together(run)


def _summed(chunks: list[Buffer]) -> list[Buffer]:
    checksum = xxh3_64()
    for chunk in chunks:
        checksum.update(chunk)
    return [checksum.intdigest().to_bytes(8, "little"), *chunks]
