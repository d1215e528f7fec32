"""A queue: a channel with one built-in group of readers (SEM Q).

Each event goes to one reader, and leaves when that reader commits. The mechanism is that of a
durable (``core.durable.durable``); this module is its policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.durable.durable import Durable
from penstock.core.durable.seat import DurableKind, Seat

READERS = ""
"""The name of a queue's own durable. No user's durable is called so."""


class Readers:
    name = "queue"
    cumulative = False
    redelivers_at_once = True
    stores_selector = False
    takes_window = True
    takes_transient = True
    window_default = 10
    purgeable = True
    orders_strictly = False
    deprecated = False

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        return [seat for seat in seats if seat.credit > 0]


KIND: DurableKind = Readers()


def readers_of(first_id: int, *, persistent: bool, max_deliveries: int) -> Durable:
    """The reader group of a queue whose first event is ``first_id``."""
    return Durable(READERS, KIND, first_id, persistent=persistent, max_deliveries=max_deliveries)
