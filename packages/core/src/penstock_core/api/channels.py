"""Requests about channels and queues: create, describe, edit, purge, and locate their events."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from penstock_core.api.requests import Kind, Request
from penstock_core.bounds import (
    EndId,
    EventId,
    GivenName,
    LastId,
    SelectorText,
)
from penstock_core.display import html_info, safe_html
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.counters import Counters
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId, ChannelNumber


class ChannelOpened(Struct, frozen=True):
    """A channel or queue that a client may use by its number."""

    channel: ChannelId
    """Number of the channel in this realm; never reused, so it differs after delete and create."""
    name: str
    definition: Definition
    run: str = ""
    """Identifies the run of the realm, for channels whose ids begin again with every run (SEM C1d);
    empty for other channels."""

    def epoch(self, realm: str) -> str:
        """Return a text that identifies the sequence of event ids. The text differs after delete
        and create, in another realm, and when ids begin again."""
        return "/".join([realm, str(self.channel), *([self.run] if self.run else [])])


class StorageInfo(Struct, frozen=True, kw_only=True):
    """The storage of a channel's events, in bytes and files."""

    tail_bytes: int
    """Bytes of events that are not in sealed files yet. They are in memory and, unless their events
    are kept in memory only, also in the journal."""
    sealed_bytes: int
    """Bytes of sealed files."""
    sealed_files: int
    """Number of sealed files."""
    memory_bytes: int
    """The part of ``tail_bytes`` whose events are kept in memory only."""
    quarantined: tuple[str, ...] = ()
    """Descriptions of unreadable parts, with the reasons (SEM S1)."""
    home: str = "journal"
    """Storage of new events: ``journal`` (disk), ``heap``, ``off_heap`` (Arrow memory outside the
    Python heap), ``pages`` (memory-mapped files), or ``nowhere``."""
    paged_bytes: int = 0
    """Size of the channel's page files."""


class ChannelInfo(Struct, frozen=True, kw_only=True):
    """The description of a channel or queue."""

    name: str
    definition: Definition
    first_event_id: int | None
    """Lowest stored id; None if no event is stored."""
    last_event_id: int
    """Highest id ever assigned; -1 for a channel never used (SEM E5)."""
    events: int
    """Number of stored events that have not expired."""
    durables: int
    """Number of durables."""
    subscribers: int
    """Number of plain subscribers."""
    counters: Counters
    storage: StorageInfo
    readers: tuple[str, ...] = ()
    """Queues: the sessions that read from the queue."""
    pending: int = 0
    """Deprecated name of ``in_flight``."""
    redelivered: int = 0
    """Queues: number of stored events that were rolled back at least once."""
    scheduled: int = 0
    """Number of scheduled events, which are published later (SEM X4)."""
    overdue: int = 0
    """Number of expired events that wait to move to the dead event store. They are neither in
    ``events`` nor in a counter; in the conservation of events (SEM T8) they are a term of the
    sum."""
    in_flight: int = -1
    """Queues: number of events delivered to a reader and not committed."""
    waiting: int = 0
    """Queues: number of rolled-back events that are delayed (SEM D18)."""
    waiting_until_us: int | None = None
    """Earliest redelivery of a waiting event, in microseconds since 1970; None if no event
    waits."""

    def __post_init__(self) -> None:
        if self.in_flight < 0:  # an older realm answered
            force_setattr(self, "in_flight", self.pending)

    @safe_html
    def _repr_html_(self) -> str:
        return html_info(self)


class SealedPart(Struct, frozen=True):
    """A range of events in one sealed file."""

    path: str
    """Absolute path on the realm's machine; empty if it cannot be mapped."""
    size: int
    spans: Spans
    index: bytes
    """The file's index as msgpack (``penstock_core.columns.files.segments.SegmentIndex``)."""
    publishers: tuple[tuple[str, Spans], ...] | None = ()
    """Publishers (``user@host``) with their events, if requested (SEM E3). None if they are too
    many for this list; then read the events over the wire, where each one has its publisher."""
    name: str = ""
    """Path within the data directory and its copies; empty from an older realm."""


class Location(Struct, frozen=True, omit_defaults=True):
    """The places where the stored events of a range of ids can be read."""

    sealed: tuple[SealedPart, ...]
    tail: Spans
    """Stored events that are not in a file yet and are read over the wire."""
    files: str = ""
    """URI of the object store where a cluster keeps the files under their names. Clients need
    access rights of the object store. Empty if the files are on the realm's machine or on the
    engine."""


class Missing(Struct, frozen=True):
    """Ids in a range that have no event, all for one cause."""

    cause: str
    """A cause that the counters count (``expired``, ``evicted``, ``purged``, ``consumed``, …);
    ``never`` if no event was stored under the ids; or ``forgotten`` if the events left too long
    ago."""
    events: int
    """Number of these ids."""
    spans: Spans
    """Spans of these ids. If the ids have many spans, only the lowest are listed."""


class Maintained(Struct, frozen=True):
    """The result of maintenance (SEM S)."""

    bytes_before: int
    bytes_after: int
    events: int
    """Number of events in the rewritten file."""
    reason: str = ""
    """Reason why the file was not rewritten; otherwise empty."""


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
    """The new definition; its ``kind`` selects a channel or a queue."""


class ListChannels(Request[list[str]], frozen=True):
    kind: Kind = "channel"


class DescribeChannel(Request[ChannelInfo], frozen=True):
    name: GivenName
    kind: Kind = "channel"


class PurgeChannel(Request[int], frozen=True):
    """Remove the matching events of a range of ids; the answer is their number (SEM T9)."""

    channel: ChannelNumber
    first_id: EventId | None
    last_id: LastId | None
    """The last id of the range, which is also removed."""
    selector: SelectorText = ""


class CountPurge(Request[int], frozen=True):
    """Count the events that :class:`PurgeChannel` would remove, without removing them."""

    channel: ChannelNumber
    first_id: EventId | None
    last_id: LastId | None
    selector: SelectorText = ""


class DescribeColumns(Request[bytes], frozen=True):
    """Describe the columns of a channel; the answer is the Arrow schema that all stored events fit,
    as IPC bytes."""

    channel: ChannelNumber


class MaintainChannel(Request[Maintained], frozen=True):
    """Rewrite a store of a single file without the removed events in it (SEM S, maintain)."""

    name: GivenName
    kind: Kind = "channel"


class OpenSchedule(Request[ChannelOpened | None], frozen=True):
    """Open the hidden store of scheduled events (SEM X4). It can be browsed, and a purge cancels
    events. The answer is None if no event was ever scheduled."""

    channel: ChannelNumber


class Locate(Request[Location], frozen=True):
    """Find out where the stored events of a range of ids can be read: in sealed files, or over the
    wire."""

    channel: ChannelNumber
    first_id: EventId
    end_id: EndId
    publishers: bool = False
    """Whether the answer includes the publishers."""


class DescribeMissing(Request[list[Missing]], frozen=True):
    """Find out why ids in a range have no event any more."""

    channel: ChannelNumber
    first_id: EventId
    end_id: EndId
