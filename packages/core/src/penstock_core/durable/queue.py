"""A queue: a channel with one built-in group of readers (SEM Q).

Each event goes to one reader, and leaves when that reader commits it. The mechanism is that of a
durable (``penstock_core.durable.durable``); this module is its policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import DurableKind, Seat
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes

READERS = ""
"""Name of the built-in durable of a queue; durables of users have other names."""


class Readers:
    """The kind of the built-in durable of a queue."""

    name = "queue"
    cumulative = False
    redelivers_at_once = True
    waits_in_order = False
    stores_selector = False
    takes_window = True
    takes_transient = True
    window_default = 10
    window_grows = False
    purgeable = True
    orders_strictly = False
    seats_wait = False

    def waits_for(self, seats: Sequence[Seat], absent_ranks: Sequence[int]) -> bool:
        return False  # other readers can process the events of an absent one

    def may_attach(self, seats: Sequence[Seat]) -> bool:
        return True

    def servable(self, seats: Sequence[Seat]) -> Sequence[Seat]:
        return [seat for seat in seats if seat.credit > 0]


KIND: DurableKind = Readers()


def readers_of(definition: Definition, *, persistent: bool) -> Durable:
    """Return the reader group of a new queue."""
    return Durable(
        READERS,
        KIND,
        definition.start_event_id,
        persistent=persistent,
        attributes=readers_attributes(definition),
    )


def readers_attributes(definition: Definition) -> DurableAttributes:
    """Return the attributes of a queue that apply to its reader group."""
    return DurableAttributes(max_deliveries=definition.max_deliveries, backoff=definition.backoff)
