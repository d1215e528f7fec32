"""A channel as its table shows it: all stored events in one turn of the writer, by reference."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from penstock_core.columns.files.segments import SegmentIndex
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.errors import LimitReached
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.store.captured_events import EventsOfBatch, captured_events
from penstock_server.runtime.store.sealed_file import Publishers
from penstock_server.runtime.writer.group import Group


class SealedEvents(Struct, frozen=True):
    """A sealed file, with the events that are stored in it."""

    name: str
    index: SegmentIndex
    publishers: Publishers
    stored: IdSet
    """The stored events in it; not empty."""


class CapturedChannel(Struct, frozen=True):
    """The stored events of a channel or queue (SEM B1)."""

    number: ChannelId
    name: str
    at_us: int
    next_id: int
    columns: ChannelSchema
    compression: Compression
    files: Sequence[SealedEvents]
    in_memory: Sequence[EventsOfBatch]
    """Events that are in no file."""

    @property
    def version(self) -> object:
        """A value that changes whenever an event is stored or removed."""
        files = tuple((file.name, file.index.rows, len(file.stored)) for file in self.files)
        memory = tuple(
            (batch.tail_batch.first, batch.tail_batch.end, len(batch.ids))
            for batch in self.in_memory
        )
        return files, memory, self.next_id


def captured_channel(group: Group, number: ChannelId, events_max: int) -> CapturedChannel:
    """Return a channel as it is in this turn.

    Raises ``LimitReached`` if more than ``events_max`` events are in no file, and
    ``NameDoesNotExist``.
    """
    state = group.channel(number).state
    group.sweep(number)
    store = group.state.stores[number]
    events = captured_events(state, store)
    in_memory = [*events.unsealed, *events.transient]
    if (count := sum(len(batch.ids) for batch in in_memory)) > events_max:
        raise LimitReached(
            f"{state.name} has {count} events that are in no file, and a table may have "
            f"{events_max} of them (tables.memory_events_max): raise the limit, read the channel "
            f"with a client, or use a channel type that stores events in files"
        )
    files = [
        SealedEvents(file.name, file.index, file.publishers, stored=stored)
        for file in store.files
        if (stored := events.in_files.within(file.span))
    ]
    definition = state.definition
    return CapturedChannel(
        number,
        state.name,
        at_us=group.now_us,
        next_id=state.next_id,
        columns=store.columns,
        compression=definition.storage.compression,
        files=files,
        in_memory=in_memory,
    )
