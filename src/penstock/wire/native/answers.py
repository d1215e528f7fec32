"""What requests are answered with, and what users see of channels, durables and the realm."""

from __future__ import annotations

from msgspec import Struct

from penstock.core.messages import Counters, Definition, Spans


class ChannelOpened(Struct, frozen=True):
    channel: int
    """Number of the channel in this realm; never reused, other after delete and create."""
    name: str
    definition: Definition


class Published(Struct, frozen=True):
    first_id: int
    count: int


class Subscribed(Struct, frozen=True):
    """A subscription is open: where it really begins, and where a browse ends."""

    first_id: int
    stop_id: int | None


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


class RealmInfo(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    channels: int
    connections: int
    journal_bytes: int
    memory_bytes: int
    memory_bytes_max: int


class SealedPart(Struct, frozen=True):
    """Events of a range in one sealed file."""

    path: str
    """Absolute path on the realm's machine; "" when it cannot be mapped."""
    size: int
    spans: Spans
    index: bytes
    """The file's index (``columns.segments.SegmentIndex``), msgpack."""


class Location(Struct, frozen=True):
    sealed: tuple[SealedPart, ...]
    tail: Spans
    """Stored events that are not in a file yet: read them over the wire."""
