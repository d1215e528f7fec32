"""JSON documents of events: one object per event, in the same form for output and input.

JSON has no bytes, times, NaN or infinity. Such a property is written as base64, as text or as null,
and the field ``types`` names its type: it maps the JSON Pointer of a value inside the properties
(RFC 6901) to one of `TYPES`. Reading a document back restores the values and types of the event
(SEM E2).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock_core.vocabulary.definitions import PRIORITY_DEFAULT
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent

if TYPE_CHECKING:
    from penstock_core.columns.events.event import Event
    from penstock_core.columns.protobuf import Messages

_SET_BY_REALM: Final = frozenset(("event_id", "published", "redelivery_count", "origin", "channel"))
"""Fields of a document that the realm sets; they are ignored in input."""
TYPES: Final = ("time", "bytes", "nan", "inf", "-inf")
"""The types that ``types`` may name. The last three are shown as null."""
_DEFAULTS: Final[dict[str, Any]] = {
    "is_delta": False,
    "ttl": 0,
    "priority": PRIORITY_DEFAULT,
    "persistent": True,
    "headers": {},
    "redelivery_count": 0,
    "origin": None,
}
"""Fields that a document omits if they have these values."""
_PLAIN: Final = (str, int, bool, type(None))
"""Types of values that JSON represents without an entry in ``types``."""


def document_of(event: Event, messages: Messages | None = None) -> dict[str, Any]:
    """Return the JSON object that ``--format json`` prints for an event.

    Data that is not text is base64. A message whose type is in ``messages`` is an object.
    """
    document: dict[str, Any] = {"event_id": event.event_id, "published": event.published}
    if event.tag is not None:
        document["tag"] = event.tag
    if (message := message_in(event, messages)) is not None:
        document["message"] = message
    else:
        try:
            document["data"] = event.data.decode()
        except UnicodeDecodeError:
            document["data_base64"] = event.data
    document["properties"] = event.properties
    if types := types_of(event.properties):
        document["types"] = types
    options = {
        "is_delta": event.is_delta,
        "ttl": event.ttl,
        "priority": event.priority,
        "persistent": event.persistent,
        "headers": event.headers,
        "redelivery_count": event.redelivery_count,
        "origin": event.origin,
    }
    document.update((name, value) for name, value in options.items() if value != _DEFAULTS[name])
    return document


def types_of(properties: dict[str, Any]) -> dict[str, str]:
    """Return the type names of values that JSON cannot represent, by JSON Pointer. Empty for most
    events."""
    types: dict[str, str] = {}
    for name, value in properties.items():
        if type(value) not in _PLAIN:
            types.update(_types_below(f"/{_pointer_token(name)}", value))
    return types


def _types_below(pointer: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the JSON Pointers and types of all values at or inside a value."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield pointer, str(value)
    elif isinstance(value, bytes):
        yield pointer, "bytes"
    elif isinstance(value, datetime):
        yield pointer, "time"
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _types_below(f"{pointer}/{_pointer_token(name)}", inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _types_below(f"{pointer}/{index}", inner)


def _pointer_token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _typed(properties: dict[str, Any], types: Any) -> dict[str, Any]:
    """Return the properties after converting the values that ``types`` names.

    This function changes the properties, and lists and dictionaries inside them. Raises
    ``InvalidArgument``.
    """
    if not isinstance(types, dict):
        raise InvalidArgument(
            f'\'types\' is {str(types)[:40]!r}; it must be an object such as {{"/at": "time"}}'
        )
    for pointer, kind in types.items():
        if kind not in TYPES:
            raise InvalidArgument(
                f"type {str(kind)[:40]!r} of {pointer[:80]!r} is unknown; allowed are "
                f"{', '.join(TYPES)}"
            )
        parent, key = _parent_and_key(properties, pointer)
        parent[key] = _typed_value(pointer, kind, parent[key])
    return properties


def _parent_and_key(properties: dict[str, Any], pointer: str) -> tuple[Any, Any]:
    """Return the dictionary or list that contains the value of a JSON Pointer, and the key of the
    value in it. Raises ``InvalidArgument`` if the properties have no such value."""
    start, *tokens = pointer.split("/")
    parent: Any = None
    key: Any = None
    value: Any = properties
    for token in tokens:
        parent, key = value, token.replace("~1", "/").replace("~0", "~")
        # Nine digits are more than any list index needs; longer ones would be slow to convert.
        if isinstance(parent, list) and key.isdecimal() and int(key[:9]) < len(parent):
            key = int(key[:9])
        elif not isinstance(parent, dict) or key not in parent:
            parent = None
            break
        value = parent[key]
    if start or parent is None:
        raise InvalidArgument(
            f"'types' names {pointer[:80]!r}; the properties have no such value; write "
            '"/name" for a property, "/name/0/inner" for a value inside a list or an object'
        )
    return parent, key


def _typed_value(pointer: str, kind: str, value: Any) -> Any:
    """Return a value of a JSON document as the type ``kind``. Raises ``InvalidArgument``."""
    if kind == "time":
        return _moment(pointer, value)
    if kind == "bytes":
        return _base64(pointer, value)
    if value is not None:
        raise InvalidArgument(f"{pointer[:80]!r} is {kind} by its type, so its value must be null")
    return float(kind)


def message_in(event: Event, messages: Messages | None) -> dict[str, Any] | None:
    """Return the decoded message of the event, or None if it has none or it cannot be decoded.

    The caller then shows the data instead.
    """
    if messages is None or not messages.has(event):
        return None
    try:
        return messages.decode(event)
    except InvalidEvent:
        return None


def event_of(line: bytes | str | dict[str, Any], messages: Messages | None = None) -> Event:
    """Return the event described by a line of JSON or by a parsed object.

    An object with ``properties`` has the form of :func:`document_of`; the fields set by the realm
    (id, time, origin, stamp) are ignored. In an object without ``properties``, every field that is
    not a part of an event becomes a property. Raises ``InvalidArgument`` or ``InvalidEvent``.
    """
    document = line if isinstance(line, dict) else _decoded(line)
    if not isinstance(document, dict):
        raise InvalidArgument(f"an event must be an object, {{...}}, not {str(document)[:40]!r}")
    has_properties = isinstance(document.get("properties"), dict)
    parts = _parts()
    part_names = parts if has_properties else parts - {"message", "transient", "types"}
    fields = {name: value for name, value in document.items() if name in part_names}
    others = {name: value for name, value in document.items() if name not in part_names}
    if has_properties:
        unknown = sorted(others.keys() - _SET_BY_REALM)
        if unknown:
            raise InvalidArgument(
                f"{', '.join(unknown)}: unknown next to 'properties'; an event has "
                f"{', '.join(sorted(parts))}"
            )
        others = fields.pop("properties")
        if (types := fields.pop("types", None)) is not None:
            others = _typed(others, types)
        # Only after the types are applied, because they name the times in the stamp.
        others.pop(_stamp(), None)
    for name in _times() & fields.keys():
        if fields[name] is not None:
            fields[name] = _time(name, fields[name])
    if isinstance(fields.get("headers"), dict):
        fields["headers"] = _headers(fields["headers"])
    if "message" in fields:
        return _message(fields, others, messages)
    return _event(fields, others)


def _decoded(line: bytes | str) -> Any:
    """Decode a JSON document. Raises ``InvalidArgument``."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        if reason == "Input data was truncated":
            reason = "it ends too early, or a string in it has half of a surrogate pair"
        raise InvalidArgument(f"not JSON: {reason}") from None


