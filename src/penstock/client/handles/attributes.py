"""Types of the attributes of channels, queues and durables, for type checkers.

The realm checks the values (:mod:`penstock.client.handles.definitions`); a test compares the names
here with those of ``Definition``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict

ChannelType: TypeAlias = Literal[
    "mixed", "persistent", "reliable", "simple", "transient", "off_heap", "paged"
]
"""Where events are kept, and whether they survive a restart (SEM C1)."""

Engine: TypeAlias = Literal["default", "jms", "merge"]
"""The rules by which events are kept and delivered (SEM J, K)."""

DurableType: TypeAlias = Literal["shared", "serial", "exclusive", "priority", "shared_queued"]
"""Which client of a durable gets which event (SEM D)."""


class StorageProperties(TypedDict, total=False):
    """Storage properties of a channel or queue (SEM S)."""

    honour_capacity: bool
    sync: Literal["group", "none"]
    sync_each_write: bool
    sync_max_batch_size: int
    sync_batch_time: int
    events_per_spindle: int
    auto_maintenance: bool
    enable_caching: bool
    cache_on_reload: bool
    read_buffer_size: int
    priority: int
    stamp_dictionary: bool


class _Changeable(TypedDict, total=False):
    ttl: int
    capacity: int
    dead_event_store: str
    retain_consumed: bool
    event_ttl: bool
    cluster_wide: bool
    descriptors: Any
    """Bytes of a ``FileDescriptorSet``, a module that ``protoc`` has made, or several."""
    storage: StorageProperties


class EditedAttributes(_Changeable, total=False):
    """Attributes that can be edited (SEM C3)."""

    archive: str
    """Channels only: the table that has what left the channel."""
    max_deliveries: int
    """Queues only: number of rollbacks after which an event is dead."""


class _Fixed(_Changeable, total=False):
    type: ChannelType
    engine: Engine
    keys: Mapping[str, int]
    start_event_id: int


class ChannelAttributes(_Fixed, total=False):
    """Attributes of a new channel (SEM C3)."""

    archive: str


class QueueAttributes(_Fixed, total=False):
    """Attributes of a new queue (SEM C3, T10)."""

    max_deliveries: int
