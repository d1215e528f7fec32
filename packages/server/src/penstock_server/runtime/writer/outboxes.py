"""The outboxes of a node's local channels: copies that joins have made for stores of the whole
cluster, kept by this realm until the cluster has stored them (SEM N9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.joins import CopiedPart
from penstock_core.channel.dead import READ_BYTES_MAX, moved_at_once
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.origin import carried
from penstock_core.columns.schema.ipc import stream_of
from penstock_core.ids.ids import IdSet
from penstock_core.loggers import logger
from penstock_core.messages.joins import Join
from penstock_core.messages.retention import Quarantine, RemoveRedriven
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_core.vocabulary.ports import Blobs
from penstock_server.runtime.delivery.delivery import Dispatch
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage, SealedFile
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.dead_events import by_publisher
from penstock_server.runtime.writer.group import Group
from penstock_server.runtime.writer.shard import Shard
from penstock_server.runtime.writer.with_files import with_open_files

_log = logger("penstock.local")


class Onward(Protocol):
    """The connection from a node's outboxes to the realm of the cluster."""

    async def check(self, join: Join, target: str) -> str:
        """Check that events can be copied to ``target`` with the rights of the join's owner, and
        return its canonical name. Raises the error that prevents copying."""
        ...

    def waits_for(self, outbox: int) -> str:
        """Return the reason why events of an outbox wait; empty while they are being sent."""
        ...


class OutboxState(Struct, frozen=True):
    """The present state of an outbox."""

    channel_id: int
    source: str
    target: str
    join: Join
    waiting: int
    waiting_bytes: int
    next_id: int
    oldest_us: int | None
    """Time at which the oldest waiting event was copied; None if the outbox is empty."""


class Outgoing(Struct, frozen=True):
    """The oldest events of an outbox, ready to be sent."""

    parts: tuple[CopiedPart, ...]
    bodies: tuple[bytes, ...]
    ids: IdSet


def outboxes(state: RealmState) -> Iterator[OutboxState]:
    """Yield all outboxes, in the order of their creation."""
    for channel_id, join in sorted(state.directory.joins.by_outbox.items()):
        outbox_state = state.channels[channel_id].state
        oldest = outbox_state.stored.lowest
        yield OutboxState(
            channel_id=channel_id,
            source=join.source_name,
            target=outbox_state.name,
            join=join,
            waiting=len(outbox_state.stored),
            waiting_bytes=state.waiting_bytes(channel_id),
            next_id=outbox_state.next_id,
            oldest_us=None if oldest is None else outbox_state.ages.oldest_us(oldest),
        )


class Outboxes:
    """Reads outboxes, removes events that the cluster has, and ends outboxes without a join."""

    def __init__(self, shard: Shard, dispatch: Dispatch, blobs: Blobs) -> None:
        self._shard = shard
        self._files = dispatch.files
        self._blobs = blobs
        self.onward: Onward | None = None
        """The connection to the cluster; None without one."""

    def on_change(self, listener: Callable[[], object]) -> None:
        """Register ``listener``, called when an outbox gets copies, or when a join has ended."""
        self._shard.state.copied_out = listener

    def now(self) -> list[OutboxState]:
        """Return the present state of all outboxes."""
        return list(outboxes(self._shard.state))

    async def next(self, channel_id: int) -> Outgoing | None:
        """Return the oldest events of an outbox, as many as fit into one request; None if the
        outbox is empty. Raises ``NameDoesNotExist``.

        These events are on disk, because the writer answers the action after its append: the
        cluster never gets an event that a power cut could remove from this node.
        """
        while True:
            outgoing: Outgoing | None = await with_open_files(
                self._shard,
                self._files,
                channel_id,
                action=lambda group: _read_next(group, channel_id),
            )
            # If the result has no ids, all events that were read were damaged. They are quarantined
            # now, so the next read returns later events.
            if outgoing is None or outgoing.ids:
                return outgoing

    async def sent(self, channel_id: int, ids: IdSet) -> None:
        """Remove events that the cluster has stored. Raises ``NameDoesNotExist``."""
        await self._shard.act(lambda group: group.do(channel_id, RemoveRedriven(ids.spans)))

    async def end(self, channel_id: int, *, given_up: bool = False) -> bool:
        """End an outbox whose join was deleted, if it is empty or its events are ``given_up``.
        Return whether it was ended."""

        def end(group: Group) -> list[SealedFile] | None:
            channel = group.state.channels.get(channel_id)
            facts = group.state.directory.decide_end(channel_id)
            if facts is None or channel is None or (channel.state.stored and not given_up):
                return None
            files = list(group.state.stores[channel_id].files)
            for fact in facts:
                group.realm_fact(0, fact)
            group.touched[channel_id] = None  # so that the shard ends the subscriptions to it
            return files

        files: list[SealedFile] | None = await self._shard.act(end)
        # The files are deleted after the facts are on disk: until then a restart needs them.
        for file in files or ():
            self._files.close(file)
            await self._blobs.delete(file.name)
        return files is not None


def _read_next(group: Group, channel_id: int) -> Outgoing | None:
    """Return the oldest events; None if the outbox is empty. Damaged events are quarantined and
    left out, so the result may have no ids."""
    if group.state.directory.joins.by_outbox.get(channel_id) is None:
        raise NameDoesNotExist(f"outbox {channel_id} has ended")
    state, store = group.channel(channel_id).state, group.state.stores[channel_id]
    ids = moved_at_once(state, state.stored)
    if not ids:
        return None
    damage = Damage()
    ids, rows = store.read_lowest(ids, READ_BYTES_MAX, damage)
    ids = ids.copy()
    if damage.ids:
        store.quarantined += damage.reasons
        group.do(channel_id, Quarantine(damage.ids.spans))
        _log.error("outbox.damaged", outbox=channel_id, reasons=damage.reasons)
        ids.remove_all(damage.ids)
    parts = tuple(_parts(rows))
    return Outgoing(tuple(part for part, _ in parts), tuple(body for _, body in parts), ids)


def _parts(rows: Sequence[OutgoingBatch]) -> Iterator[tuple[CopiedPart, bytes]]:
    """Yield the parts of a request to store copies, each with its Arrow stream."""
    for part in rows:
        for publisher, batch in by_publisher(part.batch, part.publishers):
            for run in _dense(batch):
                data = bytes(stream_of(carried(run)))
                through = int(ids_of(run)[-1])
                yield CopiedPart(len(data), through, publisher), data


def _dense(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield runs of rows with consecutive ids, because a request names only the last id of each
    part."""
    for first, end in IdSet.from_ids(ids_of(batch).tolist()).spans:
        start = int(ids_of(batch).searchsorted(first))
        yield batch.slice(start, end - first)
