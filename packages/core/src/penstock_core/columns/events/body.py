"""Bodies: one Arrow record batch from events or from lists of column values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.events.event import (
    NO_OPTIONS,
    Event,
    check_priority,
    check_ttl,
    event_data,
    moment,
)
from penstock_core.columns.schema.arrays import FEW, array_of
from penstock_core.columns.schema.layout import DICTIONARY, FIELDS, HEADERS, UTC_MICROSECONDS
from penstock_core.columns.schema.properties import Properties, PropertyColumns, property_columns
from penstock_core.columns.schema.schema_cache import FieldsCache
from penstock_core.vocabulary.errors import InvalidEvent

Headers = Mapping[str, Any]

_SCHEMAS_MAX: Final = 1024
"""Maximum number of cached schemas."""
_SCHEMAS_FIELDS_MAX: Final = 16_384
"""Maximum number of property fields in all cached schemas, not counting the newest schema."""
_schemas: FieldsCache[tuple[object, ...], tuple[pa.Schema, pa.StructType | None]] = FieldsCache(
    _SCHEMAS_MAX, _SCHEMAS_FIELDS_MAX
)
"""Schemas by the ``id()`` of their property type and their column names. An entry also references
that type, so that its id is not reused for another object."""


def body_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Return the body for events, in their order. Received events can be published again."""
    if not events:
        raise InvalidEvent("the list of events is empty; publish at least one")
    # Subclasses, such as the events that a client receives, are rare and checked one by one.
    if set(map(type, events)) != {Event}:
        for index, event in enumerate(events):
            if not isinstance(event, Event):
                raise InvalidEvent(f"item {index} is {type(event).__name__}; pass penstock.Event")
    if any(map(_ROWS, events)) or list(map(_OPTIONS, events)).count(NO_OPTIONS) < len(events):
        return _body_of_any(events)
    # map() with attrgetter collects attributes in C; a comprehension takes twice as long.
    return body_of_columns(
        list(map(_DATA, events)), list(map(_TAG, events)), list(map(_PROPERTIES, events))
    )


_ROWS = attrgetter("_rows")
_OPTIONS = attrgetter("_options")
_DATA = attrgetter("_data")
_TAG = attrgetter("_tag")
_PROPERTIES = attrgetter("_properties")


def _body_of_any(events: Sequence[Event]) -> pa.RecordBatch:
    """Return the body for events if some of them were received or have options."""
    return body_of_columns(
        [event.data for event in events],
        [event.tag for event in events],
        [_own_properties(event) for event in events],
        headers=[event.headers for event in events],
        ttls=[event.ttl for event in events],
        persistents=[event.persistent for event in events],
        priorities=[_own_priority(event) for event in events],
        transients=[event.transient for event in events],
        deliver_ats=[event.deliver_at for event in events],
        deltas=[event.is_delta for event in events],
    )


def _own_properties(event: Event) -> Properties:
    """Return the properties of an event without the realm's stamp on a received event."""
    properties = event.properties
    if event._rows is None or DICTIONARY not in properties:
        return properties
    return {name: value for name, value in properties.items() if name != DICTIONARY}


def _own_priority(event: Event) -> int | None:
    """Return the priority that was set or received; None for a new event without one."""
    return event._options.priority if event._rows is None else event.priority


def body_of_columns(
    datas: Sequence[bytes],
    tags: Sequence[str | None] | None = None,
    properties: Sequence[Properties | None] | PropertyColumns | None = None,
    *,
    headers: Sequence[Headers | None] | None = None,
    ttls: Sequence[int | None] | None = None,
    persistents: Sequence[bool | None] | None = None,
    priorities: Sequence[int | None] | None = None,
    transients: Sequence[bool | None] | None = None,
    deliver_ats: Sequence[datetime | None] | None = None,
    deltas: Sequence[bool] | None = None,
) -> pa.RecordBatch:
    """Return the body for lists with one item per event, each of which is a column.

    None instead of a list means that no event has this part. ``properties`` may be Arrow columns.
    Raises :class:`InvalidEvent`.
    """
    columns: dict[str, pa.Array] = {}
    if tags is not None and tags.count(None) < len(tags):
        columns["tag"] = _tags(tags)
    if any(datas) or not datas:
        columns["data"] = _data(datas)
    property_arrays = _properties(properties)
    if property_arrays is not None and property_arrays.properties is not None:
        columns["properties"] = property_arrays.properties
    if headers is not None and any(headers):
        columns["headers"] = _header_struct(headers)
    _add_options(columns, ttls, persistents, priorities=priorities, transients=transients)
    _add_times(columns, deliver_ats)
    if deltas is not None and any(deltas):
        columns["delta"] = _column("delta", deltas, _is_flag, expected="a bool")
    if property_arrays is not None:
        for name in ("sparse", "nulls", "more"):
            array = getattr(property_arrays, name)
            if array is not None:
                columns[name] = array
    if not columns:  # a batch without columns would have no rows
        columns["data"] = array_of(datas, pa.binary())
    return _batch(columns, len(datas), None if property_arrays is None else property_arrays.plan)


def _properties(
    properties: Sequence[Properties | None] | PropertyColumns | None,
) -> PropertyColumns | None:
    if properties is None or isinstance(properties, PropertyColumns):
        return properties
    return property_columns(properties)


