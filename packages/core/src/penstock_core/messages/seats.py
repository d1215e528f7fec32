"""Seats at durables: taking them, leaving them, and reserving them for sessions that reconnect
(SEM D5, N6)."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, PlaceFact


class TakeSeat(Command, frozen=True):
    """A session takes a seat at a durable."""

    durable: str
    subscription: int
    session: str
    window: int | None = None
    """Maximum number of events in flight; None means the default of the durable type (SEM D9)."""
    pull: bool = False
    """Whether events are sent on :class:`SetDemand` only (synchronous consumption, SEM D5)."""
    selector: str = ""
    """Selector of a queue reader, which gets only matching events (SEM Q1)."""
    matched: Spans = ()
    """Outstanding events that match the selector; empty without a selector."""
    auto_ack: bool = False
    """Whether the client library acknowledges events automatically as it passes them to the
    application (SEM D5, J7)."""
    sole: bool = False
    """Whether the client holds the durable as a whole (``penstock_core.channel.holding``)."""
    ack_timeout_ms: int = 0
    """Longest time that a queue reader may hold an event, in ms (SEM D19); 0 means no limit."""
    place: str = ""
    """Identifies the seat to the next connection of its session (SEM N6)."""


class TakeLease(TakeSeat, frozen=True):
    """A seat that holds its events for at most ``ack_timeout_ms``, at a durable of any type
    (SEM H1).

    Events held for longer return to the durable, also at types that redeliver only with the next
    subscription, because the client takes another seat for the next events.
    """


class Detach(Command, frozen=True):
    """A subscription ends, because it was closed or its session has ended (SEM D13)."""

    subscription: int
    comes_back: bool = False
    """Whether the realm itself has closed the connection, so that the seat is reserved for its
    session (SEM N6)."""


class GiveUpSeats(Command, frozen=True):
    """End the reservation of all absent seats of a durable (SEM D14)."""

    durable: str


class AwaitSeats(Command, frozen=True):
    """Absent sessions can reconnect from now on, so their reservation time starts."""


class Seated(PlaceFact, frozen=True):
    """A client has taken a seat that is reserved for it after a failover, or has returned to its
    seat; or an owner has waited for the client for some time."""

    durable: str
    place: str
    """Identifies the seat to the next connection of its session."""
    session: str
    sole: bool = False
    """Whether the client holds the durable as a whole."""
    waited_us: int = 0
    """Time that owners have waited for the session so far, in microseconds; 0 if the session is
    connected, as far as known. A repeated fact does not change the seat's turn."""


class Left(PlaceFact, frozen=True):
    """A client has left its seat, or has not returned to it in time."""

    durable: str
    place: str
