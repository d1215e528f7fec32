"""Types of the attributes of channels, queues and durables, for type checkers, and what a client
says of them before it asks the realm.

The realm checks the values (:mod:`penstock.client.handles.definitions`); a test compares the names
here with those of ``Definition`` and of the core's ``DurableAttributes``, where each is explained.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Required, TypeAlias, TypedDict, TypeVar

from msgspec.structs import fields

from penstock.client.connection.arguments import Duration, milliseconds
from penstock.client.handles.definitions import backoff_of
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])

ChannelType: TypeAlias = Literal[
    "mixed", "persistent", "reliable", "simple", "transient", "off_heap", "paged"
]
"""Where events are kept, and whether they survive a restart (SEM C1)."""

Engine: TypeAlias = Literal["default", "jms", "merge"]
"""The rules by which events are kept and delivered (SEM J, K)."""

DurableType: TypeAlias = Literal["shared", "serial", "exclusive", "priority", "shared_queued"]
"""Which client of a durable gets which event (SEM D)."""

Payload: TypeAlias = Literal["bytes", "json"]
"""What messages of a channel's topics carry (SEM M14)."""


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
    compression: Literal["none", "zstd", "lz4"]


class BackoffTimes(TypedDict, total=False):
    """How long rolled-back events wait before they come again (SEM D18)."""

    first: Required[int | str | timedelta]
    """The wait after the first failure: milliseconds, a text such as ``"1s"``, or a
    ``timedelta``."""
    factor: float
    """How many times longer each further wait is."""
    most: int | str | timedelta
    """The longest wait."""
    jitter: float
    """The share of a wait, 0 to 1, by which it may be shorter."""
    seed: int


class _Changeable(TypedDict, total=False):
    ttl: int | str | timedelta
    """Milliseconds, a text such as ``"1h"``, or a ``timedelta``."""
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
    topics: str | Sequence[str]
    """Channels only: the topics of MQTT whose messages it takes."""
    payload: Payload
    """Channels only: what these messages carry."""
    max_deliveries: int
    """Queues only: number of rollbacks after which an event is dead."""
    backoff: BackoffTimes | None
    """Queues only: how long a rolled-back event waits; None: not at all."""


class _Fixed(_Changeable, total=False):
    type: ChannelType
    engine: Engine
    keys: Mapping[str, int]
    start_event_id: int


class ChannelAttributes(_Fixed, total=False):
    """Attributes of a new channel (SEM C3)."""

    archive: str
    topics: str | Sequence[str]
    payload: Payload


class QueueAttributes(_Fixed, total=False):
    """Attributes of a new queue (SEM C3, T10, D18)."""

    max_deliveries: int
    backoff: BackoffTimes | None


class NewDurableAttributes(TypedDict, total=False):
    """Attributes of a new durable besides its type, start, selector and persistence (SEM D)."""

    max_deliveries: int
    cluster_wide: bool
    strict_order: bool
    order_by: str
    backoff: BackoffTimes | None
    ack_timeout: Duration


def with_durable_attributes(method: F) -> F:
    """Show each attribute with its default where the signature of ``method`` is asked for, as
    ``help`` and editors do, instead of ``**attributes``."""
    signature = inspect.signature(method)
    *own, _ = signature.parameters.values()
    given = NewDurableAttributes.__annotations__
    each = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=given[field.name].__forward_arg__,
        )
        for field in fields(DurableAttributes)
    ]
    shown = signature.replace(parameters=[*own, *each])
    method.__signature__ = shown  # type: ignore[attr-defined]
    return method


def durable_attributes_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a durable as they are sent. Raises ``InvalidArgument`` for one that no
    durable has, and for a value that cannot be sent."""
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
    sent = dict(given)
    if "backoff" in given:
        sent["backoff"] = backoff_of(given["backoff"])
    if "ack_timeout" in given:
        sent["ack_timeout"] = milliseconds(given["ack_timeout"], "ack_timeout")
    return sent
