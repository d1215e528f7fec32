"""Requests about joins, and about redriving dead events."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock_core.api.requests import Request
from penstock_core.bounds import ENTRIES_MAX, Count, GivenName, Name, Number, SelectorText, Text


class JoinInfo(Struct, frozen=True, kw_only=True):
    """The description of a join."""

    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    copied: int = 0
    """Number of events copied since the realm started."""
    dropped: int = 0
    """Number of events not copied since the realm started, because of a loop or too many hops
    (SEM L2)."""
    owner: str = ""
    """The user (``user@host``) that created the join. The join ends when this user loses the right
    to create it."""
    leads_out: bool = False
    """Whether the join leads from a local channel of a node to a store of the whole cluster (SEM
    N9)."""
    waiting: int = 0
    """Number of events in the join's outbox: copied, and not known to be in the cluster yet."""
    waiting_bytes: int = 0
    """Approximate size of the events in the join's outbox, in bytes."""
    waiting_ms: int = 0
    """Waiting time of the oldest event in the join's outbox, in milliseconds."""
    waits_for: str = ""
    """Reason why the events in the join's outbox wait; empty if they are being sent."""
    ending: bool = False
    """Whether the join was deleted and the events that it had copied are still being sent."""


class Redriven(Struct, frozen=True):
    """The result of a redrive, or of its dry run (SEM T10)."""

    moved: int
    """Number of dead events that were published again."""
    destinations: dict[str, int]
    """Number of events that were moved to each store."""
    left: int
    """Number of dead events that stay, because they were not selected or their original store does
    not exist."""
    dry_run: bool = False
    """Whether no event was moved; the numbers are those of a redrive."""


class CopiedPart(Struct, frozen=True, array_like=True):
    """Copies of one schema and publisher, with consecutive ids in the outbox."""

    size: Count
    """Size of the part's Arrow stream in bytes. The frame's body contains the streams of all parts,
    one after the other."""
    through: Number
    """Id in the outbox of the part's last event."""
    publisher: Text = ""
    """``user@host`` that published the events on the source of the join (SEM E3)."""


class CopiesTaken(Struct, frozen=True):
    """The answer to :class:`CopyIn`: the copies are stored."""

    name: str
    """The store's name in its canonical form."""
    kind: str
    count: int
    """Number of events that were new."""
    known: int = -1
    """The highest id of the outbox whose copy is already stored; -1 if no copy was."""


class CopyIn(Request[CopiesTaken], frozen=True):
    """Store copies that a node has made from its local channels, each event once (SEM N9). A
    request without ``parts`` only checks whether copies could be stored. Only nodes of the cluster
    send this request."""

    destination: GivenName
    archive: bool
    """Whether the store has to be a queue (SEM L3)."""
    producer: Name
    """Unique name of the outbox. The destination recognizes repeated copies by it."""
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
