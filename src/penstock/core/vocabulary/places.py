"""Facts about who is there, where the next owner of a shard has to know it.

A realm on one machine forgets its sessions when it ends. In a cluster their clients come back to
the next owner after some seconds, and until then nobody else gets what is theirs (SEM N6).
"""

from __future__ import annotations

from msgspec import Struct


class PlaceFact(Struct, frozen=True, tag=True, array_like=True):
    """Something that has happened to a client's place on a channel."""


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


AnyPlaceFact = Seated | Left | Interested | InterestEnded
