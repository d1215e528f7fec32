"""Bodies: from events or from column lists to one Arrow record batch."""

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
from penstock_core.vocabulary.errors import InvalidEvent

Headers = Mapping[str, Any]

_SCHEMAS_MAX: Final = 1024
_schemas: dict[tuple[object, ...], tuple[pa.Schema, pa.StructType | None]] = {}
"""Schemas met before; the type that gave the key its id is held, so the id stays its own."""


def body_of(events: Sequence[Event]) -> pa.RecordBatch:
    """The body for events, in their order. Received events can be published again."""
    if not events:
        raise InvalidEvent("there are no events to publish; give at least one")
    if set(map(type, events)) != {Event}:
        for index, event in enumerate(events):
            if not isinstance(event, Event):
                raise InvalidEvent(f"item {index} is {type(event).__name__}; pass penstock.Event")
    if any(map(_ROWS, events)) or list(map(_OPTIONS, events)).count(NO_OPTIONS) < len(events):
        return _body_of_any(events)
    # A list of the values of each attribute, made in C: a list of calls takes twice as long.
    return body_of_columns(
        list(map(_DATA, events)), list(map(_TAG, events)), list(map(_PROPERTIES, events))
    )


_ROWS = attrgetter("_rows")
_OPTIONS = attrgetter("_options")
_DATA = attrgetter("_data")
_TAG = attrgetter("_tag")
_PROPERTIES = attrgetter("_properties")


def _body_of_any(events: Sequence[Event]) -> pa.RecordBatch:
    """The body for events some of which were received, or have options."""
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
    """Without what the realm stamped on a received event."""
    properties = event.properties
    if event._rows is None or DICTIONARY not in properties:
        return properties
    return {name: value for name, value in properties.items() if name != DICTIONARY}


def _own_priority(event: Event) -> int | None:
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
    """The body for lists that are columns already, one item an event; None: not used.
    ``properties`` may be Arrow columns, too."""
    columns: dict[str, pa.Array] = {}
    if tags is not None and tags.count(None) < len(tags):
        columns["tag"] = _tags(tags)
    if any(datas) or not datas:
        columns["data"] = _data(datas)
    found = _properties(properties)
    if found is not None and found.properties is not None:
        columns["properties"] = found.properties
    if headers is not None and any(headers):
        columns["headers"] = _header_struct(headers)
    _add_options(columns, ttls, persistents, priorities=priorities, transients=transients)
    _add_times(columns, deliver_ats)
    if deltas is not None and any(deltas):
        columns["delta"] = _column("delta", deltas, _is_flag, wanted="a bool")
    if found is not None:
        for name in ("sparse", "nulls", "more"):
            array = getattr(found, name)
            if array is not None:
                columns[name] = array
    if not columns:  # a batch without columns has no rows
        columns["data"] = array_of(datas, pa.binary())
    return _batch(columns, len(datas), None if found is None else found.plan)


def _properties(
    given: Sequence[Properties | None] | PropertyColumns | None,
) -> PropertyColumns | None:
    if given is None or isinstance(given, PropertyColumns):
        return given
    return property_columns(given)


def _add_options(
    columns: dict[str, pa.Array],
    ttls: Sequence[int | None] | None,
    persistents: Sequence[bool | None] | None,
    priorities: Sequence[int | None] | None,
    transients: Sequence[bool | None] | None,
) -> None:
    if ttls is not None and any(ttls):
        for index, ttl in enumerate(ttls):
            _checked(index, check_ttl, ttl or 0)
        columns["ttl"] = pa.array([ttl or None for ttl in ttls], pa.int64())
    if persistents is not None and False in persistents:
        columns["persistent"] = _column(
            "persistent", persistents, _is_flag, wanted="a bool or None"
        )
    if priorities is not None and priorities.count(None) < len(priorities):
        for index, priority in enumerate(priorities):
            _checked(index, check_priority, priority)
        columns["priority"] = pa.array(priorities, pa.int8())
    if transients is not None and any(transients):
        columns["transient"] = _column("transient", transients, _is_flag, wanted="a bool or None")


