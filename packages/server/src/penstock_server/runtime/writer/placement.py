"""Decides where the bytes of events are kept: heap, off-heap memory or pages, within the limit of
each."""

from __future__ import annotations

import pyarrow as pa
from msgspec import Struct

from penstock_core.channel.channel_type import Home
from penstock_core.columns.schema.property_names import NAMES_MAX
from penstock_core.ids.ids import IdSet, Span
from penstock_core.messages.publishing import Appended
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import Damaged, StorageFailed
from penstock_core.vocabulary.ports import Buffer, Pages, PageSlot
from penstock_core.vocabulary.shares import share_left
from penstock_core.vocabulary.temporary import STORE_BYTES_MAX, USER_PERCENT_MAX
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.tail_batch import Meter, TailBatch

_STAMPS_BYTES = 128
"""Upper bound of the bytes that a channel adds to an event: a priority, and a dictionary of
publisher, host, time and id."""
_HEADER_BYTES = 4_096
"""Upper bound of the bytes that the columns of the priority and the dictionary add to the header of
a body."""


_pools: list[pa.MemoryPool] = []
"""All memory pools that this process has created. They are never freed, because a buffer does not
keep its pool alive and may outlive its realm."""


class MemoryLimits(Struct, frozen=True):
    """Limits on each kind of memory over all channels (SEM C6), and on property names."""

    heap_bytes_max: int = 1 << 30
    off_heap_bytes_max: int = 1 << 30
    paged_bytes_max: int = 4 << 30
    index_bytes_max: int = 4 << 30
    """Largest number of bytes of publish keys and of states of merge channels; 0 means no limit."""
    property_names_max: int = NAMES_MAX
    """Largest number of property names of one channel; 0 means no limit. Each name becomes a
    column."""

    def free_bytes(self, home: Home, digest: Digest, meter: Meter) -> int:
        """Return the bytes free for events of a channel whose events live in ``home``."""
        if home == "off_heap":
            return self.off_heap_bytes_max - meter.off_heap_bytes
        if home == "pages":
            return self.paged_bytes_max - meter.paged_bytes
        return self.heap_bytes_max - meter.memory_bytes

    def free_bytes_of_index(self, store: ChannelStore | None, meter: Meter) -> int:
        """Return the bytes free for publish keys and states of a channel; ``store`` is None for a
        new channel. A channel may use half of the bytes that other channels leave free, so that
        publishing to one channel cannot stop publishing to the others."""
        if not self.index_bytes_max:
            return 1 << 62
        used = 0 if store is None else store.index_bytes
        return share_left(self.index_bytes_max, meter.index_bytes, used)

    def free_bytes_of_temporary(self, store: ChannelStore, digest: Digest) -> int:
        """Return the bytes free for events of a temporary destination (SEM R4). A single event may
        exceed the limit of an empty store, so that every event can be sent."""
        used = store.meter.memory_bytes
        is_single = not used and digest.count == 1
        store_bytes_left = digest.size if is_single else STORE_BYTES_MAX - used
        if store.share is None:
            return store_bytes_left
        user_bytes_max = self.heap_bytes_max * USER_PERCENT_MAX // 100
        return min(store_bytes_left, user_bytes_max - store.share.memory_bytes)

    def are_half_free(self, meter: Meter) -> bool:
        """Whether half of the memory is free, so that passing events may stay a little longer."""
        is_heap_half_free = meter.memory_bytes * 2 <= self.heap_bytes_max
        return is_heap_half_free and meter.off_heap_bytes * 2 <= self.off_heap_bytes_max


class Placing:
    """Places the bodies of a group in pages and in off-heap memory."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._pool = pa.proxy_memory_pool(pa.default_memory_pool())
        _pools.append(self._pool)
        self.placed: list[tuple[int, TailBatch, PageSlot]] = []
        """Bodies that :meth:`flush` has to write."""

    @property
    def off_heap_bytes(self) -> int:
        """Bytes allocated outside the Python heap for off-heap channels."""
        allocated: int = self._pool.bytes_allocated()
        return allocated

    def outside(self, body: Buffer) -> memoryview:
        """Copy ``body`` to Arrow memory outside the Python heap (SEM C1f)."""
        copy = pa.allocate_buffer(len(body), memory_pool=self._pool)
        view = memoryview(copy).cast("B")
        view[:] = memoryview(body).cast("B")
        return view

    def place(self, channel_id: int, tail_batch: TailBatch, body: Buffer) -> PageSlot:
        """Choose a slot for ``body`` in the pages of a channel. :meth:`flush` writes it."""
        place = self.pages.allocate(channel_id, body)
        self.placed.append((channel_id, tail_batch, place))
        return place

    async def flush(self, *, sync: bool) -> None:
        """Write the placed bodies to their pages, and replace the copies in memory by views of the
        pages. Raises ``StorageFailed``, also if a body cannot be read back."""
        if not self.placed:
            return
        placed, self.placed = self.placed, []
        await self.pages.flush(sync=sync)
        try:
            for channel_id, tail_batch, place in placed:
                tail_batch.moved_to(place, self.pages.view(channel_id, place))
        except Damaged as error:
            raise StorageFailed(
                f"a page that was just written cannot be read back: {error}; check the disk"
            ) from error


def room_for(body: Body) -> int:
    """Return the bytes to reserve for a body, with the columns that the channel may add (SEM S)."""
    return len(body.buffer) + _STAMPS_BYTES * body.rows + _HEADER_BYTES


class PublishHome:
    """Chooses the home of each batch of a publish, for publishes whose batches have different
    homes."""

    def __init__(self, placing: Placing, home: Home, fact: Appended) -> None:
        self._placing = placing
        self._home = home
        fleeting = (*fact.volatile, *fact.passing)
        self._fleeting = IdSet(fleeting) if fleeting else None
        self._dropped = IdSet(fact.dropped) if fact.dropped else None

    def keeps(self, tail_batch: TailBatch) -> bool:
        """Set the home of a batch. Return False if the channel drops all events of the batch at
        once, because no subscriber has interest in them."""
        span = Span(tail_batch.first, tail_batch.end)
        if self._dropped is not None and self._dropped.count(span) == span.size:
            return False
        home = self._home
        # Volatile and passing events end with the process, so they take no space in pages.
        if self._fleeting is not None and self._fleeting.within(span):
            home = home if home == "off_heap" else "heap"
        if home == "off_heap":
            tail_batch.moved_outside(self._placing.outside(tail_batch.body))
        tail_batch.home = home
        return True


def on_disk(tail_batch: TailBatch, absent: IdSet) -> tuple[Buffer, int]:
    """Return the body that the journal stores for a batch, and its number of rows: all rows except
    those with ids in ``absent``, which live in memory only."""
    ids = IdSet([Span(tail_batch.first, tail_batch.end)])
    ids.remove_all(absent)
    # The usual case: the published bytes are stored as they are, without encoding a batch again.
    if len(ids) == tail_batch.end - tail_batch.first:
        return tail_batch.body, len(ids)
    return (tail_batch.body_of(ids), len(ids)) if ids else (b"", 0)
