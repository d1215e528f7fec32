"""Exclusive: one session at a time, acknowledging up to and including an event."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.seat import DurableKind, Seat


class Exclusive:
    """The kind of exclusive durables."""

    name = "exclusive"
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
        return True  # the only seat belongs to the absent session

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return not seats

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        return [seat for seat in seats if seat.credit > 0]


KIND: DurableKind = Exclusive()