def _add_times(columns: dict[str, pa.Array], deliver_ats: Sequence[datetime | None] | None) -> None:
    if deliver_ats is not None and any(deliver_ats):
        for index, deliver_at in enumerate(deliver_ats):
            if deliver_at is not None:
                _checked(index, moment, deliver_at)
        columns["deliver_at"] = pa.array(deliver_ats, UTC_MICROSECONDS)


def _checked(index: int, check: Callable[[object], object], value: object) -> None:
    try:
        check(value)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {index}: {error}") from None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _column(
    name: str, values: Sequence[Any], allowed: Callable[[object], bool], wanted: str
) -> pa.Array:
    try:
        return pa.array(values, FIELDS[name].type)
    except (TypeError, ValueError, pa.ArrowException) as error:
        for index, value in enumerate(values):
            if value is not None and not allowed(value):
                raise InvalidEvent(f"event {index}: {name} {value!r} is not {wanted}") from None
        raise InvalidEvent(f"{name}: {error}") from None


def _tags(tags: Sequence[str | None]) -> pa.StringArray:
    if len(tags) <= FEW and set(map(type, tags)) == {str}:
        try:
            return array_of(tags, pa.string())
        except UnicodeEncodeError as error:
            raise InvalidEvent(f"tag: {error}") from None
    return _column("tag", tags, _is_text, wanted="a string or None")


def _data(datas: Sequence[bytes]) -> pa.BinaryArray:
    if set(map(type, datas)) - {bytes}:
        datas = [_data_of(index, data) for index, data in enumerate(datas)]
    array = array_of(datas, pa.binary())
    if isinstance(array, pa.ChunkedArray):
        raise InvalidEvent("the events of one batch hold more than 2 GiB; publish fewer at once")
    return array


def _data_of(index: int, data: object) -> bytes:
    try:
        return event_data(data)
    except InvalidEvent as error:
        raise InvalidEvent(f"event {index}: {error}") from None


def _header_struct(rows: Sequence[Headers | None]) -> pa.StructArray:
    used: dict[str, list[Any]] = {}
    for index, row in enumerate(rows):
        for name, value in (row or {}).items():
            if name not in HEADERS:
                raise InvalidEvent(
                    f"event {index}: no header is named {name!r}; there are {', '.join(HEADERS)}"
                )
            if name not in used:
                used[name] = [None] * len(rows)
            used[name][index] = _header(index, name, value)
    arrays = [pa.array(values, HEADERS[name]) for name, values in used.items()]
    return pa.StructArray.from_arrays(
        arrays, fields=[pa.field(name, HEADERS[name]) for name in used]
    )


def _header(index: int, name: str, value: Any) -> Any:
    kind = HEADERS[name]
    if value is None:
        return None
    if kind == UTC_MICROSECONDS:
        if isinstance(value, datetime) and value.utcoffset() is not None:
            return value
        wanted = "a datetime with a time zone"
    elif kind == pa.int8():
        if type(value) is int and -128 <= value < 128:
            return value
        wanted = "a whole number from -128 to 127"
    else:
        if isinstance(value, str):
            return value
        wanted = "a string"
    raise InvalidEvent(f"event {index}: header {name} {value!r} is not {wanted}")


def _batch(columns: dict[str, pa.Array], count: int, plan: pa.StructType | None) -> pa.RecordBatch:
    for name, array in columns.items():
        if len(array) != count:
            raise InvalidEvent(f"{name} has {len(array)} items for {count} events")
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=_schema(columns, plan))


def _schema(columns: dict[str, pa.Array], plan: pa.StructType | None) -> pa.Schema:
    if "headers" in columns or ("properties" in columns and plan is None):
        return _new_schema(columns)
    key = (id(plan), *columns)
    known = _schemas.get(key)
    if known is None:
        if len(_schemas) >= _SCHEMAS_MAX:
            _schemas.clear()
        known = _schemas[key] = (_new_schema(columns), plan)
    return known[0]


def _new_schema(columns: dict[str, pa.Array]) -> pa.Schema:
    return pa.schema(
        [FIELDS.get(name) or pa.field(name, array.type) for name, array in columns.items()]
    )
