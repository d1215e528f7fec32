"""What a channel should be: sets, loops and one entry an event. Too slow to be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.core.messages import Counters


@dataclass
class Kept:
    """A stored event."""

    at_us: int
    even: bool
    volatile: bool = False
    ttl_ms: int = 0


@dataclass
class Seat:
    durable: str
    session: str
    window: int
    demand: int | None = None
    held: set[int] = field(default_factory=set)
    stalled: bool = False

    @property
    def credit(self) -> int:
        if self.stalled:
            return 0
        return self.window - len(self.held) if self.demand is None else self.demand


@dataclass
class Ledger:
    """One durable."""

    kind: str
    start: int
    selector: str
    persistent: bool
    due: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    parked: set[int] = field(default_factory=set)

    def wants(self, event_id: int, kept: Kept) -> bool:
        return event_id >= self.start and (kept.even or not self.selector)


@dataclass
class Reader:
    """A plain subscription."""

    cursor: int
    credit: int
    stop: int | None = None
    got: list[int] = field(default_factory=list)


class ChannelModel:
    def __init__(self, *, type: str, ttl_ms: int, capacity: int, retain: bool) -> None:
        self.type = type
        self.ttl_ms = ttl_ms
        self.capacity = capacity
        self.retain = retain
        self.stored: dict[int, Kept] = {}
        self.durables: dict[str, Ledger] = {}
        self.seats: dict[int, Seat] = {}
        self.readers: dict[int, Reader] = {}
        self.issued = 0
        """Every id below may have been given."""
        self.acked: set[int] = set()
        self.acked_lasting: set[int] = set()
        self.gone = Counters()
        self.redelivered = 0

    # --- what happens --------------------------------------------------------------------

    def appended(self, first: int, kept: list[Kept]) -> None:
        assert first >= self.issued, "an id was given twice"
        for event_id, one in enumerate(kept, first):
            self.stored[event_id] = one
            for ledger in self.durables.values():
                if ledger.wants(event_id, one):
                    ledger.due.add(event_id)
        self.issued = first + len(kept)
        self.gone.published += len(kept)

    def evict(self) -> None:
        excess = len(self.stored) - self.capacity if self.capacity else 0
        for event_id in sorted(self.stored)[: max(excess, 0)]:
            self.drop(event_id, "evicted")

    def drop(self, event_id: int, cause: str) -> None:
        del self.stored[event_id]
        setattr(self.gone, cause, getattr(self.gone, cause) + 1)
        for ledger in self.durables.values():
            self._settled(ledger, event_id)
        self._out_of_hands(event_id, None)
        self.acked.discard(event_id)
        self.acked_lasting.discard(event_id)

    def expire(self, now_us: int) -> None:
        for event_id, kept in sorted(self.stored.items()):
            ttl_ms = kept.ttl_ms or self.ttl_ms
            if ttl_ms and now_us - kept.at_us >= ttl_ms * 1_000:
                self.drop(event_id, "expired")

    def consume(self) -> None:
        """SEM D6."""
        if self.retain or not self.durables:
            return
        behind = [reader.cursor for reader in self.readers.values() if reader.stop is None]
        for event_id in sorted(self.acked):
            wanted = any(event_id in ledger.due for ledger in self.durables.values())
            unread = any(cursor <= event_id for cursor in behind)
            if not wanted and not unread:
                self.drop(event_id, "consumed")

    def ack(self, seat: Seat, ids: set[int]) -> None:
        ledger = self.durables[seat.durable]
        if ledger.kind == "exclusive" and ids:
            ids = {i for i in ledger.due if i <= max(ids)}
        for event_id in ids:
            self._settled(ledger, event_id)
            self._out_of_hands(event_id, seat.durable)
        self.acked |= ids
        if ledger.persistent:
            self.acked_lasting |= ids

    def roll_back(self, seat: Seat, ids: set[int], *, detached: bool = False) -> None:
        ledger = self.durables[seat.durable]
        seat.held -= ids
        if ledger.kind == "shared":
            self.redelivered += len(ids)
            for event_id in ids:
                ledger.counts[event_id] = ledger.counts.get(event_id, 0) + 1
        elif not detached:
            ledger.parked |= ids

    def restart(self, *, counted: bool) -> None:
        """Sessions are gone, and what lived in memory. ``counted``: from a snapshot."""
        self.seats, self.readers = {}, {}
        lost = {event_id for event_id, kept in self.stored.items() if kept.volatile}
        self.acked = set(self.acked if counted else self.acked_lasting) - lost
        self.acked_lasting = set(self.acked)
        for event_id in lost:
            del self.stored[event_id]
        self.durables = {name: one for name, one in self.durables.items() if one.persistent}
        for ledger in self.durables.values():
            ledger.due -= lost
            ledger.parked.clear()
            ledger.counts = {i: n for i, n in ledger.counts.items() if i not in lost}

    # --- questions -----------------------------------------------------------------------

    def in_hands(self, durable: str) -> set[int]:
        held = [seat.held for seat in self.seats.values() if seat.durable == durable]
        return set().union(*held)

    def pending(self, durable: str) -> list[int]:
        ledger = self.durables[durable]
        return sorted(ledger.due - self.in_hands(durable) - ledger.parked)

    # --- inside --------------------------------------------------------------------------

    def _settled(self, ledger: Ledger, event_id: int) -> None:
        ledger.due.discard(event_id)
        ledger.parked.discard(event_id)
        ledger.counts.pop(event_id, None)

    def _out_of_hands(self, event_id: int, durable: str | None) -> None:
        for seat in self.seats.values():
            if durable is None or seat.durable == durable:
                seat.held.discard(event_id)
