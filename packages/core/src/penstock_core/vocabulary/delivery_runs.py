"""Delivery states of events: rows of one durable, in runs of consecutive events (SEM D23)."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from msgspec import Struct

from penstock_core.ids.ids import Span

EventState = Literal["ready", "in_flight", "delayed", "acknowledged"]
"""The state of a stored event at a durable, or at the readers of a queue."""
READY: Final = "ready"
IN_FLIGHT: Final = "in_flight"
DELAYED: Final = "delayed"
ACKNOWLEDGED: Final = "acknowledged"
EVENT_STATES: Final[tuple[EventState, ...]] = (READY, IN_FLIGHT, DELAYED, ACKNOWLEDGED)
"""All states of a stored event."""
OUTSTANDING: Final[tuple[EventState, ...]] = (READY, IN_FLIGHT, DELAYED)
"""The states of an outstanding event."""


class DeliveryPlace(NamedTuple):
    """A place in the order of delivery states: by name of the durable, then by event id."""

    durable: str
    first_id: int


class DeliveryRun(Struct, frozen=True, array_like=True):
    """Consecutive events that differ only in their ids. A value is None if it does not exist or if
    the realm does not keep it."""

    span: Span
    durable: str
    """Name of the durable; empty for the readers of a queue."""
    state: EventState
    client: str | None = None
    """The session that holds the events; None if they are not in flight."""
    since_us: int | None = None
    """Time of the delivery of events in flight, time of the publish of other outstanding events, in
    microseconds since 1970, rounded down (SEM D23)."""
    deliveries: int | None = None
    """Number of counted deliveries, including the one in flight; None if the type of the durable
    does not count them."""
    lease_end_us: int | None = None
    """Time at which events in flight go back unless they are settled."""
    delayed_until_us: int | None = None
    """Time at which delayed events become ready."""
