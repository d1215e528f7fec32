"""Priority: the client that attached first is served; the next one takes over when it leaves.

Acknowledgements are cumulative, as on exclusive durables. Deprecated: use exclusive with clients
that retry.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.seat import DurableKind, Seat


class Priority:
    """The kind of priority durables."""

    name = "priority"
    cumulative = True
    redelivers_at_once = False
    waits_in_order = True
    stores_selector = False
    window_default = 1_000
    window_grows = True
    takes_window = False
    takes_transient = True
    purgeable = False
    orders_strictly = False
    seats_wait = True

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        # Only an absent session that attached before all connected ones would be served.
        return all(seat.rank > min(absent_ranks) for seat in seats)

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True  # a client that is not served yet takes over when the first one leaves

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        if not seats:
            return ()
        first = min(seats, key=lambda seat: seat.rank)
        return [first] if first.credit > 0 else ()


KIND: DurableKind = Priority()
