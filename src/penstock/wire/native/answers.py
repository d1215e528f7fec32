"""What requests are answered with, and what users see of channels, durables and the realm."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from penstock.core.counters import Counters
from penstock.core.exported_file import ExportedFile
from penstock.core.ids import IdSet, Span
from penstock.core.messages import Definition, Ids, Spans
from penstock.core.written import id_set


class ChannelOpened(Struct, frozen=True):
    channel: int
    """Number of the channel in this realm; never reused, other after delete and create."""
    name: str
    definition: Definition
    run: str = ""
    """Where its ids begin again with the realm (SEM C1d): another one each time that starts."""

    def epoch(self, realm: str) -> str:
        """Whose ids they are: another text after delete and create, in another realm, and when
        they begin again."""
        return "/".join([realm, str(self.channel), *([self.run] if self.run else [])])


class Published(Struct, frozen=True):
    first_id: int
    count: int


class Subscribed(Struct, frozen=True):
    """A subscription is open: where it really begins, and where a browse ends."""

    first_id: int
    stop_id: int | None
    strict_order: bool = False
    """A seat at a durable with ``strict_order`` or ``order_by``: what was delivered may be recalled
    (SEM D11)."""
    confirm: bool = False
    """Whether the client is to say what has arrived (SEM J5)."""
    cumulative: bool = False
    """A seat where acknowledging an event settles the earlier ones: what was rolled back before
    has to be told before."""


class StorageInfo(Struct, frozen=True, kw_only=True):
    """Where the events of a channel are."""

    tail_bytes: int
    """In memory: not yet sealed (on disk in the journal too, unless kept in memory only)."""
    sealed_bytes: int
    sealed_files: int
    memory_bytes: int
    """Of ``tail_bytes``: events that live in memory only."""
    quarantined: tuple[str, ...] = ()
    """What could not be read, and why (SEM S1)."""
    home: str = "journal"
    """What keeps new events: ``journal`` (disk), ``heap``, ``off_heap`` (Arrow memory outside the
    Python heap), ``pages`` (memory-mapped files), or ``nowhere``."""
    paged_bytes: int = 0
    """Of the channel's page files."""


class DurableInfo(Struct, frozen=True, kw_only=True):
    """A durable as it stands (SEM D17)."""

    name: str
    channel: str
    type: str
    persistent: bool
    selector: str
    clients: tuple[str, ...]
    """Sessions attached, by subscription."""
    position: int
    """Events below this id have been offered or settled."""
    outstanding: int
    """Not acknowledged."""
    pending: int
    """Sent to a client and not acknowledged."""
    redelivered: int
    """Outstanding events that were delivered before."""
    oldest_outstanding_ms: int | None
    """Age of the oldest outstanding event."""
    last_read_ms: int | None
    """How long ago a client last got or settled something; None: not since the realm started."""
    max_deliveries: int = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: str = ""


class Outstanding(Struct, frozen=True):
    """Events a durable still has to see, by id."""

    ids: Ids
    redeliveries: tuple[tuple[int, Ids], ...] = ()
    """How often events were delivered again, with their ids."""

    @property
    def id_set(self) -> IdSet:
        return id_set(self.ids)

    @property
    def redelivered(self) -> dict[int, IdSet]:
        """By count: the events that were delivered again as often."""
        return {count: id_set(ids) for count, ids in self.redeliveries}


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
    """Queues: events in a reader's hands, not committed."""
    redelivered: int = 0
    """Queues: stored events that were rolled back at least once."""
    scheduled: int = 0
    """Events that wait for their time (SEM X4)."""
    overdue: int = 0
    """Stored, expired, and about to move to the dead event store; neither in ``events`` nor in a
    counter, a term of the sum all the same (SEM T8)."""


class RealmInfo(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    channels: int
    connections: int
    journal_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    off_heap_bytes: int = 0
    off_heap_bytes_max: int = 0
    paged_bytes: int = 0
    paged_bytes_max: int = 0
    queues: int = 0
    publishing_paused: bool = False


class SealedPart(Struct, frozen=True):
    """Events of a range in one sealed file."""

    path: str
    """Absolute path on the realm's machine; "" when it cannot be mapped."""
    size: int
    spans: Spans
    index: bytes
    """The file's index (``columns.segments.SegmentIndex``), msgpack."""
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


class TransactionInfo(Struct, frozen=True):
    """What became of a transaction (SEM X2)."""

    state: Literal["open", "committed", "aborted"]
    spans: tuple[tuple[int, Span], ...] = ()
    """Committed: by channel number, the ids its events got."""


class JoinInfo(Struct, frozen=True, kw_only=True):
    source: str
    destination: str
    selector: str = ""
    archive: bool = False
    copied: int = 0
    """Since the realm started."""
    dropped: int = 0
    """Not copied because of a loop or too many hops (SEM L2), since the realm started."""
    owner: str = ""
    """``user@host`` that made it: it ends when they could not make it any more."""


class Redriven(Struct, frozen=True):
    """What a redrive moved, or would move (SEM T10)."""

    moved: int
    destinations: dict[str, int]
    """By store: how many."""
    left: int
    """Dead events that stay: not selected, or without a place to go back to."""
    dry_run: bool = False


class ExportBegun(Struct, frozen=True, kw_only=True):
    """A channel or queue was captured; its files can be read (SEM C7)."""

    export: str
    """Names it in the requests to come."""
    name: str
    definition: Definition
    realm: str
    """Identity of the realm."""
    at_us: int
    """When it was captured."""
    events: int
    files: int
    """Files of events; the state is one more, read last."""


class ExportedBytes(Struct, frozen=True):
    """Some of a file of an export."""

    file: ExportedFile
    content: bytes
