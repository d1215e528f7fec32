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
    """When an acknowledged event is on disk: with its group, or whenever the operating system
    writes it (``none``: survives a crash of the process, but not of the machine)."""
    sync_each_write: bool = False
    """Sync after each publish instead of each group."""
    sync_max_batch_size: int = 1 << 20
    """Bytes at which a group closes; further publishes go into the next group."""
    sync_batch_time: int = 2
    """Milliseconds after which a group closes, even if more publishes wait."""
    events_per_spindle: int = 50_000
    """Number of events in a sealed segment file; 0 means a single file, which maintenance
    rewrites."""
    auto_maintenance: bool = True
    """Rewrite a single file once many of its events have been removed."""
    enable_caching: bool = True
    """Keep files open and their content in memory after reading."""
    cache_on_reload: bool = False
    """Read all files once at start-up."""
    read_buffer_size: int = 1 << 20
    """Maximum number of bytes read for one delivery if files are not kept open
    (``enable_caching``)."""
    priority: int = PRIORITY_DEFAULT
    """Priority of events published without one."""
    stamp_dictionary: bool = False
    """Add publisher, host, time and id as read-only properties under ``$penstock``."""
    compression: Compression = "none"
    """Compression of files of events that are written from now on."""


class Definition(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Attributes of a channel or queue (SEM C3)."""

    type: str = "mixed"
    """The place that keeps events, and whether they survive a restart (SEM C1)."""
    engine: str = "default"
    """The rules by which events are kept and delivered: ``default``, ``jms`` or ``merge``."""
    kind: Literal["channel", "queue", "schedule", "outbox"] = "channel"
    """A queue delivers each event to one reader (SEM Q). Schedules and outboxes belong to the
    realm: their events wait for their time (SEM X4) or for the transfer to the cluster (SEM N9)."""
    ttl: int = 0
    """Longest time that an event stays after its publish, in milliseconds; 0 means no limit
    (SEM T1)."""
    capacity: int = 0
    """Maximum number of events on the channel; 0 means no limit (SEM T3)."""
    dead_event_store: str = ""
    """Channel or queue for events that leave unconsumed by age or capacity (SEM T5)."""
    keys: dict[str, int] = {}
    """Publish keys: for each value of the property only this number of newest events stays
    (SEM K1)."""
    max_deliveries: int = 0
    """Queues: number of deliveries after which a rolled-back event is dead; 0 means no limit
    (SEM T10)."""
    backoff: Backoff | None = None
    """Queues: delays of rolled-back events; None means that they are redelivered without delay
    (SEM D18)."""
    retain_consumed: bool = False
    """Keep events that all durables have acknowledged (SEM D6), as the merge engine always does."""
    event_ttl: bool = False
    """Honour an event's TTL on every type, not only on mixed (SEM T2, extension)."""
    cluster_wide: bool | None = None
    """Whether the store exists on every node of a cluster, which keeps all its events whatever its
    type (SEM C5, N1). None means true in a cluster if the type allows it. Without a cluster, true
    is refused."""
    start_event_id: int = 0
    """Id of the channel's first event (SEM E4)."""
    descriptors: bytes = b""
    """A serialized ``FileDescriptorSet`` with the types of the Protocol Buffers messages in the
    events (SEM P1); empty if events have none."""
    archive: str = ""
    """Path or URI of the table into which an archive pipeline writes events that leave the channel,
    as clients and executors reach it. The realm does not read it."""
    topics: tuple[str, ...] = ()
    """MQTT topics whose messages are published to the channel; a level in braces becomes a property
    (SEM M12)."""
    payload: Literal["bytes", "json"] = "bytes"
    """Payload of the MQTT messages of ``topics``: any bytes, or JSON objects whose fields become
    properties (SEM M14)."""
    storage: Storage = Storage()


def attributes_of(kind: Literal["channel", "queue"]) -> frozenset[str]:
    """Return the names of the attributes of ``Definition`` that users may set for this kind of
    store."""
    only_of_queues, only_of_channels = (
        {"max_deliveries", "backoff"},
        {"archive", "topics", "payload"},
    )
    of_other_kind = only_of_queues if kind == "channel" else only_of_channels
    return frozenset(Definition.__struct_fields__) - {"kind", *of_other_kind}
