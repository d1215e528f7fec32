"""Events as JSON: one object an event, the same going out and coming in."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.cli import given
from penstock.core.errors import InvalidArgument

if TYPE_CHECKING:
    from penstock.columns.event import Event

_FIELDS: Final = frozenset(
    (
        *("data", "data_base64", "tag", "ttl", "priority", "persistent", "deliver_at"),
        *("properties", "headers"),
    )
)
_GIVEN_BY_REALM: Final = frozenset(("event_id", "published", "redelivery_count", "origin"))


def document_of(event: Event) -> dict[str, Any]:
    """What ``--format json`` prints; data that is no text is base64."""
    document: dict[str, Any] = {"event_id": event.event_id, "published": event.published}
    if event.tag is not None:
        document["tag"] = event.tag
    try:
        document["data"] = event.data.decode()
    except UnicodeDecodeError:
        document["data_base64"] = event.data
    document["properties"] = event.properties
    if event.headers:
        document["headers"] = event.headers
    if event.redelivery_count:
        document["redelivery_count"] = event.redelivery_count
    if event.origin is not None:
        document["origin"] = event.origin
    return document


def event_of(line: bytes | str) -> Event:
    """The event in a line of JSON.

    With an object ``properties`` it is what :func:`document_of` makes; what the realm gives (id,
    time, origin, a stamp) is left out. Without, every field that is not a part of an event is a
    property.
    Raises ``InvalidArgument``, ``InvalidEvent``.
    """
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        reason = str(error).removeprefix("JSON is malformed: ")
        raise InvalidArgument(f"no JSON: {reason}") from None
    if not isinstance(document, dict):
        raise InvalidArgument(f"an event is an object, {{...}}; this is {str(document)[:40]!r}")
    fields = {name: value for name, value in document.items() if name in _FIELDS}
    others = {name: value for name, value in document.items() if name not in _FIELDS}
    if isinstance(document.get("properties"), dict):
        strange = sorted(others.keys() - _GIVEN_BY_REALM)
        if strange:
            raise InvalidArgument(
                f"{', '.join(strange)} beside 'properties'; an event has "
                f"{', '.join(sorted(_FIELDS))}"
            )
        others = fields.pop("properties")
        others.pop(_stamp(), None)
    return _event(fields, others)


def _event(fields: dict[str, Any], properties: dict[str, Any]) -> Event:
    from penstock.columns.event import Event

    data = _data(fields.pop("data", ""), fields.pop("data_base64", None))
    if (wait := fields.get("deliver_at")) is not None:
        fields["deliver_at"] = _time(wait)
    if "properties" in fields:
        raise InvalidArgument("'properties' is no object")
    return Event(data, properties=properties, **fields)


def _stamp() -> str:
    """The property a realm adds where the channel asks for it."""
    from penstock.columns.layout import DICTIONARY  # brings Arrow

    return DICTIONARY


def _time(text: Any) -> datetime:
    try:
        return given.time(text)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"'deliver_at' is {str(text)[:40]!r}; it has to be a time such as 2026-05-04T12:00:00"
        ) from None


def _data(text: Any, encoded: Any) -> bytes:
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidArgument(f"'data_base64' is no base64: {error}") from None
    if text is None:
        return b""
    if not isinstance(text, str):
        raise InvalidArgument(f"'data' is {str(text)[:40]}; it has to be a string")
    return text.encode()
