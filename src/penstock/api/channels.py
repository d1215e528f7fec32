"""Channels and queues: to create, describe, read and empty them, and where their events are."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from penstock.api.requests import Kind, Request
from penstock.core.bounds import (
    EndId,
    EventId,
    GivenName,
    LastId,
    SelectorText,
)
from penstock.core.vocabulary.counters import Counters
from penstock.core.vocabulary.identities import ChannelId, ChannelNumber
from penstock.core.vocabulary.messages import Definition, Spans


class ChannelOpened(Struct, frozen=True):
    channel: ChannelId
    """Number of the channel in this realm; never reused, other after delete and create."""
    name: str
    definition: Definition
    run: str = ""
    """Where its ids begin again with the realm (SEM C1d): another one each time that starts."""

    def epoch(self, realm: str) -> str:
        """Whose ids they are: another text after delete and create, in another realm, and when
        they begin again."""
        return "/".join([realm, str(self.channel), *([self.run] if self.run else [])])


class StorageInfo(Struct, frozen=True, kw_only=True):
    """Where the events of a channel are."""

    tail_bytes: int
    """In memory: not yet sealed (on disk in the journal too, unless kept in memory only)."""
    sealed_bytes: int
    sealed_files: int
    memory_bytes: int
    """The part of ``tail_bytes`` that lives in memory only."""
    quarantined: tuple[str, ...] = ()
    """What could not be read, and why (SEM S1)."""
    home: str = "journal"
    """What keeps new events: ``journal`` (disk), ``heap``, ``off_heap`` (Arrow memory outside the
    Python heap), ``pages`` (memory-mapped files), or ``nowhere``."""
    paged_bytes: int = 0
    """Size of the channel's page files."""


class ChannelInfo(Struct, frozen=True, kw_only=True):
    name: str
    definition: Definition
    first_event_id: int | None
    """Lowest stored id; None: nothing is stored."""
    last_event_id: int
    """Highest id ever given; -1 for a channel never used (SEM E5)."""
    events: int
    """Stored and not expired."""
    durables: int
    subscribers: int
    counters: Counters
    storage: StorageInfo
    readers: tuple[str, ...] = ()
    """Queues: the sessions that read it."""
    pending: int = 0
    """Deprecated name of ``in_flight``."""
    redelivered: int = 0
    """Queues: stored events that were rolled back at least once."""
    scheduled: int = 0
    """Events that wait for their time (SEM X4)."""
    overdue: int = 0
    """Stored, expired, and about to move to the dead event store; neither in ``events`` nor in a
    counter, a term of the sum all the same (SEM T8)."""
    in_flight: int = -1
    """Queues: events in a reader's hands, not committed."""

    def __post_init__(self) -> None:
        if self.in_flight < 0:  # the answer of an older realm
            force_setattr(self, "in_flight", self.pending)


class SealedPart(Struct, frozen=True):
    """Events of a range in one sealed file."""

    path: str
    """Absolute path on the realm's machine; "" when it cannot be mapped."""
    size: int
    spans: Spans
    index: bytes
    """The file's index (``columns.files.segments.SegmentIndex``), msgpack."""
    publishers: tuple[tuple[str, Spans], ...] | None = ()
    """Who published which of these events, ``user@host``, where that was asked for (SEM E3); None:
    that is too much to tell, and is told with the events over the wire."""
    name: str = ""
    """Its path within the data directory, as copies of that have it; "" from an older realm."""


class Location(Struct, frozen=True):
    sealed: tuple[SealedPart, ...]
    tail: Spans
    """Stored events that are not in a file yet: read them over the wire."""


class Missing(Struct, frozen=True):
    """Ids of a range without an event, and the one cause all of them have."""

    cause: str
    """One of those the counters count (``expired``, ``evicted``, ``purged``, ``consumed``, …);
    ``never``: nothing was stored under it; ``forgotten``: it left too long ago to tell."""
    events: int
    spans: Spans
    """The first of them."""


class Maintained(Struct, frozen=True):
    """What a maintenance did (SEM S)."""

    bytes_before: int
    bytes_after: int
    events: int
    """Left in the file."""
    reason: str = ""
    """Why there was nothing to do; empty: it was rewritten."""


class CreateChannel(Request[ChannelOpened], frozen=True):
    name: GivenName
    definition: Definition


class OpenChannel(Request[ChannelOpened], frozen=True):
    name: GivenName
    kind: Kind = "channel"


class DeleteChannel(Request[None], frozen=True):
    name: GivenName
    kind: Kind = "channel"


class EditChannel(Request[ChannelOpened], frozen=True):
    name: GivenName
    definition: Definition
    """Its ``kind`` says whether a channel or a queue is meant."""


class ListChannels(Request[list[str]], frozen=True):
    kind: Kind = "channel"


class DescribeChannel(Request[ChannelInfo], frozen=True):
    name: GivenName
    kind: Kind = "channel"


class PurgeChannel(Request[int], frozen=True):
    channel: ChannelNumber
    first_id: EventId | None
    last_id: LastId | None
    """Inclusive."""
    selector: SelectorText = ""


class CountPurge(Request[int], frozen=True):
    """Count what :class:`PurgeChannel` would remove, and remove nothing."""

    channel: ChannelNumber
    first_id: EventId | None
    last_id: LastId | None
    selector: SelectorText = ""


class DescribeColumns(Request[bytes], frozen=True):
    """The schema all stored events of a channel fit; answered by an Arrow schema, as IPC bytes."""

    channel: ChannelNumber


class MaintainChannel(Request[Maintained], frozen=True):
    """Rewrite a single-file store without its dead events (SEM S, maintain)."""

    name: GivenName
    kind: Kind = "channel"


class OpenSchedule(Request[ChannelOpened | None], frozen=True):
    """The hidden store of what waits to be published on a channel (SEM X4): it can be browsed,
    and purged to cancel. Answered by a ``ChannelOpened``, or None when nothing ever waited."""

    channel: ChannelNumber


class Locate(Request[Location], frozen=True):
    """Where the stored events of an id range can be read (sealed files, or over the wire)."""

    channel: ChannelNumber
    first_id: EventId
    end_id: EndId
    publishers: bool = False
    """Whether to say who published them."""


class DescribeMissing(Request[list[Missing]], frozen=True):
    """Why ids of a range have no event any more."""

    channel: ChannelNumber
    first_id: EventId
    end_id: EndId