def _add_options(
    columns: dict[str, pa.Array],
    ttls: Sequence[int | None] | None,
    persistents: Sequence[bool | None] | None,
    priorities: Sequence[int | None] | None,
    transients: Sequence[bool | None] | None,
) -> None:
    """Add the columns of those options that some event sets. Raises :class:`InvalidEvent`."""
    if ttls is not None and any(ttls):
        for index, ttl in enumerate(ttls):
            _check_value(index, check_ttl, ttl or 0)
        columns["ttl"] = pa.array([ttl or None for ttl in ttls], pa.int64())
    if persistents is not None and False in persistents:
        columns["persistent"] = _column(
            "persistent", persistents, _is_flag, expected="a bool or None"
        )
    if priorities is not None and priorities.count(None) < len(priorities):
        for index, priority in enumerate(priorities):
            _check_value(index, check_priority, priority)
        columns["priority"] = pa.array(priorities, pa.int8())
    if transients is not None and any(transients):
        columns["transient"] = _column("transient", transients, _is_flag, expected="a bool or None")


def _add_times(columns: dict[str, pa.Array], deliver_ats: Sequence[datetime | None] | None) -> None:
    if deliver_ats is not None and any(deliver_ats):
        for index, deliver_at in enumerate(deliver_ats):
            if deliver_at is not None:
                _check_value(index, moment, deliver_at)
        columns["deliver_at"] = pa.array(deliver_ats, UTC_MICROSECONDS)


def _check_value(index: int, check: Callable[[object], object], value: object) -> None:
    """Run a check of a value, and add the index of its event to the error."""
    try:
        check(value)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {index}: {error}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _column(
    name: str, values: Sequence[Any], allowed: Callable[[object], bool], expected: str
) -> pa.Array:
    """Return the column of an event field. Raises :class:`InvalidEvent`, which names the first
    value that is not ``allowed`` and what is ``expected``."""
    try:
        return pa.array(values, FIELDS[name].type)
    except (TypeError, ValueError, pa.ArrowException) as error:
        # The values are searched only after a failure, because nearly all batches are valid.
        for index, value in enumerate(values):
            if value is not None and not allowed(value):
                raise InvalidEvent(f"event {index}: {name} {value!r} is not {expected}") from None
        raise InvalidEvent(f"{name}: {error}") from None


def _tags(tags: Sequence[str | None]) -> pa.StringArray:
    """Return the column of tags. Raises :class:`InvalidEvent`."""
    if len(tags) <= FEW and set(map(type, tags)) == {str}:
        try:
            return array_of(tags, pa.string())
        except UnicodeEncodeError as error:
            raise InvalidEvent(f"tag: {error}") from None
    return _column("tag", tags, _is_text, expected="a string or None")


def _data(datas: Sequence[bytes]) -> pa.BinaryArray:
    """Return the column ``data``. Raises :class:`InvalidEvent` for values that are not bytes-like,
    or too large for one batch."""
    if set(map(type, datas)) - {bytes}:
        datas = [_data_of(index, data) for index, data in enumerate(datas)]
    array = array_of(datas, pa.binary())
    # Arrow divides values into chunks if their offsets exceed 32 bits.
    if isinstance(array, pa.ChunkedArray):
        raise InvalidEvent("the events of one batch hold more than 2 GiB; publish fewer at once")
    return array


def _data_of(index: int, data: object) -> bytes:
    try:
        return event_data(data)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {index}: {error}") from None


def _header_struct(rows: Sequence[Headers | None]) -> pa.StructArray:
    """Return the column ``headers``, with a field for each header in use."""
    used: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        for name, value in (row or {}).items():
            if name not in HEADERS:
                raise InvalidEvent(
                    f"event {index}: unknown header {name!r}; allowed are {', '.join(HEADERS)}"
                )
            if name not in used:
                used[name] = [None] * len(rows)
            used[name][index] = _header(index, name, value)
    arrays = [pa.array(values, HEADERS[name]) for name, values in used.items()]
    return pa.StructArray.from_arrays(
        arrays, fields=[pa.field(name, HEADERS[name]) for name in used]
    )


def _header(index: int, name: str, value: Any) -> Any:
    """Return a valid header value. Raises :class:`InvalidEvent` with the expected type."""
    kind = HEADERS[name]
    if value is None:
        return None
    if kind == UTC_MICROSECONDS:
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return value
        expected = "a datetime with a time zone"
    elif kind == pa.int8():
        if type(value) is int and -128 <= value < 128:
            return value
        expected = "a whole number from -128 to 127"
    else:
        if isinstance(value, str):
            return value
        expected = "a string"
    raise InvalidEvent(f"event {index}: header {name} {value!r} is not {expected}")


def _batch(columns: dict[str, pa.Array], count: int, plan: pa.StructType | None) -> pa.RecordBatch:
    """Return the batch of these columns. Raises :class:`InvalidEvent` if one does not have
    ``count`` values."""
    for name, array in columns.items():
        if len(array) != count:
            raise InvalidEvent(f"{name} has {len(array)} items for {count} events")
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=_schema(columns, plan))


def _schema(columns: dict[str, pa.Array], plan: pa.StructType | None) -> pa.Schema:
    """Return the schema of the columns, cached by the identity of the property type."""
    if "headers" in columns or ("properties" in columns and plan is None):
        return _new_schema(columns)
    # Hashing an Arrow struct type visits all its fields; hashing its id does not.
    key = (id(plan), *columns)
    cached = _schemas.get(key)
    if cached is None:
        # The entry keeps the plan alive, so that no other object gets its id.
        cached = (_new_schema(columns), plan)
        _schemas.add(key, cached, 0 if plan is None else plan.num_fields)
    return cached[0]


def _new_schema(columns: dict[str, pa.Array]) -> pa.Schema:
    return pa.schema(
        [FIELDS.get(name) or pa.field(name, array.type) for name, array in columns.items()]
    )
