"""Events as JSON, one object per event. Output and input have one form."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.vocabulary.errors import InvalidArgument, InvalidEvent

if TYPE_CHECKING:
    from penstock.columns.events.event import Event
    from penstock.columns.protobuf import Messages

_GIVEN_BY_REALM: Final = frozenset(
    ("event_id", "published", "redelivery_count", "origin", "channel")
)


def document_of(event: Event, messages: Messages | None = None) -> dict[str, Any]:
    """The JSON object that ``--format json`` prints for an event.

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
    if event.is_delta:
        document["is_delta"] = True
    if event.headers:
        document["headers"] = event.headers
    if event.redelivery_count:
        document["redelivery_count"] = event.redelivery_count
    if event.origin is not None:
        document["origin"] = event.origin
    return document


def message_in(event: Event, messages: Messages | None) -> dict[str, Any] | None:
    """The decoded message of the event; None when there is none, or it cannot be decoded.

    The caller then shows the data instead.
    """
    if messages is None or not messages.has(event):
        return None
    try:
        return messages.decode(event)
    except InvalidEvent:
        return None


def event_of(line: bytes | str | dict[str, Any], messages: Messages | None = None) -> Event:
    """The event that a line of JSON, or an already parsed object, describes.

    An object with ``properties`` has the form that :func:`document_of` makes; the fields set by
    the realm (id, time, origin, stamp) are ignored. In an object without ``properties``, every
    field that is not a part of an event is a property.
    Raises ``InvalidArgument`` or ``InvalidEvent``.
    """
    document = line if isinstance(line, dict) else _decoded(line)
    if not isinstance(document, dict):
        raise InvalidArgument(f"an event must be an object, {{...}}, not {str(document)[:40]!r}")
    is_whole = isinstance(document.get("properties"), dict)
    parts = _parts()
    known = parts if is_whole else parts - {"message", "transient"}
    fields = {name: value for name, value in document.items() if name in known}
    others = {name: value for name, value in document.items() if name not in known}
    if is_whole:
        strange = sorted(others.keys() - _GIVEN_BY_REALM)
        if strange:
            raise InvalidArgument(
                f"{', '.join(strange)} beside 'properties'; an event has {', '.join(sorted(parts))}"
            )
        others = fields.pop("properties")
        others.pop(_stamp(), None)
    for name in _times() & fields.keys():
        if fields[name] is not None:
            fields[name] = _time(name, fields[name])
    if "message" in fields:
        return _message(fields, others, messages)
    return _event(fields, others)


def _decoded(line: bytes | str) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise InvalidArgument(f"not JSON: {reason}") from None


def _message(
    fields: dict[str, Any], properties: dict[str, Any], messages: Messages | None
) -> Event:
    """An event with a message of the type that the header ``message_type`` names."""
    kind = (fields.get("headers") or {}).get("message_type")
    if kind is None or messages is None:
        lacks = "the header message_type" if kind is None else "descriptors on the channel"
        raise InvalidArgument(f"'message' needs {lacks}; put other content into 'data'")
    for name in ("data", "data_base64"):
        if name in fields:
            raise InvalidArgument(f"'message' and {name!r}; give only one of them")
    return messages.event(kind, fields.pop("message"), properties=properties, **fields)


def _event(fields: dict[str, Any], properties: dict[str, Any]) -> Event:
    from penstock.columns.events.event import Event

    data = _data(fields.pop("data", ""), fields.pop("data_base64", None))
    if "properties" in fields:
        raise InvalidArgument("'properties' must be an object")
    return Event(data, properties=properties, **fields)


def _stamp() -> str:
    """The name of the property in which a realm stamps publisher, host, time and id."""
    from penstock.columns.schema.layout import DICTIONARY  # brings Arrow

    return DICTIONARY


@cache
def _parts() -> frozenset[str]:
    """The fields of a document that are no properties."""
    from penstock.columns.schema.layout import GIVEN  # brings Arrow

    others = ("data_base64", "properties", "headers", "is_delta", "message", "transient")
    return frozenset((*GIVEN, *others))


@cache
def _times() -> frozenset[str]:
    """The fields that are times."""
    from penstock.columns.schema.layout import BODY, UTC_MICROSECONDS  # brings Arrow

    return frozenset(name for name, kind in BODY.items() if kind == UTC_MICROSECONDS)


def _time(name: str, given: Any) -> datetime:
    try:
        if isinstance(given, int | float) and not isinstance(given, bool):
            return datetime.fromtimestamp(given, UTC)
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(given)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f"{name!r} is {str(given)[:40]!r}; it must be a time such as "
            "2026-05-04T12:00:00, or seconds since 1970"
        ) from None


def _data(text: Any, encoded: Any) -> bytes:
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgument(f"'data_base64' is not base64: {error}") from None
    if text is None:
        return b""
    if not isinstance(text, str):
        raise InvalidArgument(f"'data' is {str(text)[:40]}; it must be a string")
    return text.encode()
