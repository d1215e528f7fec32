"""Decides where the bytes of events are kept besides the journal, within the limit of each kind."""

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
from penstock_core.vocabulary.temporary import STORE_BYTES_MAX, USER_PERCENT_MAX
from penstock_server.runtime.store.bodies import Body
from penstock_server.runtime.store.channel_store import ChannelStore
from penstock_server.runtime.store.tail_batch import Meter, TailBatch

_STAMPS_BYTES = 128
"""What stamping adds to an event: a priority, and a dictionary of publisher, host, time and id."""
_HEADER_BYTES = 4_096


_pools: list[pa.MemoryPool] = []
"""All pools ever made: a buffer does not keep its pool alive, and may outlive its realm."""


class MemoryLimits(Struct, frozen=True):
    """Most bytes of each kind of memory, over all channels (SEM C6), and what makes columns."""

    heap_bytes_max: int = 1 << 30
    off_heap_bytes_max: int = 1 << 30
    paged_bytes_max: int = 4 << 30
    index_bytes_max: int = 4 << 30
    """Most bytes of publish keys and of states of merge channels; 0: no limit."""
    property_names_max: int = NAMES_MAX
    """Most property names of one channel; 0: no limit."""

    def free_bytes(self, home: Home, digest: Digest, meter: Meter) -> int:
        """Bytes still free for events of a channel at ``home``."""
        if home == "off_heap":
            return self.off_heap_bytes_max - meter.off_heap_bytes
        if home == "pages":
            return self.paged_bytes_max - meter.paged_bytes
        return self.heap_bytes_max - meter.memory_bytes

    def free_bytes_of_index(self, store: ChannelStore | None, meter: Meter) -> int:
        """Bytes still free for publish keys and states of a channel, which has half of what the
        others leave: whoever may publish to one channel must not stop the others. None: a new
        channel."""
        if not self.index_bytes_max:
            return 1 << 62
        own = 0 if store is None else store.index_bytes
        return (self.index_bytes_max - (meter.index_bytes - own)) // 2 - own

    def free_bytes_of_temporary(self, store: ChannelStore, digest: Digest) -> int:
        """Bytes still free for events of a temporary destination (SEM R4)."""
        used = store.meter.memory_bytes
        is_single = not used and digest.count == 1
        left = digest.size if is_single else STORE_BYTES_MAX - used
        if store.share is None:
            return left
        user_bytes_max = self.heap_bytes_max * USER_PERCENT_MAX // 100
        return min(left, user_bytes_max - store.share.memory_bytes)

    def are_half_free(self, meter: Meter) -> bool:
        """Whether events that are not stored may stay in memory a little longer."""
        heap_is = meter.memory_bytes * 2 <= self.heap_bytes_max
        return heap_is and meter.off_heap_bytes * 2 <= self.off_heap_bytes_max


class Placing:
    """Pages and off-heap memory, as a group uses them."""

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
        """A copy of ``body`` in Arrow memory outside the Python heap (SEM C1f)."""
        copy = pa.allocate_buffer(len(body), memory_pool=self._pool)
        view = memoryview(copy).cast("B")
        view[:] = memoryview(body).cast("B")
        return view

    def place(self, number: int, tail_batch: TailBatch, body: Buffer) -> PageSlot:
        """Choose where ``body`` goes in the pages of a channel; written by :meth:`flush`."""
        place = self.pages.allocate(number, body)
        self.placed.append((number, tail_batch, place))
        return place

    async def flush(self, *, sync: bool) -> None:
        """Write what was placed; from now on it is read from there. Raises ``StorageFailed``, also
        where the disk has taken it and does not give it back."""
        if not self.placed:
            return
        placed, self.placed = self.placed, []
        await self.pages.flush(sync=sync)
        try:
            for number, tail_batch, place in placed:
                tail_batch.moved_to(place, self.pages.view(number, place))
        except Damaged as error:
            raise StorageFailed(f"what was just written is not there: {error}") from error


def room_for(body: Body) -> int:
    """Bytes a body may take, with what the channel may add to its events (SEM S)."""
    return len(body.buffer) + _STAMPS_BYTES * body.rows + _HEADER_BYTES


class PublishHome:
    """Where the events of a publish are kept if they do not all go the same way."""

    def __init__(self, placing: Placing, home: Home, fact: Appended) -> None:
        self._placing = placing
        self._home = home
        fleeting = (*fact.volatile, *fact.passing)
        self._fleeting = IdSet(fleeting) if fleeting else None
        self._dropped = IdSet(fact.dropped) if fact.dropped else None

    def keeps(self, tail_batch: TailBatch) -> bool:
        """Note where a batch is kept; gives whether anybody waits for some of its events."""
        span = Span(tail_batch.first, tail_batch.end)
        if self._dropped is not None and self._dropped.count(span) == span.size:
            return False
        home = self._home
        if self._fleeting is not None and self._fleeting.within(span):
            home = home if home == "off_heap" else "heap"
        if home == "off_heap":
            tail_batch.moved_outside(self._placing.outside(tail_batch.body))
        tail_batch.home = home
        return True


def on_disk(tail_batch: TailBatch, absent: IdSet) -> tuple[Buffer, int]:
    """The body the journal gets: without the rows that live in memory only."""
    ids = IdSet([Span(tail_batch.first, tail_batch.end)])
    ids.remove_all(absent)
    if len(ids) == tail_batch.end - tail_batch.first:
        return tail_batch.body, len(ids)
    return (tail_batch.body_of(ids), len(ids)) if ids else (b"", 0)
