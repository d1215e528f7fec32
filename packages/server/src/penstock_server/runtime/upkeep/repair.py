"""Sets damaged data aside, so that the remaining data is sound again (SEM S1).

Damaged data is copied to quarantine before it is deleted. Unreadable events leave their channel as
quarantined, so that counters and durables are correct; files are rewritten without their damaged
batches; then a snapshot replaces a journal with gaps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from penstock_core.columns.files.segments import SegmentReader
from penstock_core.ids.ids import IdSet
from penstock_core.messages.definitions import ChannelCreated
from penstock_core.messages.retention import Quarantine
from penstock_core.messages.segments import Rewritten
from penstock_core.messages.snapshots import RealmFacts
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.errors import Damaged, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, Block, Buffer, Journal
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.records import decode_block
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.upkeep.compaction import FileCopy
from penstock_server.runtime.upkeep.recovery import READ_BLOCKS, RecoveredRealm
from penstock_server.runtime.upkeep.verification import (
    BadFile,
    Finding,
    StoreReport,
    check_files,
    damaged_snapshots,
    lost_events,
)
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard

COPY_BATCHES = 16
"""Number of batches that are copied at once."""

Keep = Callable[[str, Buffer], str]
"""Copies bytes to quarantine under a name, and returns the path of the copy."""


class Repaired(Struct):
    """The findings of a repair, and the paths of the damaged bytes in quarantine."""

    findings: list[Finding] = []
    kept: list[str] = []
    events: int = 0
    """Number of unreadable events that were quarantined, by the recovery or the repair."""

    @property
    def is_sound(self) -> bool:
        return not self.findings


class OpenedRealm(Protocol):
    """The parts of a realm that a repair needs. The realm was recovered and has no clients."""

    @property
    def recovered(self) -> RecoveredRealm: ...
    @property
    def blobs(self) -> Blobs: ...
    @property
    def directory(self) -> Directory: ...
    @property
    def shard(self) -> Shard: ...
    @property
    def dispatch(self) -> Dispatch: ...
    async def snapshot(self) -> object:
        """Write a snapshot, and trim the blocks that it includes."""


async def repair(realm: OpenedRealm, journal: Journal, keep: Keep, repaired: Repaired) -> None:
    """Repair a realm that was opened and does not serve clients."""
    failure: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(realm.shard.run())
            await _Repair(realm, journal, keep, repaired=repaired).run()
            realm.shard.stop()
    except BaseExceptionGroup as failures:  # one task has failed, and the other was cancelled
        failure = failures.exceptions[0]
    # Raised outside the handler, so that the group is not its context.
    if failure is not None:
        raise failure


class _Repair:
    def __init__(
        self, realm: OpenedRealm, journal: Journal, keep: Keep, repaired: Repaired
    ) -> None:
        self._realm = realm
        self._journal = journal
        self._keep_bytes = keep
        self._repaired = repaired

    async def run(self) -> None:
        recovered = self._realm.recovered
        self._repaired.events = recovered.quarantined
        snapshots = await damaged_snapshots(self._realm.blobs)
        for finding in snapshots:
            data = await self._realm.blobs.get(finding.file)
            self._keep(f"snapshot-{finding.file.rpartition('/')[2]}", data)
        for bad in await check_files(recovered, self._realm.blobs, StoreReport()):
            await self._rewrite(bad)
        for channel_id, finding in lost_events(recovered):
            await self._quarantine(ChannelId(channel_id), IdSet(finding.events))
        # Last, because the snapshot must include the quarantines and the rewritten files.
        if recovered.damage or snapshots:
            await self._keep_orphaned_blocks()
            await self._keep_strays()
            await self._replace_journal(snapshots)

    def _keep(self, name: str, data: Buffer) -> None:
        """Copy ``data`` to quarantine, unless it is empty."""
        if len(data):
            self._repaired.kept.append(self._keep_bytes(name, data))

    async def _rewrite(self, bad: BadFile) -> None:
        """Replace a damaged file by a copy of its sound batches."""
        unreadable_ids = IdSet()
        for finding in bad.findings:
            unreadable_ids.add_all(IdSet(finding.events))
        if unreadable_ids:
            await self._quarantine(bad.number, unreadable_ids)
        try:
            data = await self._realm.blobs.get(bad.file.name)
        except NameDoesNotExist:
            await self._replace(bad, None)
            return
        stem = bad.file.name.removeprefix("segments/").replace("/", "-")
        for finding in bad.findings:
            first, end = finding.first_byte or 0, finding.end_byte or 0
            self._keep(f"{stem}.{first}-{end}", data[first:end])
        reader = SegmentReader(data, bad.file.index, name=bad.file.name)
        numbers = range(len(bad.file.index.batches))
        sound = [number for number in numbers if number not in bad.batches]
        state = self._realm.directory.channels[bad.number].state
        name, compression = state.name, state.definition.storage.compression
        folder = self._realm.shard.state.stores[bad.number].folder(name, bad.number)
        copy = FileCopy(self._realm.blobs, asyncio.to_thread, folder, compression=compression)
        for start in range(0, len(sound), COPY_BATCHES):
            await copy.add([reader.batch(number) for number in sound[start : start + COPY_BATCHES]])
        # The file is deleted last, when the damaged bytes are in quarantine and no fact names it.
        await self._replace(bad, copy)
        await self._realm.blobs.delete(bad.file.name)

    async def _replace(self, bad: BadFile, copy: FileCopy | None) -> None:
        """Record that a damaged file is replaced by its copy, or is dropped if ``copy`` is None
        because no batch is sound."""
        fact = Rewritten((bad.file.name,))
        if copy is not None and copy.index is not None:
            index = msgspec.msgpack.encode(copy.index)
            fact = Rewritten((bad.file.name,), copy.name, index, publishers=bad.file.publishers)
        await self._realm.shard.act(lambda group: group.realm_fact(bad.number, fact))
        self._realm.dispatch.files.close(bad.file)

    async def _quarantine(self, channel_id: ChannelId, ids: IdSet) -> None:
        self._repaired.events += len(ids)
        command = Quarantine(ids.spans)
        await self._realm.shard.act(lambda group: group.do(channel_id, command))

    async def _keep_orphaned_blocks(self) -> None:
        """Copy blocks with facts about channels whose creation is lost."""
        info, state = self._journal.info(), self._realm.shard.state
        channel_ids = set(state.channels)
        next_sequence = info.floor + 1
        while next_sequence <= info.tail:
            for block in await self._journal.read(next_sequence, READ_BLOCKS):
                next_sequence = block.seq + (1 if isinstance(block, Block) else block.count)
                if isinstance(block, Block) and not _applies(block, channel_ids, state):
                    self._keep(f"journal-{block.seq:020d}.skipped", bytes(block.data))

    async def _keep_strays(self) -> None:
        """Move files that no fact names to quarantine, because they may belong to channels whose
        facts are lost."""
        stores = self._realm.shard.state.stores.values()
        recorded = {file.name for store in stores for file in store.files}
        for info in await self._realm.blobs.list("segments/"):
            if info.name not in recorded:
                reason = "the journal has no record of this file"
                self._repaired.findings.append(Finding(info.name, reason, 0, end_byte=info.size))
                stem = info.name.removeprefix("segments/").replace("/", "-")
                self._keep(stem, await self._realm.blobs.get(info.name))
                await self._realm.blobs.delete(info.name)

    async def _replace_journal(self, snapshots: list[Finding]) -> None:
        """Write a snapshot of the recovered state, and trim all blocks before it."""

        def note(group: Group) -> None:
            group.realm_fact(0, RealmFacts(self._realm.directory.next_channel_id))

        await self._realm.shard.act(note)  # a new block, because an unchanged state is not written
        await self._realm.snapshot()
        for finding in snapshots:
            await self._realm.blobs.delete(finding.file)


def _applies(block: Block, channel_ids: set[int], state: RealmState) -> bool:
    """Whether all facts of a block are about known channels and schemas. Adds the channels that the
    block creates to ``channel_ids``."""
    try:
        header, _ = decode_block(block.data)
    except Damaged:
        return False
    for record in header.records:
        if isinstance(record.fact, ChannelCreated):
            channel_ids.add(record.fact.number)
        if record.channel and record.channel not in channel_ids:
            return False
        if any(ref.schema and not state.schemas.has(ref.schema) for ref in record.bodies):
            return False
    return True
