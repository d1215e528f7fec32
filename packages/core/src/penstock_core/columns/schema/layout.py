"""The columns of a body and of a stored batch: names, types, meaning.

A *body* is what a publisher sends: an Arrow record batch, one row per event. A *stored* batch
is a body with ``event_id`` and ``published`` prepended. A column is present only where used:

============  =====================  ==========================================================
column        type                   meaning; how null and an absent column are read
============  =====================  ==========================================================
event_id      int64 not null         set by the realm (stored batches only)
published     timestamp[us, UTC]     set by the realm, not null (stored batches only)
tag           string                 null: no tag
data          binary                 never null; absent: all empty
properties    struct                 one field per property and type; see below
headers       struct of HEADERS      null: header not set
ttl           int64                  milliseconds; null or 0: no own TTL
persistent    bool                   null: true
priority      int8                   0..9; null: 4
transient     bool                   null: false
sparse        bool                   null: false; how to read the nulls of the row
nulls         list<string>           paths of the explicit nulls of a sparse row
more          binary                 properties that do not fit columns, as tagged msgpack
origin        struct of ORIGIN       previous store; null: published here (realm only)
deliver_at    timestamp[us, UTC]     earliest delivery; null: immediately (scheduled only)
delta         bool                   null: false; true: changed properties only, see below
============  =====================  ==========================================================

Null against absent key (SEM E2). In a row that is not sparse, a null property is an explicit
null. In a sparse row, a null in a property field, at any depth of structs and also inside
list elements that are structs, means "key absent", unless its path is in ``nulls``. Paths are
``a``, ``a.b``, ``lines[3].sku``; ``.``, ``[``, ``]`` and ``\\`` inside a key are escaped by a
backslash. A null *list element* is always an explicit null. A null ``properties`` struct is
an event without properties.

A delta (SEM K2) has the channel's publish key and the properties that have changed; an absent
property is unchanged. Stored batches that come from a segment or a read have no deltas: all their
rows are merged.

Two types under one name. The first type seen has the plain field name; each further type has
a field of its own, such as ``price::string``, with the metadata ``penstock.name`` = ``price``.
At most one of them is non-null in a row. Readers of tables see integers and floats as one column
(:mod:`penstock_core.columns.schema.number_columns`). Widening (int8 to int64, float32 to float64,
null to anything) stays in one field. The same holds for the fields of structs at any depth.

``more`` (module :mod:`penstock_core.columns.schema.overflow`) has the values that columns cannot
hold: lists of mixed types, dictionaries without any key, and properties beyond
:data:`PROPERTY_COLUMNS_MAX`. In a file it also has properties that few of the file's events have
(module :mod:`penstock_core.columns.files.lean_columns`). A value in ``more`` replaces the value in
the column of the same name.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock_core.bounds import PROPERTY_NAME_CHARACTERS_MAX
from penstock_core.vocabulary.errors import InvalidEvent

UTC_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")

PROPERTY_COLUMNS_MAX: Final = 256
"""Maximum number of leaf columns of one properties struct; further properties are kept in
``more``."""

BODY_ROWS_MAX: Final = 1 << 20
"""Maximum number of events of one body. Columns of nulls take no bytes, so a limit in bytes is not
enough."""

EVENT_BYTES_MIN: Final = 16
"""Smallest size in bytes that counts for an event against limits.

Columns of nulls take no bytes, but their events have ids and times.
"""

RESERVED_PREFIX: Final = "$penstock"
"""Reserved prefix of property names; publishers may not use it."""

DICTIONARY: Final = RESERVED_PREFIX
"""Name of the property that the realm adds on channels that stamp publisher, host, time and id."""

LOGICAL_NAME: Final = b"penstock.name"
"""Field metadata key: the name of the property, if the field has another name."""

PRIORITY_DEFAULT: Final = 4
"""Priority of an event published without one, on a channel without another default."""
PRIORITY_MAX: Final = 9
"""Highest priority of an event."""

HEADERS: Final[dict[str, pa.DataType]] = {
    "message_id": pa.string(),
    "correlation_id": pa.string(),
    "reply_to": pa.string(),
    "type": pa.string(),
    "delivery_mode": pa.int8(),
    "expiration": UTC_MICROSECONDS,
    "timestamp": UTC_MICROSECONDS,
    "user": pa.string(),
    "application_id": pa.string(),
    "message_type": pa.string(),
    "publisher": pa.string(),
    "host": pa.string(),
    "amqp": pa.string(),
    "mqtt": pa.string(),
}
"""Header fields and their types (SEM E3); only fields in use are present.

