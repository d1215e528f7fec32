"""A model of a channel of the JMS engine: each event with the subscribers that wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from tests.model.channel_model import CUMULATIVE, ChannelModel, Kept, Reader, Seat


@dataclass
class Listener(Reader):
    """A plain subscription that waits for events."""

    even: bool = False
    """Whether it has a selector for even events."""
    confirms: bool = False
    """Whether its client confirms what has arrived."""
    waits: set[int] = field(default_factory=set)
    """Events not sent to it yet."""
    sent: set[int] = field(default_factory=set)
    """Events that were sent and are not confirmed."""
    arrived: set[int] = field(default_factory=set)
    lost_us: int | None = None
    is_over: bool = False
    """Whether it was absent for too long, so that no new event is kept for it."""

    @property
    def is_there(self) -> bool:
        """Whether new events are sent to it now."""
        return self.credit > 0 and self.lost_us is None

    def hears(self, kept: Kept) -> bool:
        return not self.is_over and (kept.even or not self.even)


class JmsModel(ChannelModel):
    def __init__(self, definition: Definition, event_timeout_ms: int) -> None:
        super().__init__(definition)
        self.event_timeout_ms = event_timeout_ms

    # --- what happens --------------------------------------------------------------------

    def appended(self, first: int, kept: list[Kept]) -> None:
        """Apply the table of SEM J4 to new events."""
        super().appended(first, kept)
        for event_id, one in enumerate(kept, first):
            one.of_type = one.volatile
            for listener in self.listeners():
                if listener.hears(one):
                    listener.waits.add(event_id)
            if one.relayed:
                continue
            one.passing = self.is_passing(event_id)
            one.volatile |= one.passing
            if not self.is_awaited(event_id):
                one.volatile = True
                self.drop(event_id, Cause.DROPPED)

    def drop(self, event_id: int, cause: Cause) -> None:
        if event_id not in self.stored:  # no subscriber waited for it, and its key has newer events
            self.fates[event_id] = (cause, False)
            return
        super().drop(event_id, cause)
        for listener in self.listeners():
            if event_id not in self.leaving or not listener.is_there:
                listener.waits.discard(event_id)
            listener.sent.discard(event_id)

    def is_unconsumed(self, event_id: int, cause: Cause) -> bool:
        if self.durables and super().is_unconsumed(event_id, cause):
            return True
        missed = any(self._misses(listener, event_id, cause) for listener in self.listeners())
        return self.moves_dead and missed

    def _misses(self, listener: Listener, event_id: int, cause: Cause) -> bool:
        """Whether an evicted event was still wanted by a listener (SEM T3)."""
        if event_id not in listener.waits:
            return False
        gets = sorted(listener.waits)[: max(0, listener.credit)]
        return cause is Cause.EXPIRED or not listener.is_there or event_id not in gets

    def gone_by(self) -> None:
        for listener in self.listeners():
            listener.waits -= self.leaving.keys()
            listener.sent -= self.leaving.keys()
        super().gone_by()

    def expire(self, now_us: int) -> None:
        super().expire(now_us)
        self.give_up(now_us)

    def give_up(self, now_us: int) -> None:
        """Remove events whose time since the loss of the connection is over (SEM J5)."""
        for subscription, listener in list(self.readers.items()):
            if not isinstance(listener, Listener) or listener.lost_us is None:
                continue
            absent_us = now_us - listener.lost_us
            for event_id in listener.waits & self.stored.keys():
                window_ms = self.stored[event_id].waits_ms or self.event_timeout_ms
                if absent_us >= window_ms * 1_000:
                    listener.waits.discard(event_id)
            listener.is_over |= absent_us >= self.event_timeout_ms * 1_000
            if listener.is_over and not listener.waits:
                del self.readers[subscription]

    def consume(self) -> None:
        """Remove events that no subscriber or durable waits for (SEM J2, J6, J7)."""
        for listener in self.listeners():
            listener.waits &= self.stored.keys() | self.passing.keys() | self.leaving.keys()
        for event_id in sorted(self.stored):
            one = self.stored[event_id]
            if not self.is_awaited(event_id):
                acked = event_id in self.acked
                self.drop(event_id, Cause.CONSUMED if acked else Cause.DROPPED)
            elif one.passing and self.is_owed(event_id):
                one.passing, one.volatile = False, one.of_type

    def lost(self, subscription: int, now_us: int) -> None:
        listener = self.readers[subscription]
        assert isinstance(listener, Listener)
        if listener.lost_us is None:
            listener.lost_us, listener.credit = now_us, 0
            listener.waits |= listener.sent & self.stored.keys()
            listener.sent = set()

    def resumed(self, listener: Listener, former: int, start: int) -> None:
        """Continue a subscription that has received everything below ``start``; the other events it
        waited for are sent once more."""
        old = self.readers.pop(former, None)
        if isinstance(old, Listener) and old.even == listener.even:
            owed = (old.waits | old.sent) & self.stored.keys()
            listener.waits = {i for i in owed if i >= start}
            listener.arrived = old.arrived | {i for i in old.sent if i < start}

    # --- questions -----------------------------------------------------------------------

    def listeners(self) -> list[Listener]:
        return [reader for reader in self.readers.values() if isinstance(reader, Listener)]

    def is_fed(self, durable: str) -> bool:
        """Whether the durable has clients that are connected, receive events and acknowledge
        automatically."""
        seats: list[Seat] = list(self.seats_of(durable).values())
        takes = all(seat.auto_ack and seat.demand is None for seat in seats)
        return self.durables[durable].kind in CUMULATIVE and bool(seats) and takes

    def is_owed(self, event_id: int) -> bool:
        """Whether a durable without such clients wants the event, or a client has given it back."""
        return any(
            event_id in one.due and (event_id in one.rolled_back or not self.is_fed(name))
            for name, one in self.durables.items()
        )

    def is_awaited(self, event_id: int) -> bool:
        wanted = any(event_id in one.due for one in self.durables.values())
        return wanted or any(event_id in one.waits | one.sent for one in self.listeners())

    def is_passing(self, event_id: int) -> bool:
        return self.is_awaited(event_id) and not self.is_owed(event_id)