def _message(
    fields: dict[str, Any], properties: dict[str, Any], messages: Messages | None
) -> Event:
    """Return an event with a message of the type named by the header ``message_type``."""
    kind = (fields.get("headers") or {}).get("message_type")
    if kind is None or messages is None:
        lacks = "the header message_type" if kind is None else "descriptors on the channel"
        raise InvalidArgument(f"'message' needs {lacks}; put other content into 'data'")
    for name in ("data", "data_base64"):
        if name in fields:
            raise InvalidArgument(f"'message' and {name!r}; give only one of them")
    return messages.event(kind, fields.pop("message"), properties=properties, **fields)


def _event(fields: dict[str, Any], properties: dict[str, Any]) -> Event:
    """Return the event with these fields and properties. Raises ``InvalidArgument``,
    ``InvalidEvent``."""
    from penstock_core.columns.events.event import Event

    data = _data(fields.pop("data", ""), fields.pop("data_base64", None))
    if "properties" in fields:
        raise InvalidArgument("'properties' must be an object")
    return Event(data, properties=properties, **fields)


def _stamp() -> str:
    """Return the name of the property with the realm's stamp: publisher, host, time and id."""
    # Arrow is slow to load, so import it only on use.
    from penstock_core.columns.schema.layout import DICTIONARY

    return DICTIONARY


@cache
def _parts() -> frozenset[str]:
    """Return the document fields that are parts of an event, not properties."""
    from penstock_core.columns.schema.layout import SETTABLE_FIELDS  # imports Arrow

    others = ("data_base64", "properties", "headers", "is_delta", "message", "transient", "types")
    return frozenset((*SETTABLE_FIELDS, *others))


@cache
def _times() -> frozenset[str]:
    """Return the event fields that are times."""
    from penstock_core.columns.schema.layout import BODY, UTC_MICROSECONDS  # imports Arrow

    return frozenset(name for name, kind in BODY.items() if kind == UTC_MICROSECONDS)


@cache
def _header_times() -> frozenset[str]:
    """Return the headers that are times."""
    from penstock_core.columns.schema.layout import HEADERS, UTC_MICROSECONDS  # imports Arrow

    return frozenset(name for name, kind in HEADERS.items() if kind == UTC_MICROSECONDS)


def _headers(headers: dict[str, Any]) -> dict[str, Any]:
    """Return the headers of a document, with those that are times as datetimes."""
    return {
        name: _time(name, value) if value is not None and name in _header_times() else value
        for name, value in headers.items()
    }


def _time(name: str, value: Any) -> datetime:
    """Return a time; a value without a time zone counts as UTC. Raises ``InvalidArgument``."""
    moment = _moment(name, value)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _moment(name: str, value: Any) -> datetime:
    """Return a datetime, with a time zone if the value has one. Raises ``InvalidArgument``."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f"{name!r} is {str(value)[:40]!r}; it must be a time such as "
            "2026-05-04T12:00:00, or seconds since 1970"
        ) from None


def _data(text: Any, encoded: Any) -> bytes:
    """Return an event's data from the fields ``data`` and ``data_base64`` of a document."""
    if encoded is not None:
        return _base64("data_base64", encoded)
    if text is None:
        return b""
    if not isinstance(text, str):
        raise InvalidArgument(f"'data' is {str(text)[:40]}; it must be a string")
    return text.encode()


def _base64(name: str, text: Any) -> bytes:
    """Decode the base64 text of the field ``name``. Raises ``InvalidArgument``."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise InvalidArgument(f"{name[:80]!r} is not base64: {error}") from None
