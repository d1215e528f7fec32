"""Delivery states of events: rows of one durable, in runs of consecutive events (SEM D23)."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from msgspec import Struct

from penstock_core.ids.ids import Span

EventState = Literal["ready", "in_flight", "delayed", "acknowledged", "dead"]
"""The state of an event at a durable, or at the readers of a queue."""
READY: Final = "ready"
IN_FLIGHT: Final = "in_flight"
DELAYED: Final = "delayed"
ACKNOWLEDGED: Final = "acknowledged"
DEAD: Final = "dead"
STORED_STATES: Final[tuple[EventState, ...]] = (READY, IN_FLIGHT, DELAYED, ACKNOWLEDGED)
"""The states of a stored event."""
EVENT_STATES: Final[tuple[EventState, ...]] = (*STORED_STATES, DEAD)
"""All states; the dead events are in the dead event store."""
OUTSTANDING: Final[tuple[EventState, ...]] = (READY, IN_FLIGHT, DELAYED)
"""The states of an outstanding event."""


class DeliveryPlace(NamedTuple):
    """A place in the order of delivery states: by name of the durable, then by event id. Dead
    events follow, by their id in the dead event store, then by name of the durable."""

    durable: str
    first_id: int
    is_dead: bool = False
    """Whether the place is among the dead events."""


class DeliveryRun(Struct, frozen=True, array_like=True):
    """Consecutive events that differ only in their ids. A value is None if it does not exist or if
    the realm does not keep it."""

    span: Span
    durable: str
    """Name of the durable; empty for the readers of a queue, and for dead events that no durable
    has missed."""
    state: EventState
    client: str | None = None
    """The session that holds the events; None if they are not in flight."""
    since_us: int | None = None
    """Time of the delivery of events in flight, of the death of dead events, and of the publish of
    other outstanding events, in microseconds since 1970, rounded down (SEM D23)."""
    deliveries: int | None = None
    """Number of counted deliveries, including the one in flight; None if the type of the durable
    does not count them."""
    lease_end_us: int | None = None
    """Time at which events in flight go back unless they are settled."""
    delayed_until_us: int | None = None
    """Time at which delayed events become ready."""
    cause: str | None = None
    """Why dead events died, without the reason of a client."""
    dead_event_id: int | None = None
    """Id in the dead event store of the first event; the next events have the next ids."""
