"""Encodes batches of a single event from templates, without Arrow.

The messages of events of one schema that have a tag, data and plain properties, and no nulls,
differ only in values and lengths. They are encoded from a template, byte-identical to the messages
of Arrow, and incoming messages are compared with it: a message that fits its template is a valid
batch, and need not be parsed. Arrow encodes and parses all others. Batches made by the realm itself
have templates with more columns, such as headers, whose values would need checks in a message from
a client.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.check import check_schema
from penstock_core.columns.events.event import NO_OPTIONS, Event, EventOptions
from penstock_core.columns.schema.ipc import (
    SCHEMA_BYTES_KEPT_MAX,
    BatchPlaces,
    batch_bytes,
    batch_places,
    schema_bytes,
    schema_from,
)
from penstock_core.columns.schema.layout import EVENT_BYTES_MIN
from penstock_core.columns.schema.shapes import struct_shape
from penstock_core.columns.schema.values import NATIVE
from penstock_core.printable import is_utf8
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidEvent

ROW_BYTES_MAX: Final = 32 << 10
"""Maximum number of bytes of variable length in one event. Larger events gain nothing from a
template."""

MESSAGE_BYTES_MAX: Final = 64 << 10
"""Largest message in bytes that is encoded from a template."""

COLUMNS_MAX: Final = 48
"""Maximum number of columns of a schema with templates."""
NAMES_MAX: Final = 64
"""Maximum number of property names per schema whose column is cached."""
TEMPLATES_MAX: Final = 64
"""Maximum number of templates per schema, one for each combination of lengths. Above the limit all
templates are dropped. To build one again costs less than to parse one message."""
_PLAIN: Final = (NO_OPTIONS, EventOptions(persistent=True))
"""Event options that need no column."""
KINDS_MAX: Final = 1_024
"""Maximum number of combinations of property names and types of published events that are
cached."""
SCHEMAS_MAX: Final = 64
"""Maximum number of schemas with templates: a few megabytes. Clients choose the schemas, and must
not be able to fill the memory."""

_TEXTS: Final = ("string", "binary")
_FIXED: Final = {
    "int64": "q",
    "double": "d",
    "bool": "B7x",
    "int32": "i4x",
    "int16": "h6x",
    "int8": "b7x",
    "float": "f4x",
    "timestamp[us, tz=UTC]": "q",
}
"""``struct`` format of a value of fixed size, padded to eight bytes."""
_SIZES: Final = {kind: struct.calcsize(f"<{layout[0]}") for kind, layout in _FIXED.items()}
"""Size of a value of fixed size in bytes, without padding."""
_RECOGNISED: Final = frozenset({*_TEXTS, "int64", "double", "bool"})
"""Types whose values need no check, except that strings must be UTF-8."""
_OFFSETS_BYTES: Final = 8
"""Size of the two offsets of a single value of variable length."""
_INT64: Final = struct.Struct("<q")


class _MessageTemplate(NamedTuple):
    """Template of the messages whose variable-length values have certain lengths."""

    head: bytes
    """The bytes of the message before the values."""
    layout: struct.Struct
    """The format of the whole message: the head, then each value with its padding."""
    digest: Digest
    """Digest shared by all events of this template, because it depends on sizes only."""


class SingleEventCodec:
    """Encodes and checks the single-event messages of one schema, if no value is null."""

    __slots__ = (
        "_by_name",
        "_head",
        "_kinds",
        "_lengths",
        "_places",
        "_structs",
        "_templates",
        "names",
        "schema",
        "schema_message",
    )

    def __init__(self, schema: pa.Schema, kinds: Sequence[str], structs: Container[int]) -> None:
        """``kinds`` are the types of the columns, with each field of a struct as a column.
        ``structs`` are the indexes in ``kinds`` at which structs begin."""
        self.schema = schema
        self.schema_message = schema_bytes(schema)
        """The schema as an encapsulated IPC message."""
        self.names = frozenset(schema.names)
        self._kinds = tuple(kinds)
        self._structs = structs
        self._templates: dict[tuple[int, ...], _MessageTemplate] = {}
        self._by_name: dict[str, int | None] = {}
        # Arrow writes the sample, so that templates have the bytes of the installed version of
        # Arrow.
        sample = bytes(batch_bytes(_sample(schema)))
        self._places: BatchPlaces = batch_places(sample)
        self._head = sample[: self._places.body]
        self._lengths = self._lengths_layout()

    def _lengths_layout(self) -> struct.Struct:
        """Return the format that reads the lengths of variable-length values from a message."""
        parts = [f"<{self._places.buffers}x"]
        for index, kind in enumerate(self._kinds):
            if index in self._structs:
                parts.append("16x")
            parts.append("40xq" if kind in _TEXTS else "32x")
        return struct.Struct("".join(parts))

    def encode(self, values: Sequence[Any]) -> bytes | None:
        """Return the message with these values, of the columns' types; None if it would be too
        large.

        Raises ``UnicodeEncodeError`` and ``struct.error`` for a value no column can hold.
        """
        message_and_digest = self.encode_with_digest(values)
        return None if message_and_digest is None else message_and_digest[0]

    def encode_with_digest(self, values: Sequence[Any]) -> tuple[bytes, Digest] | None:
        """Return the message with these values and its digest, as :meth:`encode` does."""
        parts: list[Any] = []
        lengths: list[int] = []
        for kind, value in zip(self._kinds, values, strict=True):
            if kind in _TEXTS:
                text = value.encode() if kind == "string" else value
                lengths.append(len(text))
                parts += (0, len(text), text)
            else:
                parts.append(value)
        lengths_key = tuple(lengths)
        template = self._templates.get(lengths_key) or self._template_of(lengths_key)
        return (
            None
            if template is None
            else (template.layout.pack(template.head, *parts), template.digest)
        )

    def digest_of(self, message: bytes) -> Digest | None:
        """Return the digest of a message if it is a valid batch of this schema.

        The method checks every byte that has a meaning. It returns None for an invalid or large
        message, which then has to be parsed.
        """
        checked = self._checked_parts(message)
        return None if checked is None else checked[0].digest

    def values_of(self, message: bytes) -> tuple[Any, ...] | None:
        """Return the values of a message in the order of the columns, with each field of a struct
        as a column; None if :meth:`digest_of` returns None."""
        checked = self._checked_parts(message)
        if checked is None:
            return None
        _, parts = checked
        values: list[Any] = []
        part = 0
        for kind in self._kinds:
            if kind == "string":
                values.append(parts[part + 2][: parts[part + 1]].decode())
            elif kind == "binary":
                values.append(parts[part + 2][: parts[part + 1]])
            else:
                values.append(bool(parts[part] & 1) if kind == "bool" else parts[part])
                part -= 2  # a value of fixed size has no offsets
            part += 3
        return tuple(values)

    def _checked_parts(self, message: bytes) -> tuple[_MessageTemplate, list[Any]] | None:
        """Return the template of a message and the numbers and bytes after its head; None unless
        the message is valid and small. Checks every byte that has a meaning."""
        # The lengths are inside the head, so a shorter message cannot be unpacked.
        if len(message) < len(self._head):
            return None
        lengths = self._lengths.unpack_from(message)
        template = self._templates.get(lengths) or self._template_of(lengths)
        if template is None or template.layout.size != len(message):
            return None
        head, *parts = template.layout.unpack(message)
        if head != template.head:
            return None
        # The head has the lengths, but the offsets before each value repeat them.
        part = text = 0
        for kind in self._kinds:
            if kind not in _TEXTS:
                part += 1
                continue
            length = lengths[text]
            if parts[part] != 0 or parts[part + 1] != length:
                return None
            if kind == "string" and not is_utf8(parts[part + 2][:length]):
                return None
            text += 1
            part += 3
        return template, parts

    def column_index(self, name: str) -> int | None:
        """Return the index of the column of a property, for :meth:`value_in`; -1 if no event of
        this schema has the property. Return None if several columns hold the property, or if its
        type is not text, bytes, a 64-bit number or a flag."""
        try:
            return self._by_name[name]
        except KeyError:
            if len(self._by_name) >= NAMES_MAX:
                self._by_name.clear()
            index = self._by_name[name] = self._find(name)
            return index

    def _find(self, name: str) -> int | None:
        """Return the index of a property's column, as :meth:`column_index` does."""
        if "properties" not in self.names:
            return -1
        column = 0
        for field in self.schema:
            if field.name == "properties":
                break
            column += max(field.type.num_fields, 1)  # each field of a struct is a column
        slots = struct_shape(self.schema.field("properties").type).slots
        matches = [column + index for index, slot in enumerate(slots) if slot.logical == name]
        if not matches:
            return -1
        is_readable = len(matches) == 1 and self._kinds[matches[0]] in _RECOGNISED
        return matches[0] if is_readable else None

    def value_in(self, message: bytes, column: int) -> Any:
        """Return the value of a column in a message that :meth:`digest_of` has checked."""
        template = self._templates.get(self._lengths.unpack_from(message))
        if template is None:  # dropped since digest_of() used it, because there were too many
            template = self._new_template(self._lengths.unpack_from(message))
        parts = template.layout.unpack(message)
        part = 1 + sum([3 if kind in _TEXTS else 1 for kind in self._kinds[:column]])
        match self._kinds[column]:
            case "string":
                return parts[part + 2][: parts[part + 1]].decode()
            case "binary":
                return parts[part + 2][: parts[part + 1]]
            case "bool":
                return bool(parts[part] & 1)
            case _:
                return parts[part]

    def _template_of(self, lengths: tuple[int, ...]) -> _MessageTemplate | None:
        """Return the cached or new template for values of these lengths; None if they are negative
        or too large."""
        if any(length < 0 for length in lengths) or sum(lengths) > ROW_BYTES_MAX:
            return None
        if len(self._templates) >= TEMPLATES_MAX:
            self._templates.clear()
        template = self._templates[lengths] = self._new_template(lengths)
        return template

    def _new_template(self, lengths: tuple[int, ...]) -> _MessageTemplate:
        """Return the template for values of these lengths, with the buffer offsets in its head."""
        buffers: list[int] = []
        layout = [f"<{len(self._head)}s"]
        end = size = text = 0
        for index, kind in enumerate(self._kinds):
            if index in self._structs:
                buffers += (end, 0)
            buffers += (end, 0)  # validity buffer: empty, because no value is null
            if kind in _TEXTS:
                length = lengths[text]
                text += 1
                # Arrow pads each buffer to 8 bytes.
                padded = -(-length // 8) * 8
                buffers += (end, _OFFSETS_BYTES, end + _OFFSETS_BYTES, length)
                layout.append(f"ii{padded}s")
                size += _OFFSETS_BYTES // 2 + length  # as Arrow counts it: one offset per event
                end += _OFFSETS_BYTES + padded
            else:
                buffers += (end, _SIZES[kind])
                layout.append(_FIXED[kind])
                size += _SIZES[kind]
                end += 8
        head = bytearray(self._head)
        _INT64.pack_into(head, self._places.body_length, end)
        struct.pack_into(f"<{len(buffers)}q", head, self._places.buffers, *buffers)
        digest = Digest(count=1, size=max(size, EVENT_BYTES_MIN), largest=size)
        return _MessageTemplate(bytes(head), struct.Struct("".join(layout)), digest)


def codec_of_schema(schema: pa.Schema) -> SingleEventCodec | None:
    """Return the codec of a schema of bodies; None if the schema's events are not plain."""
    try:
        check_schema(schema)
    except InvalidEvent:
        return None  # the publish that uses it reports the error
    names = schema.names
    if not {"tag", "data", "properties"}.issuperset(names) or "properties" in names[:-1]:
        return None
    kinds, structs = _flat(schema)
    if not _RECOGNISED.issuperset(kinds) or not 0 < len(kinds) <= COLUMNS_MAX:
        return None
    return SingleEventCodec(schema, kinds, structs)


def trusted_codec_of(schema: pa.Schema) -> SingleEventCodec | None:
    """Return a codec for batches that the realm itself makes; None if it cannot encode a column's
    type.

    No value may be null; times are in microseconds since 1970.
    """
    kinds, structs = _flat(schema)
    if not 0 < len(kinds) <= COLUMNS_MAX:
        return None
    if not all(kind in _FIXED or kind in _TEXTS for kind in kinds):
        return None
    return SingleEventCodec(schema, kinds, structs)


def _flat(schema: pa.Schema) -> tuple[list[str], set[int]]:
    """Return the types of columns, with a struct's fields in its place, and the indexes at which
    structs begin."""
    kinds: list[str] = []
    structs: set[int] = set()
    for field in schema:
        if pa.types.is_struct(field.type) and field.type.num_fields:
            structs.add(len(kinds))
            kinds += [str(child.type) for child in field.type]
        else:
            kinds.append(str(field.type))
    return kinds, structs


_by_schema: dict[bytes, SingleEventCodec | None] = {}


def codec_in_message(message: bytes) -> SingleEventCodec | None:
    """Return the codec of the schema in a message
    (``penstock_core.columns.schema.ipc.schema_bytes``), or None if the schema has none."""
    try:
        return _by_schema[message]
    except KeyError:
        # A client chooses the schemas, and large ones must not fill the memory.
        if len(message) > SCHEMA_BYTES_KEPT_MAX:
            return None
        if len(_by_schema) >= SCHEMAS_MAX:
            _by_schema.clear()
        codec = _by_schema[message] = codec_of_schema(schema_from(message))
        return codec


class CodecCache:
    """Codecs by the kind of an event: the names of its properties and the types of their values."""

    __slots__ = ("by_kind", "kinds_max")

    def __init__(self, kinds_max: int) -> None:
        self.by_kind: dict[tuple[object, ...], SingleEventCodec | None] = {}
        self.kinds_max = kinds_max
        """Maximum number of kinds. Above the limit all codecs are dropped."""


_codecs: Final = CodecCache(KINDS_MAX)


def encode_event(
    event: Event, codecs: CodecCache = _codecs
) -> tuple[SingleEventCodec, bytes, Digest] | None:
    """Return the codec, the message and the digest of an event to be published.

    None if Arrow has to encode it, which also reports errors. Raises ``InvalidEvent``.
    """
    if not _is_plain(event):
        return None
    properties = event._properties or {}
    tag, data = event._tag, event._data
    kind = (tag is not None, bool(data), *properties, *map(type, properties.values()))
    try:
        codec = codecs.by_kind[kind]
    except KeyError:
        codec = _cache_codec(codecs, kind, event)
    if codec is None:
        return None
    values = [*properties.values()]
    # The values are in the order of the body's columns: tag, data, properties. Empty data has a
    # column only if the event has nothing else.
    if data or not (values or tag is not None):
        values.insert(0, data)
    if tag is not None:
        values.insert(0, tag)
    try:
        encoded = codec.encode_with_digest(values)
    except (struct.error, UnicodeEncodeError):
        # An integer beyond 64 bits, or text that UTF-8 cannot encode: Arrow reports the error.
        return None
    return None if encoded is None else (codec, *encoded)


def _is_plain(event: Event) -> bool:
    return event._rows is None and event._options in _PLAIN


def _cache_codec(
    codecs: CodecCache, kind: tuple[object, ...], event: Event
) -> SingleEventCodec | None:
    """Cache and return the codec for events of this kind; None if Arrow has to encode them."""
    if len(codecs.by_kind) >= codecs.kinds_max:
        codecs.by_kind.clear()
    plain = all(type(value) in NATIVE for value in event.properties.values())
    codec = codec_of_schema(body_of([event]).schema) if plain else None
    codecs.by_kind[kind] = codec
    return codec


def _sample(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with any one event of a plain schema."""
    return pa.RecordBatch.from_arrays([_cell(field.type) for field in schema], schema=schema)


def _cell(kind: pa.DataType) -> pa.Array:
    """Return an array with one value of the type ``kind``: 0, empty, or a struct of such values."""
    if pa.types.is_struct(kind):
        children = [_cell(field.type) for field in kind]
        return pa.Array.from_buffers(kind, 1, [None], 0, 0, children)
    zeros = pa.py_buffer(bytes(8))
    buffers = [None, zeros, zeros] if str(kind) in _TEXTS else [None, zeros]
    return pa.Array.from_buffers(kind, 1, buffers, 0)
