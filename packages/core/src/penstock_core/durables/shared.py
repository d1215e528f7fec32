"""Shared: any number of sessions, served round robin, working at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.seat import DurableKind, Seat


class Shared:
    """The kind of shared durables."""

    name = "shared"
    cumulative = False
    redelivers_at_once = True
    waits_in_order = False
    stores_selector = True
    window_default = 10
    window_grows = True
    takes_window = True
    takes_transient = False
    purgeable = True
    orders_strictly = False
    seats_wait = False

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        return False

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        return [seat for seat in seats if seat.credit > 0]


KIND: DurableKind = Shared()
