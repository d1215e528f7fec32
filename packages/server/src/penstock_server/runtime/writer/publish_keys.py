"""Publish keys in a group: which events newer values replace, and the memory that values take.

The values of a publish are looked up before it is decided, because the decision names the events
that they replace. A lookup numbers new values, so the values of refused events are dropped again:
otherwise clients could fill the memory of the realm with publishes that are all refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from msgspec.structs import replace

from penstock_core.channel.state import ChannelState
from penstock_core.columns.keys.key_values import SLOT_BYTES
from penstock_core.columns.keys.keys import KeysMark, SingleEvent
from penstock_core.ids.id_lists import listed
from penstock_core.vocabulary.digest import Digest
from penstock_server.runtime.store.bodies import Body, as_keyed
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.placement import MemoryLimits

Keyed = list[pa.RecordBatch] | SingleEvent
"""The events of one publish whose keys the index must record: as batches, or as a single event."""
NO_KEYS: Final[Keyed] = []
"""The updates by a publish without publish keys."""
NO_LIMIT: Final = 1 << 62
"""Free bytes of a channel without a limit."""


class PublishKeys:
    """The publish keys of the channels that a group publishes to."""

    def __init__(self, state: RealmState, limits: MemoryLimits) -> None:
        self._state = state
        self._limits = limits
        self._marks: dict[int, KeysMark] = {}
        """Marks of the key indexes before the current work, by channel id. They allow the index to
        drop the values that the work adds."""

    def begin_work(self) -> None:
        """Keep the values of the previous work, because its events were stored."""
        self._marks.clear()

    def drop_refused(self) -> None:
        """Drop the new values of the current work, because its events were refused."""
        for channel_id, mark in self._marks.items():
            store = self._state.stores.get(channel_id)
            if store is not None and store.keys is not None:
                store.keys.drop_since(mark)
        self._marks.clear()

    def memory_left(self, channel_id: int, state: ChannelState, digest: Digest) -> int:
        """Return the bytes free for publish keys and states of a channel (SEM C6).

        Must be called before the values of a publish are looked up. If little memory is free, the
        call drops values without an event and renumbers the others, so slot numbers looked up
        before it become invalid.
        """
        store = self._state.stores[channel_id]
        if store.keys is None:
            return NO_LIMIT
        free_bytes = self._limits.free_bytes_of_index(store, self._state.meter)
        if free_bytes < digest.size + SLOT_BYTES * digest.count:
            store.reclaim_index(state.stored)
            # The mark has the slot numbers from before the values were renumbered.
            self._marks.pop(channel_id, None)
            free_bytes = self._limits.free_bytes_of_index(store, self._state.meter)
        self._marks.setdefault(channel_id, store.keys.mark())
        return free_bytes

    def replacing(
        self, channel_id: int, state: ChannelState, digest: Digest, *, bodies: Sequence[Body]
    ) -> tuple[Digest, Keyed]:
        """Return the digest with the events that newer values replace (SEM K1), and the updates
        for :meth:`stored`."""
        keys = self._state.stores[channel_id].keys
        if keys is None or state.type.relays:
            return digest, []
        # A fast path, because many publishes have one event: its key is read without parsing the
        # batch.
        is_single = len(bodies) == 1 and bodies[0].rows == 1 and not digest.transient
        if not (is_single and (update := keys.superseded_by_one(bodies[0].value_of, state.stored))):
            keyed: Keyed = as_keyed(bodies, digest)
            superseded = keys.superseded(keyed, state.next_id, state.stored)
        else:
            superseded, keyed = update
        return (replace(digest, superseded=listed(superseded)) if superseded else digest), keyed

    def stored(self, channel_id: int, keyed: Keyed, first: int) -> None:
        """Add the events of ``keyed``, which are stored under ids from ``first`` on, to the index
        of a channel."""
        store = self._state.stores[channel_id]
        if store.keys is None or not keyed:
            return
        if isinstance(keyed, SingleEvent):
            store.keys.append_one(keyed, first)
        else:
            store.keys.append(keyed, first)
        self._marks.pop(channel_id, None)
        store.count_index()
