"""Attributes of channels and queues."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.compression import Compression

PRIORITY_DEFAULT = 4
"""The priority of an event that was published without one."""


class Storage(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Storage properties of a channel or queue (SEM S)."""

    honour_capacity: bool = False
    """Refuse a publish to a full channel instead of evicting the oldest event (SEM T4)."""
    sync: Literal["group", "none"] = "group"
    """When an acknowledged event is on disk: with its group, or when the operating system likes
    (``none``: survives a crash of the process, not of the machine)."""
    sync_each_write: bool = False
    """One sync a publish instead of one a group."""
    sync_max_batch_size: int = 1 << 20
    """Bytes at which a group closes: what waits longer goes into the next."""
    sync_batch_time: int = 2
    """Milliseconds after which a group closes, however much waits still."""
    events_per_spindle: int = 50_000
    """Events in a sealed segment file; 0: a single file, rewritten by maintenance."""
    auto_maintenance: bool = True
    """Rewrite a single file once much of it is dead."""
    enable_caching: bool = True
    """Keep files open and what was read from them in memory."""
    cache_on_reload: bool = False
    """Read everything once at start-up."""
    read_buffer_size: int = 1 << 20
    """Most bytes read for one delivery where files are not kept open (``enable_caching``)."""
    priority: int = PRIORITY_DEFAULT
    """Priority of events published without one."""
    stamp_dictionary: bool = False
    """Add publisher, host, time and id as read-only properties under ``$penstock``."""
    compression: Compression = "none"
    """How files of events are compressed that are written from now on."""


class Definition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes of a channel or queue (SEM C3)."""

    type: str = "mixed"
    """Where events are kept, and whether they survive a restart (SEM C1)."""
    engine: str = "default"
    """The rules by which events are kept and delivered: ``default``, ``jms`` or ``merge``."""
    kind: Literal["channel", "queue", "schedule", "outbox"] = "channel"
    """A queue gives each event to one reader (SEM Q); the others are the realm's own: events that
    wait for their time (SEM X4), or to leave for the cluster (N9)."""
    ttl: int = 0
    """Milliseconds an event stays at most, from its publish; 0 = no such limit (SEM T1)."""
    capacity: int = 0
    """Most events on the channel; 0 = no limit (SEM T3)."""
    dead_event_store: str = ""
    """Channel or queue for events that leave unconsumed by age or capacity (SEM T5)."""
    keys: dict[str, int] = {}
    """Publish keys: of each value of the property only so many of the newest stay (SEM K1)."""
    max_deliveries: int = 0
    """Queues: deliveries after which a rolled-back event is dead; 0 = no limit (SEM T10)."""
    backoff: Backoff | None = None
    """Queues: how long a rolled-back event waits to come again; None: not at all (SEM D18)."""
    retain_consumed: bool = False
    """Keep events that all durables have acknowledged (SEM D6), as the merge engine always does."""
    event_ttl: bool = False
    """Honour an event's own TTL on every type, not on mixed only (SEM T2, extension)."""
    cluster_wide: bool | None = None
    """Exists on every node of a cluster, and keeps all its events whatever its type (SEM C5, N1).
    None, not given: yes on a cluster where the type allows it. Without a cluster yes is refused."""
    start_event_id: int = 0
    """Id of the channel's first event (SEM E4)."""
    descriptors: bytes = b""
    """A serialized ``FileDescriptorSet``: the types of the messages in its events (SEM P1)."""
    archive: str = ""
    """Where events are that have left the channel: the path or URI of a table an archive
    pipeline writes, as clients and executors reach it. The realm never looks there."""
    topics: tuple[str, ...] = ()
    """Topics of MQTT whose messages it takes; a level in braces is a property (SEM M12)."""
    payload: Literal["bytes", "json"] = "bytes"
    """What these carry: anything, or JSON objects, whose fields are properties (SEM M14)."""
    storage: Storage = Storage()


def attributes_of(kind: Literal["channel", "queue"]) -> frozenset[str]:
    """Names of the attributes of ``Definition`` that users give to a store of this kind."""
    of_queues, of_channels = {"max_deliveries", "backoff"}, {"archive", "topics", "payload"}
    foreign = of_queues if kind == "channel" else of_channels
    return frozenset(Definition.__struct_fields__) - {"kind", *foreign}
