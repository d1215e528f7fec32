"""Types of the attributes of channels, queues and durables, for type checkers, and what a client
says of them before it asks the realm.

The realm checks the values (:mod:`penstock.client.handles.definitions`); a test compares the names
here with those of ``Definition`` and of the core's ``DurableAttributes``, where each is explained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from msgspec.structs import fields

from penstock.core.vocabulary.errors import InvalidArgument
from penstock.core.vocabulary.messages import DurableAttributes

F = TypeVar("F", bound=Callable[..., Any])

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


class NewDurableAttributes(TypedDict, total=False):
    """Attributes of a new durable besides its type, start, selector and persistence (SEM D)."""

    max_deliveries: int
    cluster_wide: bool
    strict_order: bool
    order_by: str


def with_durable_attributes(method: F) -> F:
    """Show each attribute with its default where the signature of ``method`` is asked for, as
    ``help`` and editors do, instead of ``**attributes``."""
    signature = inspect.signature(method)
    *own, _ = signature.parameters.values()
    each = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=field.type.__name__,
        )
        for field in fields(DurableAttributes)
    ]
    shown = signature.replace(parameters=[*own, *each])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method


def check_durable_attributes(given: Mapping[str, object]) -> None:
    """Raises ``InvalidArgument`` for an attribute that no durable has, and for a value that cannot
    be sent."""
    known = DurableAttributes.__struct_fields__
    if unknown := sorted(given.keys() - {*known}):
        raise InvalidArgument(
            f"no durable attribute {', '.join(unknown)}; there are type, start, selector, "
            f"persistent, {', '.join(known)}"
        )
    limit = given.get("max_deliveries", 0)
    if type(limit) is not int or limit < 0:
        raise InvalidArgument(
            f"max_deliveries is {limit!r}; give a whole number of deliveries, or 0 for no limit"
        )
    lanes = given.get("order_by", "")
    if not isinstance(lanes, str):
        raise InvalidArgument(f"order_by is {lanes!r}; give the name of a property")
