"""Messages for clients: encodes and decodes them, and reads them as columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock_core.columns.events.event import Event
from penstock_core.columns.protobuf.descriptors import Descriptors, descriptors_of, require_protobuf
from penstock_core.columns.protobuf.fields import TYPE_HEADER
from penstock_core.vocabulary.errors import InvalidEvent


class Messages:
    """The message types of a channel or queue, from its current descriptors (SEM P)."""

    def __init__(self, store: str, descriptors: bytes) -> None:
        self._store = store
        self._descriptors = descriptors_of(descriptors) if descriptors else None

    @property
    def types(self) -> tuple[str, ...]:
        """Full names of the message types, sorted; empty without descriptors."""
        return self._descriptors.types if self._descriptors is not None else ()

    def event(self, message_type: str, message: object, **parts: Any) -> Event:
        """Return an event with a message as its data.

        ``message`` is a dictionary in the JSON mapping of Protocol Buffers, JSON text, or a message
        object. ``parts`` are the arguments of :class:`Event` except ``data``.

        Raises ``InvalidEvent`` if the type is unknown, or the message does not match it (SEM P3).
        """
        data = self._require_descriptors(message_type).encoded(message_type, message)
        headers = {**(parts.pop("headers", None) or {}), TYPE_HEADER: message_type}
        return Event(data, headers=headers, **parts)

    def has(self, event: Event) -> bool:
        """Whether the event has a message of a known type."""
        kind = self.type_of(event)
        return kind is not None and kind in self.types

    def type_of(self, event: Event) -> str | None:
        """Return the message type named in the event's header ``message_type``, or None."""
        kind = event.headers.get(TYPE_HEADER)
        return str(kind) if kind is not None else None

    def decode(self, event: Event) -> dict[str, Any]:
        """Return the event's message as a dictionary in the JSON mapping.

        Raises ``InvalidEvent`` if the event names no type or an unknown type, or if its data does
        not match the type.
        """
        kind = self.type_of(event)
        if kind is None:
            raise InvalidEvent(
                f"event {event.event_id} names no message type (header {TYPE_HEADER})"
            )
        return self._require_descriptors(kind).decoded(kind, event.data)

    def table(self, message_type: str, events: Iterable[Event] | pa.Array) -> pa.RecordBatch:
        """Return messages of one type as columns, one row each, from events or from a column of
        data.

        Raises ``InvalidEvent`` if the type is unknown, or some data does not match it.
        """
        descriptors = self._require_descriptors(message_type)
        if isinstance(events, pa.ChunkedArray):
            events = events.combine_chunks()
        if not isinstance(events, pa.Array):
            events = pa.array([event.data for event in events], pa.binary())
        return descriptors.table(message_type, events)

    def seen_in(self, stored: pa.Schema) -> pa.Schema:
        """Return the columns of the store, with message fields added to the properties. A selector
        can use the names of all these columns (SEM P1).
        """
        if self._descriptors is None:
            return stored
        # The columns of a type are those of a table without rows.
        no_messages = pa.array([], pa.binary())
        fields = [
            field
            for kind in self.types
            if not self._descriptors.is_too_wide(kind)
            for field in self._descriptors.table(kind, no_messages).schema
        ]
        index = stored.get_field_index("properties")
        if index < 0:
            return stored.append(pa.field("properties", pa.struct(fields)))
        properties = pa.field("properties", pa.struct([*stored.field(index).type, *fields]))
        return stored.set(index, properties)

    def _require_descriptors(self, message_type: str) -> Descriptors:
        if self._descriptors is None:
            raise InvalidEvent(
                f"message type {message_type!r} is unknown, because {self._store} has no "
                "descriptors; set them first: edit(descriptors=...)"
            )
        return self._descriptors


def descriptor_set(source: object) -> bytes:
    """Return a serialized ``FileDescriptorSet``, including all imports.

    ``source`` is a serialized set, a message class, a module made by ``protoc``, or a list of
    these. Raises :class:`TypeError` for anything else, and :class:`Unavailable` without the extra
    ``protobuf``.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    require_protobuf()
    from google.protobuf import descriptor_pb2

    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        if file.name in files:
            return
        # Imports first: a set is read in its order, and a file needs those that it imports.
        for imported in file.dependencies:
            add(imported)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        files[file.name] = proto

    for item in source if isinstance(source, list | tuple) else [source]:
        if isinstance(item, bytes):
            for proto in descriptor_pb2.FileDescriptorSet.FromString(item).file:
                files.setdefault(proto.name, proto)
            continue
        descriptor = getattr(item, "DESCRIPTOR", None)
        if descriptor is None:
            raise TypeError(
                f"{type(item).__name__} is not a descriptor set; pass its bytes, a message class "
                "or a module made by protoc"
            )
        add(getattr(descriptor, "file", descriptor))
    return bytes(descriptor_pb2.FileDescriptorSet(file=files.values()).SerializeToString())
