"""Requests about joins, and about redriving dead events."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock_core.api.requests import Request
from penstock_core.bounds import ENTRIES_MAX, Count, GivenName, Name, Number, SelectorText, Text


class JoinInfo(Struct, frozen=True, kw_only=True):
    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    copied: int = 0
    """Events copied since the realm started."""
    dropped: int = 0
    """Events not copied since the realm started, because of a loop or too many hops (SEM L2)."""
    owner: str = ""
    """The user (``user@host``) that created the join. It ends when the user loses the right to
    create it."""
    leads_out: bool = False
    """Whether the join leads from a local channel of a node to a store of the whole cluster (SEM
    N9)."""
    waiting: int = 0
    """Events in the join's outbox: copied, and not known to be in the cluster yet."""
    waiting_bytes: int = 0
    """Approximate size of these events in bytes."""
    waiting_ms: int = 0
    """Waiting time of the oldest of these events."""
    waits_for: str = ""
    """Reason why these events wait; empty if they are being sent."""
    ending: bool = False
    """Whether the join was deleted and the events that it had copied are still being sent."""


class Redriven(Struct, frozen=True):
    """The result of a redrive, or of its dry run (SEM T10)."""

    moved: int
    destinations: dict[str, int]
    """Number of events that were moved to each store."""
    left: int
    """Dead events that stay: not selected, or without a store to return to."""
    dry_run: bool = False


class CopiedPart(Struct, frozen=True, array_like=True):
    """Copies of one schema and publisher, whose ids in the outbox follow one another."""

    size: Count
    """Size of the part's Arrow stream in the frame's body, in bytes; the streams of the parts
    follow one another."""
    through: Number
    """Id in the outbox of the part's last event."""
    publisher: Text = ""
    """``user@host`` that published the events where they were copied (SEM E3)."""


class CopiesTaken(Struct, frozen=True):
    """The answer to :class:`CopyIn`: the copies are stored."""

    name: str
    """The store's name in its canonical form."""
    kind: str
    count: int
    """Events that were new."""
    known: int = -1
    """The highest id of the outbox whose copy was stored before; -1: none."""


class CopyIn(Request[CopiesTaken], frozen=True):
    """Store copies that a node has made from its local channels, each event once (SEM N9). Without
    ``parts`` only check whether they could be stored. Only nodes of the cluster send this
    request."""

    destination: GivenName
    archive: bool
    """Whether the store has to be a queue (SEM L3)."""
    producer: Name
    """The outbox."""
    parts: Annotated[tuple[CopiedPart, ...], Meta(max_length=ENTRIES_MAX)] = ()


class CreateJoin(Request[JoinInfo], frozen=True):
    """Create a join: events published on one store are copied to another (SEM L1)."""

    source: GivenName
    destination: GivenName
    selector: SelectorText = ""
    archive: bool = False
    """Whether the destination is a queue that keeps duplicates (SEM L3)."""


class DeleteJoin(Request[None], frozen=True):
    source: GivenName
    destination: GivenName


class ListJoins(Request[list[JoinInfo]], frozen=True):
    pass


class Redrive(Request[Redriven], frozen=True):
    """Publish dead events again, each once, and remove them from their store (SEM T10)."""

    source: GivenName
    destination: GivenName = ""
    """The store to publish the events on; empty for the original store of each event."""
    selector: SelectorText = ""
    dry_run: bool = False

    @property
    def reveals_events(self) -> bool:
        """Whether the answer reveals more about the events than the number that was moved."""
        return bool(self.destination or self.selector or self.dry_run)
