"""Oracles for the engine and the machines of a cluster, in addition to those of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from msgspec import structs

from penstock_core.channel.recovery import at_once
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.snapshots import KeptStates, Restored
from penstock_core.vocabulary.ports import BlobInfo, Buffer
from penstock_core.vocabulary.stored_ids import ranges
from penstock_server.bootstrap import rules
from penstock_server.runtime.store.file_names import BLOCKS, SNAPSHOTS
from penstock_server.runtime.store.records import FactRecord
from penstock_server.runtime.upkeep.recovery import recover
from penstock_server.storage.memory import MemoryBlobs, MemoryPages
from penstock_testing.engine import (
    EngineBlobs,
    EngineServers,
    LogFrame,
    MemoryEngine,
    RetryingRequests,
    ShardLog,
)

if TYPE_CHECKING:
    from penstock_server.runtime.realm import RunningRealm
    from tests.sim.cluster import ClusterWorld
    from tests.sim.cluster_machines import ClusterMachine

LAST_EPOCH: Final = 1 << 40


class WatchedLog(ShardLog):
    """The log of the shard as an oracle: once an owner has recovered from it, no older epoch may
    write to it."""

    def __init__(self, world: ClusterWorld) -> None:
        super().__init__()
        self._world = world
        self.recovered_by = 0
        """The newest epoch that has read it."""
        self.all_frames: list[LogFrame] = []
        """All frames, including purged ones."""

    def append(self, expected: int, frame: LogFrame) -> None:
        super().append(expected, frame)
        self.all_frames.append(frame)
        if frame.epoch < self.recovered_by:
            late = f"epoch {frame.epoch} has written after {self.recovered_by} had recovered"
            self._world.promises.broken.append(late)


class WatchedBlobs(MemoryBlobs):
    """The files of the shard as an oracle. Keeps the bodies of all large blocks."""

    def __init__(self) -> None:
        super().__init__(grows=False)
        self.all_bodies = MemoryBlobs()
        """All bodies, including removed ones."""

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        await super().put(name, chunks)
        if name.startswith(BLOCKS):
            await self.all_bodies.put(name, chunks)


class WithoutSnapshots(EngineBlobs):
    """Files as if no snapshot had ever been taken and no body of a block removed."""

    def __init__(self, blobs: WatchedBlobs, requests: RetryingRequests) -> None:
        super().__init__(blobs, requests)
        self._all_bodies = blobs.all_bodies

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        return () if prefix == SNAPSHOTS else await super().list(prefix)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        if name.startswith(BLOCKS):
            return await self._all_bodies.get(name, offset, length)
        return await super().get(name, offset, length)


def watch_owner(machine: ClusterMachine, realm: RunningRealm, epoch: int) -> None:
    """Report events and answers that an owner sends without an append once a newer owner has
    recovered (R2)."""
    send, answer = realm.dispatch.send, realm.shard.answer

    def report(what: str) -> None:
        newest = machine.world.log.recovered_by
        if machine.thaw.is_set() and newest > epoch:
            late = f"{machine.name} has sent {what} in epoch {epoch}; {newest} had recovered"
            machine.world.promises.broken.append(late)

    def checked_send(*arguments: Any) -> Any:
        report("events")
        return send(*arguments)

    def checked_answer(group: Any, outcomes: Any) -> None:
        if outcomes and not group.records:
            report("answers")
        answer(group, outcomes)

    vars(realm.dispatch)["send"] = checked_send
    vars(realm.shard)["answer"] = checked_answer


async def check_log(world: ClusterWorld) -> None:
    """Compare the state from the newest snapshot and the blocks behind it with that of the whole
    log."""
    kept = MemoryEngine(world.servers)
    full_log = MemoryEngine(EngineServers())
    full_log.servers.log(0).frames = list(world.log.all_frames)
    kept_state = await _state_of(kept, EngineBlobs(world.files, kept.requests))
    full_state = await _state_of(full_log, WithoutSnapshots(world.files, full_log.requests))
    for is_there, should_be in zip_longest(kept_state, full_state):
        assert is_there == should_be, f"snapshot and tail differ from the log in {is_there}"


async def _state_of(engine: MemoryEngine, blobs: EngineBlobs) -> list[Any]:
    journal = await engine.journal(0, LAST_EPOCH)
    recovered = await recover(journal, blobs, MemoryPages(), rules=rules(), epoch=LAST_EPOCH)
    assert not recovered.damage, f"recovered with damage: {recovered.damage[:3]}"
    records, bodies = recovered.state.snapshot()
    return [*map(_as_stored, at_once(records)), *map(_content, bodies)]


def _content(body: Buffer) -> Any:
    """Return the comparable content of a body. Every snapshot writes the states of a merge channel
    again, with the names of a state's nulls in any order, so that the bytes differ."""
    try:
        table = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
    except (pa.ArrowException, OSError):
        return bytes(body)
    rows = table.to_pylist()
    for row in rows:
        if row.get("nulls"):
            row["nulls"].sort()
    return table.schema, rows


def _as_stored(record: FactRecord) -> FactRecord:
    """Remove from a record what facts do not determine: how far durables have offered their events
    (offered and never offered events are equally outstanding), and the times of removed events,
    which are dropped at some point."""
    fact = record.fact
    if isinstance(fact, KeptStates):
        return structs.replace(record, bodies=())  # `_content` compares them
    if not isinstance(fact, Restored):
        return record
    durables = []
    for durable in fact.durables:
        outstanding = IdSet((*ranges(durable.outstanding), Span(durable.head, fact.next_id)))
        durables.append(structs.replace(durable, head=0, outstanding=outstanding.spans))
    stored = ranges(fact.stored)
    first = stored[0].first if stored else fact.next_id
    before = [index for index, (event_id, _) in enumerate(fact.ages) if event_id <= first]
    ages = fact.ages[before[-1] if before else 0 :] if stored else ()
    if before and ages:
        ages = ((first, ages[0][1]), *ages[1:])
    kept = structs.replace(fact, durables=tuple(durables), ages=ages)
    return structs.replace(record, fact=kept)
