"""The stored events of a channel, captured in one turn of the writer without copying them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock_core.columns.files.segments import SegmentIndex
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.store.captured_events import EventsOfBatch, captured_events
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.writer.group import Group


class SealedAtCapture(Struct, frozen=True):
    """A sealed file as it was in the turn of the capture."""

    name: str
    """Name of the sealed file."""
    index: SegmentIndex
    publishers: Publishers
    may_grow: bool
    """Whether batches may be appended to the file."""

    def span_of(self, batches: range) -> Span:
        """Return the range of ids of the batches with these indexes."""
        of_file = self.index.batches
        return Span(of_file[batches.start].first_id, of_file[batches.stop - 1].end_id)


class CapturedChannel(Struct, frozen=True):
    """The stored events of a channel or queue (SEM B1)."""

    number: ChannelId
    name: str
    """Name of the channel or queue."""
    at_us: int
    """Time of the capture, in microseconds since 1970."""
    next_id: int
    """Id that the next published event will get."""
    columns: ChannelSchema
    compression: Compression
    is_merged: bool
    """Whether it is a merge channel, whose events are changes of states."""
    files: Sequence[SealedAtCapture]
    """All sealed files, also those whose events have all been removed."""
    in_files: IdSet
    """Ids of the stored events in :attr:`files`. The capture must not be changed."""
    in_memory: Sequence[EventsOfBatch]
    """Stored events that are not in a sealed file."""

    @property
    def version(self) -> object:
        """A value that differs between two captures if an event was stored or removed between
        them."""
        names = [file.name for file in self.files]
        rows = [file.index.rows for file in self.files]
        memory = [
            (batch.tail_batch.first, batch.tail_batch.end, len(batch.ids))
            for batch in self.in_memory
        ]
        return names, rows, self.in_files, memory, self.next_id

    def stored_count(self, span: Span) -> int:
        """Return the number of stored events whose ids are in ``span``."""
        in_memory = sum(len(batch.ids.within(span)) for batch in self.in_memory)
        return len(self.in_files.within(span)) + in_memory


def captured_channel(
    group: Group, number: ChannelId, events_max: int | None = None
) -> CapturedChannel:
    """Return the stored events of a channel or queue in this turn of the writer.

    Raises ``LimitReached`` if more than ``events_max`` events are not in a sealed file; None means
    no limit. Raises ``NameDoesNotExist`` if the channel does not exist.
    """
    state = group.channel(number).state
    # Events whose time has passed must not be in the table, although no timer has removed them yet.
    group.sweep(number)
    store = group.state.stores[number]
    events = captured_events(state, store)
    in_memory = [*events.unsealed, *events.transient]
    count = sum(len(batch.ids) for batch in in_memory)
    if events_max is not None and count > events_max:
        raise LimitReached(
            f"{state.name} has {count} events in memory; a table may have {events_max} of them "
            f"(tables.memory_events_max): raise the limit, read the channel with a client, or use "
            f"a channel type that stores events in files"
        )
    # Publishers wait during this turn, so it does as little as possible for each file.
    newest = store.files[-1] if store.files else None
    files = [
        SealedAtCapture(
            file.name, file.index, file.publishers, may_grow=file.grows and file is newest
        )
        for file in store.files
    ]
    definition = state.definition
    return CapturedChannel(
        number,
        state.name,
        at_us=group.now_us,
        next_id=state.next_id,
        columns=store.columns,
        compression=definition.storage.compression,
        is_merged=definition.engine == "merge",
        files=files,
        in_files=events.in_files,
        in_memory=in_memory,
    )
