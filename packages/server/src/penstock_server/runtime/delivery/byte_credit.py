"""Byte credit: a limit on the bytes on their way to a client. Batches are cut to the limit."""

from __future__ import annotations

from penstock_core.ids.ids import Span, Spans
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in


class Room:
    """Limit on the bytes of one subscription that are on their way to the client, or that its
    application has not consumed."""

    __slots__ = ("bytes_max", "in_flight")

    def __init__(self, bytes_max: int, in_flight: int = 0) -> None:
        self.bytes_max = bytes_max
        self.in_flight = in_flight
        """Bytes sent that the client's application has not consumed yet."""

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be sent; negative after an event larger than the limit."""
        return self.bytes_max - self.in_flight

    @property
    def is_half_free(self) -> bool:
        """Whether at least half of the limit is free. An event of any size may be sent then, so
        that an event larger than the whole limit is also delivered."""
        return self.in_flight * 2 <= self.bytes_max

    @property
    def is_full(self) -> bool:
        return self.free_bytes <= 0

    def size_of(self, rows: OutgoingBatch) -> int:
        """Return the bytes that ``rows`` count against the limit."""
        return len(rows.body)

    def sent(self, size: int) -> None:
        """Count ``size`` bytes that were sent."""
        self.in_flight += size

    def consumed(self, size: int) -> None:
        """Release ``size`` bytes, because the client's application has consumed them."""
        self.in_flight = max(0, self.in_flight - size)

    def fitting(self, rows: OutgoingBatch) -> OutgoingBatch | None:
        """Return as many of the first ``rows`` as fit; None if the first one does not fit."""
        free_bytes = self.free_bytes
        if self.size_of(rows) <= free_bytes:
            return rows
        count = _fitting(rows, free_bytes) if free_bytes > 0 and rows.count > 1 else 0
        if not count:
            if not self.is_half_free:
                return None
            count = 1
        if count == rows.count:
            return rows
        batch = rows.batch.slice(0, count)
        return OutgoingBatch(spans_in(batch), batch=batch, publishers=rows.publishers)


class RoughRoom(Room):
    """Room of a subscription whose events are sent in another form, such as MQTT packets. It counts
    estimated sizes, because building the bodies only to measure them would cost as much as sending
    them."""

    def size_of(self, rows: OutgoingBatch) -> int:
        return rows.weight


def _fitting(rows: OutgoingBatch, free_bytes: int) -> int:
    """Return the number of rows, from the first on, that fit into ``free_bytes``. It is found by
    binary search over slices, because the size of a slice is cheap to compute."""
    fitting, too_many = 0, rows.count
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        if rows.batch.slice(0, middle).nbytes <= free_bytes:
            fitting = middle
        else:
            too_many = middle
    return fitting


def split_spans(spans: Spans, split_id: int) -> tuple[Spans, Spans]:
    """Split spans at an id into the ids below it, and the others."""
    below = tuple(Span(first, min(end, split_id)) for first, end in spans if first < split_id)
    return below, tuple(Span(max(first, split_id), end) for first, end in spans if end > split_id)
