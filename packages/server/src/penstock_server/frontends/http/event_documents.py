"""JSON documents of events, as ``--format json`` prints them, with data shortened for pages."""

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from penstock_core.columns.documents import message_in, types_of
from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf import Messages
from penstock_core.vocabulary.errors import InvalidArgument, Unavailable
from penstock_core.vocabulary.nesting import check_json_nesting
from penstock_server.frontends.http.finding import Store
from penstock_server.frontends.http.shapes import (
    PREVIEW_BYTES,
    EventAnswer,
    EventDetail,
    EventViews,
)

HEX_BYTES: Final = 4_096
"""Number of data bytes in the hex view of an event."""
WHOLE: Final = 1 << 62
"""A number of bytes that no data exceeds, so that data is not shortened."""
_UTF8_TAIL: Final = 3
"""Maximum number of bytes of an incomplete UTF-8 character at the end of shortened data."""


def messages_of(store: Store) -> Messages | None:
    """Return a decoder for a store's Protocol Buffers messages; None if it has no descriptors or
    the extra ``protobuf`` is not installed."""
    try:
        messages = Messages(store.name, store.definition.descriptors)
    except Unavailable:
        return None
    return messages if messages.types else None


def document_of(
    event: Event,
    messages: Messages | None,
    data_bytes: int = PREVIEW_BYTES,
    channel: str | None = None,
) -> EventAnswer:
    """Return the document of an event with at most ``data_bytes`` bytes of its data, and with its
    ``channel`` if that is set."""
    assert event.event_id is not None, "the event is stored"
    assert event.published is not None, "the event is stored"
    data = event.data
    text, encoded = _shown(data, data_bytes)
    # A shortened message cannot be decoded, and a whole one may exceed the limit.
    message = message_in(event, messages) if len(data) <= data_bytes else None
    return EventAnswer(
        event_id=event.event_id,
        published=event.published,
        size=len(data),
        properties=event.properties,
        types=types_of(event.properties),
        tag=event.tag,
        data=text if message is None else None,
        data_base64=encoded if message is None else None,
        message=message,
        is_cut=len(data) > data_bytes,
        headers=event.headers,
        is_delta=event.is_delta,
        redelivery_count=event.redelivery_count,
        ttl=event.ttl,
        priority=event.priority,
        persistent=event.persistent,
        origin=None
        if event.origin is None
        else msgspec.to_builtins(event.origin, builtin_types=(type(event.published),)),
        channel=channel,
    )


def _shown(data: bytes, data_bytes: int) -> tuple[str | None, str | None]:
    """Return the data as ``(text, None)`` if it is UTF-8, otherwise as ``(None, base64)``."""
    part = data[:data_bytes]
    try:
        return part.decode(), None
    except UnicodeDecodeError as error:
        # The cut may have split the last character of a valid text.
        if len(data) > data_bytes and error.start >= len(part) - _UTF8_TAIL:
            return part[: error.start].decode(), None
    return None, base64.b64encode(part).decode()


def detail_of(event: Event, messages: Messages | None) -> EventDetail:
    """Return the document of an event with all its data, and views of the data in other forms."""
    data = event.data
    document = document_of(event, messages, WHOLE)
    text, _ = _shown(data, WHOLE)
    kind = event.headers.get("message_type")
    views = EventViews(
        base64=base64.b64encode(data).decode(),
        hex=data[:HEX_BYTES].hex(" "),
        text=text,
        json=json_in(data),
        protobuf=document.message,
        message_type=None if kind is None else str(kind),
    )
    if document.message is not None:
        document = replace(
            document, data=text, data_base64=None if text is not None else views.base64
        )
    return EventDetail(event=document, views=views)


def json_in(data: bytes) -> Any:
    """Return the data as a JSON object or array; None for other data. A bare JSON number or string
    is treated as text."""
    if data[:1] not in (b"{", b"["):
        return None
    try:
        check_json_nesting(data)
        return msgspec.json.decode(data)
    except (InvalidArgument, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_ALWAYS: Final = frozenset(("event_id", "published", "size"))


class ChosenColumns(NamedTuple):
    """The parts of events that a client requests besides those that every document has."""

    fields: frozenset[str]
    properties: frozenset[str]


def columns_of(columns: str) -> ChosenColumns | None:
    """Return the fields and properties that ``columns`` names, separated by commas; None for all,
    if it is empty. Raises ``InvalidArgument`` for a name that is not a field of an event."""
    if not columns:
        return None
    selected = {name.strip() for name in columns.split(",") if name.strip()}
    prefix = "properties."
    names = frozenset(name.removeprefix(prefix) for name in selected if name.startswith(prefix))
    fields = frozenset(name for name in selected if not name.startswith(prefix))
    unknown = sorted(fields - set(EventAnswer.__struct_fields__))
    if unknown:
        raise InvalidArgument(
            f"columns={','.join(unknown)[:80]} is not valid; an event has the fields "
            f"{', '.join(EventAnswer.__struct_fields__)}, and a property is properties.<name>"
        )
    return ChosenColumns(fields, names)


def with_columns(document: EventAnswer, chosen: ChosenColumns | None) -> EventAnswer:
    """Return the document with only the ``chosen`` columns and the fields that every event has; all
    fields if it is None."""
    if chosen is None:
        return document
    properties = document.properties
    if "properties" not in chosen.fields:
        properties = {name: properties[name] for name in chosen.properties if name in properties}
    shown_fields = {
        name: getattr(document, name)
        for name in document.__struct_fields__
        if name in chosen.fields or name in _ALWAYS
    }
    return EventAnswer(**{**shown_fields, "properties": properties, "types": types_of(properties)})