``amqp`` and ``mqtt`` hold, as JSON, the parts of a message that have no column.
"""

ORIGIN: Final[dict[str, pa.DataType]] = {
    "store": pa.string(),
    "event_id": pa.int64(),
    "published": UTC_MICROSECONDS,
    "cause": pa.string(),
    "at": UTC_MICROSECONDS,
    "durables": pa.list_(pa.string()),
    "redeliveries": pa.int32(),
    "ttl": pa.int64(),
    "path": pa.list_(pa.string()),
}
"""Fields of the previous store of a dead or joined event (SEM E3, T7, L2). Only the realm writes
them.

The ``cause`` of a rejected event is ``rejected: `` followed by the reason.
"""

REASON_CHARACTERS_MAX: Final = 2_000
"""Maximum number of characters of the reason of a rejection that are stored."""
_SHOWN_MAX: Final = 60
"""Number of characters of a long name shown in an error."""
_REASON_FOLLOWS: Final = ": "
"""Separates the cause of a rejection from its reason."""

STAMPED: Final[dict[str, pa.DataType]] = {
    "event_id": pa.int64(),
    "published": UTC_MICROSECONDS,
}
"""The columns that a realm prepends to a body."""

BODY: Final[dict[str, pa.DataType | None]] = {
    "tag": pa.string(),
    "data": pa.binary(),
    "properties": None,
    "headers": None,
    "ttl": pa.int64(),
    "persistent": pa.bool_(),
    "priority": pa.int8(),
    "transient": pa.bool_(),
    "sparse": pa.bool_(),
    "nulls": pa.list_(pa.string()),
    "more": pa.binary(),
    "origin": pa.struct(list(ORIGIN.items())),
    "deliver_at": UTC_MICROSECONDS,
    "delta": pa.bool_(),
}
"""The columns of a body in their order; None for a struct whose fields vary."""

DELIVERY_TIME: Final = "deliver_at"
"""Column with the earliest time of delivery. :mod:`penstock_core.columns.events.delivery_time`
reads it."""

SETTABLE_FIELDS: Final = ("tag", "data", "ttl", "persistent", "priority", "deliver_at")
"""Fields that a publisher may set, except the structs ``properties`` and ``headers``."""

UNSELECTED: Final = frozenset(
    ("data", "nulls", "origin", "ttl", "transient", "sparse", "deliver_at")
)
"""Columns whose values selectors do not read."""

FIELDS: Final[dict[str, pa.Field]] = {
    name: pa.field(name, kind) for name, kind in BODY.items() if kind is not None
}
STAMPED_FIELDS: Final = [pa.field(name, kind, nullable=False) for name, kind in STAMPED.items()]

PROPERTY_TYPES: Final = (
    "bool, int8, int16, int32, int64, float32, float64, string, bytes, datetime, "
    "None, and lists and dictionaries of these"
)
"""The types a property may have (SEM E2), for error messages."""

_ESCAPED = str.maketrans({"\\": "\\\\", ".": "\\.", "[": "\\[", "]": "\\]"})


def key_path(parent: str, key: str) -> str:
    """Return the path of ``key`` in the dictionary at ``parent``; an empty parent is the top."""
    escaped = key.translate(_ESCAPED)
    return f"{parent}.{escaped}" if parent else escaped


def check_property_name(name: object) -> None:
    """Raise :class:`InvalidEvent` unless a published event may have a property of this name."""
    check_stored_name(name)
    assert isinstance(name, str), "check_stored_name() refuses other types"
    if len(name) > PROPERTY_NAME_CHARACTERS_MAX:
        raise InvalidEvent(
            f"property name '{name[:_SHOWN_MAX]}...' has {len(name)} characters; at most "
            f"{PROPERTY_NAME_CHARACTERS_MAX} are allowed; publish the varying part as a value"
        )


def check_stored_name(name: object) -> None:
    """Raise :class:`InvalidEvent` unless a stored event may have a property of this name.

    The name may be longer than allowed in a published event.
    """
    if not isinstance(name, str):
        raise InvalidEvent(f"property name {name!r} is {type(name).__name__}; names are strings")
    if not name:
        raise InvalidEvent("a property name is empty; give it at least one character")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent(f"property name {name!r} is not UTF-8: {error}") from None
    if name.startswith(RESERVED_PREFIX):
        raise InvalidEvent(
            f"property name {name!r} starts with the reserved prefix {RESERVED_PREFIX!r}; rename it"
        )


def with_reason(cause: str, reason: str) -> str:
    """Return the ``cause`` of an origin, with the reason that a client gave."""
    return f"{cause}{_REASON_FOLLOWS}{reason[:REASON_CHARACTERS_MAX]}" if reason else cause


def cause_and_reason(written: str) -> tuple[str, str]:
    """Split the result of :func:`with_reason` into cause and reason."""
    cause, _, reason = written.partition(_REASON_FOLLOWS)
    return cause, reason
