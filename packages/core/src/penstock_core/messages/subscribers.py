"""Plain subscribers of a channel, and facts about those that may reconnect."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, PlaceFact


class AddSubscriber(Command, frozen=True):
    """A session reads the channel from ``start_id`` on; a browse ends before ``stop_id``."""

    subscription: int
    session: str
    start_id: int
    stop_id: int | None = None
    """End of a browse, at most the id after the last stored event; None if it is not a browse."""
    credit: int = 0
    """Number of events that may be sent now."""
    only: Spans | None = None
    """The only ids that a browse reads: those of a durable, or those that its selector can match;
    None if it may read all."""
    durable: str | None = None
    """The browsed durable, whose redelivery counts are shown (SEM E9)."""
    confirms: bool = False
    """Whether the subscriber confirms arrived events in :class:`GrantCredit` (SEM J5)."""
    resumes: int | None = None
    """The disconnected subscription whose place this subscription takes (SEM J5)."""
    selector: str = ""
    """The subscriber's selector, if the engine determines interest when an event is published (SEM
    J2)."""
    is_selective: bool = False
    """Whether the shell applies a selector to decide which events the subscriber gets."""


class AddKnownSubscriber(AddSubscriber, frozen=True):
    """A subscriber with a position that the next connection of its session can take over."""

    place: str = ""
    goes_on: bool = False
    """Whether the client continues at ``start_id``. If not, it continues at the position that was
    kept for it during its absence."""


class GrantCredit(Command, frozen=True):
    """A plain subscriber may be sent ``count`` more events."""

    subscription: int
    count: int
    next_id: int = 0
    """Id below which all sent events have arrived."""
    withdrawn: int = 0
    """Credit that the subscriber takes back."""
    arrived: Spans = ()
    """Events that have arrived, even if some with lower ids have not."""
    has_room: bool = False
    """Whether the client has room again for withheld events (:class:`Withhold`)."""


class Disconnect(Command, frozen=True):
    """The connection of a plain subscriber is lost; it may reconnect (SEM J5)."""

    subscription: int
    arrived: Spans = ()
    """Events that have arrived, as the subscriber has already reported."""


class Interested(PlaceFact, frozen=True):
    """A plain subscriber on the JMS engine waits for events published from now on. Its interest
    survives a lost connection (SEM J5)."""

    place: str
    """Identifies the subscriber to the next connection of its session."""
    session: str
    first_id: int
    """The first id that the subscriber waits for."""
    selector: str = ""
    pulls: bool = False
    """Whether the subscriber requests each batch, so that the events it waits for are stored (SEM
    J)."""


class InterestEnded(PlaceFact, frozen=True):
    """A subscriber has left, or has not reconnected in time."""

    place: str
