"""How many bytes of deliveries a client has room for, and what of some rows fits into it."""

from __future__ import annotations

from penstock_core.ids.ids import Span, Spans
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in


class Room:
    """The bytes one subscription may have on their way, or waiting in its client."""

    __slots__ = ("bytes_max", "in_flight")

    def __init__(self, bytes_max: int, held: int = 0) -> None:
        self.bytes_max = bytes_max
        self.in_flight = held
        """Bytes sent and not yet taken by the client's application."""

    @property
    def free_bytes(self) -> int:
        """Bytes that are free."""
        return self.bytes_max - self.in_flight

    @property
    def is_half_free(self) -> bool:
        """Then an event of any size may go: one that is larger than all of it must get through."""
        return self.in_flight * 2 <= self.bytes_max

    @property
    def is_full(self) -> bool:
        return self.free_bytes <= 0

    def size_of(self, rows: OutgoingBatch) -> int:
        """Return what rows take of it."""
        return len(rows.body)

    def sent(self, size: int) -> None:
        self.in_flight += size

    def consumed(self, size: int) -> None:
        """The client's application has them."""
        self.in_flight = max(0, self.in_flight - size)

    def fitting(self, rows: OutgoingBatch) -> OutgoingBatch | None:
        """As many of the first of ``rows`` as there is room for; None: not even one."""
        left = self.free_bytes
        if self.size_of(rows) <= left:
            return rows
        count = _fitting(rows, left) if left > 0 and rows.count > 1 else 0
        if not count:
            if not self.is_half_free:
                return None
            count = 1
        if count == rows.count:
            return rows
        batch = rows.batch.slice(0, count)
        return OutgoingBatch(spans_in(batch), batch=batch, publishers=rows.publishers)


class RoughRoom(Room):
    """Room of a subscriber that is sent events in another form: their bodies are not made for it
    to be counted."""

    def size_of(self, rows: OutgoingBatch) -> int:
        return rows.weight


def _fitting(rows: OutgoingBatch, left: int) -> int:
    """How many rows from the first on fit into ``left`` bytes."""
    few, many = 0, rows.count
    while many - few > 1:
        middle = (few + many) // 2
        if rows.batch.slice(0, middle).nbytes <= left:
            few = middle
        else:
            many = middle
    return few


def parted(spans: Spans, at: int) -> tuple[Spans, Spans]:
    """Split spans into those below an id, and the others."""
    below = tuple(Span(first, min(end, at)) for first, end in spans if first < at)
    return below, tuple(Span(max(first, at), end) for first, end in spans if end > at)
