"""What a channel of the JMS engine should be: each event with those who wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.definitions import Definition
from tests.model.channel_model import CUMULATIVE, ChannelModel, Kept, Reader, Seat


@dataclass
class Listener(Reader):
    """A plain subscription that waits for what comes."""

    even: bool = False
    """It wants even events only."""
    confirms: bool = False
    """It says what has arrived."""
    waits: set[int] = field(default_factory=set)
    """Not sent to it yet."""
    sent: set[int] = field(default_factory=set)
    """On its way, and not confirmed."""
    arrived: set[int] = field(default_factory=set)
    lost_us: int | None = None
    is_over: bool = False
    """It was absent for too long: nothing new is kept for it."""

    @property
    def is_there(self) -> bool:
        """Whether it is sent something now."""
        return self.credit > 0 and self.lost_us is None

    def hears(self, kept: Kept) -> bool:
        return not self.is_over and (kept.even or not self.even)


class JmsModel(ChannelModel):
    def __init__(self, definition: Definition, event_timeout_ms: int) -> None:
        super().__init__(definition)
        self.event_timeout_ms = event_timeout_ms

    # --- what happens --------------------------------------------------------------------

    def appended(self, first: int, kept: list[Kept]) -> None:
        """The table of SEM J4."""
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
        if event_id not in self.stored:  # nobody waited for it, and its key has newer ones
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
        """Whether it waits for an event that it does not get although it is evicted (SEM T3)."""
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
        """SEM J5: the window of each event, from the loss of the connection."""
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
        """SEM J2, J6, J7: who waits for what, event by event."""
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
        """It comes back and has got all below ``start``; the rest of what it waited for is
        still owed, once."""
        old = self.readers.pop(former, None)
        if isinstance(old, Listener) and old.even == listener.even:
            owed = (old.waits | old.sent) & self.stored.keys()
            listener.waits = {i for i in owed if i >= start}
            listener.arrived = old.arrived | {i for i in old.sent if i < start}

    # --- questions -----------------------------------------------------------------------

    def listeners(self) -> list[Listener]:
        return [reader for reader in self.readers.values() if isinstance(reader, Listener)]

    def is_fed(self, durable: str) -> bool:
        """Its clients are there, are sent events and acknowledge by themselves."""
        seats: list[Seat] = list(self.seats_of(durable).values())
        takes = all(seat.auto_ack and seat.demand is None for seat in seats)
        return self.durables[durable].kind in CUMULATIVE and bool(seats) and takes

    def is_owed(self, event_id: int) -> bool:
        """A durable wants it that is not fed, or whose client has given it back."""
        return any(
            event_id in one.due and (event_id in one.rolled_back or not self.is_fed(name))
            for name, one in self.durables.items()
        )

    def is_awaited(self, event_id: int) -> bool:
        wanted = any(event_id in one.due for one in self.durables.values())
        return wanted or any(event_id in one.waits | one.sent for one in self.listeners())

    def is_passing(self, event_id: int) -> bool:
        return self.is_awaited(event_id) and not self.is_owed(event_id)
