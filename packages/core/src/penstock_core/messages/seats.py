"""Seats at durables: taken, left, and kept for sessions that come back (SEM D5, N6)."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, PlaceFact


class TakeSeat(Command, frozen=True):
    """A session takes a seat at a durable."""

    durable: str
    subscription: int
    session: str
    window: int | None = None
    """Most events sent and not settled; None: the type's default (SEM D9)."""
    pull: bool = False
    """Synchronous consumption: events go out on :class:`SetDemand` only (SEM D5)."""
    selector: str = ""
    """A queue reader's own: it gets only what this matches (SEM Q1)."""
    matched: Spans = ()
    """With a selector, the outstanding events that it matches."""
    auto_ack: bool = False
    """The client acknowledges events as it hands them out, without being told to (SEM D5, J7)."""
    sole: bool = False
    """The client holds the durable as a whole (``penstock_core.channel.holding``)."""
    ack_timeout_ms: int = 0
    """A queue reader's own: how long it may have an event in hand (SEM D19); 0: no limit."""
    place: str = ""
    """What the seat is known by to the next connection of its session (SEM N6)."""


class TakeLease(TakeSeat, frozen=True):
    """A seat that has what it gets for ``ack_timeout_ms``, at a durable of any type (SEM H1).

    What it has had for longer goes back, at types that redeliver with the next subscription, too:
    its client takes another seat for what comes next.
    """


class Detach(Command, frozen=True):
    """A subscription ends, because it was closed or its session has ended (SEM D13)."""

    subscription: int
    comes_back: bool = False
    """The realm itself has ended the connection: the seat waits for its session (SEM N6)."""


class GiveUpSeats(Command, frozen=True):
    """Wait no longer for those who have not come back to the seats of a durable (SEM D14)."""

    durable: str


class AwaitSeats(Command, frozen=True):
    """Whoever is away may come back only from now on: until now nobody was waited for."""


class Seated(PlaceFact, frozen=True):
    """A client has taken a seat that is kept for it when another node takes over, is back in it, or
    has been waited for."""

    durable: str
    place: str
    """What the seat is known by to the next connection of its session."""
    session: str
    sole: bool = False
    """Whether the client holds the durable as a whole."""
    waited_us: int = 0
    """How long owners have waited for the session to come back, so far; 0: it is there, as far as
    is known. A seat that is told of again keeps its turn."""


class Left(PlaceFact, frozen=True):
    """A client has left its seat, or has not come back to it in time."""

    durable: str
    place: str
