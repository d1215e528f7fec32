"""Plain subscribers of a channel, and what is stored of those that come back."""

from __future__ import annotations

from penstock_core.ids.ids import Spans
from penstock_core.messages.kinds import Command, PlaceFact


class AddSubscriber(Command, frozen=True):
    """A session reads the channel itself, from ``start_id`` on, up to ``stop_id`` if given."""

    subscription: int
    session: str
    start_id: int
    stop_id: int | None = None
    """The id before which a browse ends; at the latest at the last stored event."""
    credit: int = 0
    only: Spans | None = None
    """A browse of a durable: these ids and no others."""
    durable: str | None = None
    """The durable that is browsed: its redelivery counts are shown (SEM E9)."""
    confirms: bool = False
    """It confirms what has arrived, in :class:`GrantCredit` (SEM J5)."""
    resumes: int | None = None
    """The subscription whose place it takes: it had lost its connection (SEM J5)."""
    selector: str = ""
    """Its own, where the engine asks who waits for an event as it is published (SEM J2)."""
    is_selective: bool = False
    """The shell finds out which events may be for it, by a selector of its own."""


class AddKnownSubscriber(AddSubscriber, frozen=True):
    """A subscriber that is known by its place to the next connection of its session."""

    place: str = ""
    goes_on: bool = False
    """Whether the start is where its client goes on; if not, the client leaves that to the place
    that was kept for it."""


class GrantCredit(Command, frozen=True):
    """A plain subscriber can take ``count`` more events."""

    subscription: int
    count: int
    next_id: int = 0
    """All events sent with lower ids have arrived."""
    withdrawn: int = 0
    """Credit that it takes back."""
    arrived: Spans = ()
    """Events that have arrived, even where some with lower ids have not."""
    has_room: bool = False
    """There is room again for what was withheld (:class:`Withhold`)."""


class Disconnect(Command, frozen=True):
    """The connection of a plain subscriber is lost; it may come back (SEM J5)."""

    subscription: int
    arrived: Spans = ()
    """Events that have arrived, as the subscriber has reported before."""


class Interested(PlaceFact, frozen=True):
    """On the JMS engine: a plain subscriber whose interest outlives its connection waits for what
    is published from now on (SEM J5)."""

    place: str
    """What the subscriber is known by to the next connection of its session."""
    session: str
    first_id: int
    """The first id it waits for."""
    selector: str = ""
    pulls: bool = False
    """Whether it asks for each batch, so that what it waits for is stored (SEM J)."""


class InterestEnded(PlaceFact, frozen=True):
    """A subscriber has left, or has not come back in time."""

    place: str
