"""Serial: many sessions, served one at a time; the turn passes when its holder has no event in
flight (SEM D10-D12)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.seat import DurableKind, Seat


class Serial:
    """The kind of serial durables."""

    name = "serial"
    cumulative = False
    redelivers_at_once = True
    waits_in_order = True
    stores_selector = True
    window_default = 10
    # The window decides whose turn it is, so it must not depend on the speed of clients (SEM D9).
    window_grows = False
    takes_window = True
    takes_transient = False
    purgeable = True
    orders_strictly = True
    seats_wait = True

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        return True  # an absent client may still process its events, and order must be kept

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        """Return the seat that holds events, if it has credit (SEM D12). If no seat holds events,
        return the next seat in turn that has credit."""
        # Two clients that work at the same time would process events in parallel (SEM D12).
        holders = [seat for seat in seats if seat.in_flight]
        ready = [seat for seat in holders or seats if seat.credit > 0]
        return ready[:1]


KIND: DurableKind = Serial()
