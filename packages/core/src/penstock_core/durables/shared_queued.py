"""Shared-queued: many sessions, each with a window of events in turn. The next session is served
when the events of the previous one are settled. Deprecated: use shared or serial."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.seat import DurableKind, Seat


class SharedQueued:
    """The kind of shared-queued durables."""

    name = "shared_queued"
    cumulative = False
    redelivers_at_once = True
    waits_in_order = False
    stores_selector = True
    window_default = 10
    window_grows = False
    takes_window = True
    takes_transient = True
    purgeable = False
    orders_strictly = False
    seats_wait = False

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        return False

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Return the first seat in turn that has credit. If several clients are attached, return no
        seat while one of them holds events."""
        if len(seats) > 1 and any(seat.in_flight for seat in seats):
            return ()
        return [seat for seat in seats if seat.credit > 0][:1]


KIND: DurableKind = SharedQueued()
