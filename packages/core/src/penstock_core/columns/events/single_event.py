"""Encodes batches of a single event from templates, without Arrow.

All events of one schema that have a tag, data and plain properties, and no nulls, make messages
that differ only in values and lengths. We encode them from a template, byte-identical to Arrow's,
and validate incoming bytes against it: a message that fits its template is a valid batch, and need
not be parsed. All others take the usual way. Batches that the realm itself makes have templates
with more columns, such as headers, whose values would have to be checked in a message of a client.
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
    schema_from,
)
from penstock_core.columns.schema.layout import EVENT_BYTES_MIN
from penstock_core.columns.schema.shapes import struct_shape
from penstock_core.columns.schema.values import NATIVE
from penstock_core.printable import is_utf8
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidEvent

ROW_BYTES_MAX: Final = 32 << 10
"""Most bytes of variable length in one event; a larger one gains nothing from a template."""

MESSAGE_BYTES_MAX: Final = 64 << 10
"""Largest message in bytes that is made from a template."""

COLUMNS_MAX: Final = 48
FORMS_MAX: Final = 64
"""Most templates per schema, one for each combination of lengths. When there are more, all are
dropped and built again, which costs less than parsing one message."""
_PLAIN: Final = (NO_OPTIONS, EventOptions(persistent=True))
"""What an event says of itself that needs no column."""
KINDS_MAX: Final = 1_024
"""Most combinations of names and types of published events that are remembered."""
SCHEMAS_MAX: Final = 64
"""Most schemas with templates. Peers choose schemas, and must not fill memory: this limits it to a
few megabytes."""

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
"""How ``struct`` writes a value of fixed size, padded to eight bytes."""
_SIZES: Final = {kind: struct.calcsize(f"<{layout[0]}") for kind, layout in _FIXED.items()}
_RECOGNISED: Final = frozenset({*_TEXTS, "int64", "double", "bool"})
"""Kinds whose values are sound whatever their bytes, texts aside."""
_OFFSETS_BYTES: Final = 8
_INT64: Final = struct.Struct("<q")


class _MessageTemplate(NamedTuple):
    """The messages whose values have certain lengths."""

    head: bytes
    layout: struct.Struct
    digest: Digest
    """Shared by all events of this form: it depends on sizes only."""


class SingleEventCodec:
    """The messages of one event that a schema makes, when none of its values is null."""

    __slots__ = (
        "_by_name",
        "_forms",
        "_head",
        "_kinds",
        "_lengths",
        "_places",
        "_structs",
        "names",
        "schema",
    )

    def __init__(self, schema: pa.Schema, kinds: Sequence[str], structs: Container[int]) -> None:
        """``kinds`` of its columns, each field of a struct being one; ``structs``: at which of
        them one begins."""
        self.schema = schema
        self.names = frozenset(schema.names)
        self._kinds = tuple(kinds)
        self._structs = structs
        self._forms: dict[tuple[int, ...], _MessageTemplate] = {}
        self._by_name: dict[str, int | None] = {}
        sample = bytes(batch_bytes(_sample(schema)))
        self._places: BatchPlaces = batch_places(sample)
        self._head = sample[: self._places.body]
        self._lengths = self._lengths_layout()

    def _lengths_layout(self) -> struct.Struct:
        """Where a message stores the lengths of its variable values."""
        parts = [f"<{self._places.buffers}x"]
        for index, kind in enumerate(self._kinds):
            if index in self._structs:
                parts.append("16x")
            parts.append("40xq" if kind in _TEXTS else "32x")
        return struct.Struct("".join(parts))

    def written(self, values: Sequence[Any]) -> bytes | None:
        """The message with these values, of the columns' types; None for a large one.

        Raises ``UnicodeEncodeError`` and ``struct.error`` for a value no column can hold.
        """
        made = self.made(values)
        return None if made is None else made[0]

    def made(self, values: Sequence[Any]) -> tuple[bytes, Digest] | None:
        """Encode the values as :meth:`written` does; gives the digest, too, whose sizes are known
        here."""
        parts: list[Any] = []
        lengths: list[int] = []
        for kind, value in zip(self._kinds, values, strict=True):
            if kind in _TEXTS:
                text = value.encode() if kind == "string" else value
                lengths.append(len(text))
                parts += (0, len(text), text)
            else:
                parts.append(value)
        at = tuple(lengths)
        form = self._forms.get(at) or self._form(at)
        return None if form is None else (form.layout.pack(form.head, *parts), form.digest)

    def digest_of(self, message: bytes) -> Digest | None:
        """The digest of a message that is a valid batch of this schema, checked in every byte that
        matters. None if it is not, or is large: it then has to be parsed."""
        if len(message) < len(self._head):
            return None
        lengths = self._lengths.unpack_from(message)
        form = self._forms.get(lengths) or self._form(lengths)
        if form is None or form.layout.size != len(message):
            return None
        head, *parts = form.layout.unpack(message)
        if head != form.head:
            return None
        at = found = 0
        for kind in self._kinds:
            if kind not in _TEXTS:
                at += 1
                continue
            length = lengths[found]
            if parts[at] != 0 or parts[at + 1] != length:
                return None
            if kind == "string" and not is_utf8(parts[at + 2][:length]):
                return None
            found += 1
            at += 3
        return form.digest

    def place_of(self, name: str) -> int | None:
        """Which of the columns has a property, for :meth:`value_in`; -1: no event of this schema
        has it. None where several columns have it, or it is no single value."""
        try:
            return self._by_name[name]
        except KeyError:
            found = self._by_name[name] = self._find(name)
            return found

    def _find(self, name: str) -> int | None:
        if "properties" not in self.names:
            return -1
        slots = struct_shape(self.schema.field("properties").type).slots
        own = [place for place, slot in enumerate(slots) if slot.logical == name]
        return None if len(own) > 1 else len(self._kinds) - len(slots) + own[0] if own else -1

    def value_in(self, message: bytes, place: int) -> Any:
        """The value of a column in a message that :meth:`digest_of` has checked."""
        form = self._forms.get(self._lengths.unpack_from(message))
        if form is None:  # others were more
            form = self._new_form(self._lengths.unpack_from(message))
        parts = form.layout.unpack(message)
        at = 1 + sum([3 if kind in _TEXTS else 1 for kind in self._kinds[:place]])
        match self._kinds[place]:
            case "string":
                return parts[at + 2][: parts[at + 1]].decode()
            case "binary":
                return parts[at + 2][: parts[at + 1]]
            case "bool":
                return bool(parts[at] & 1)
            case _:
                return parts[at]

    def _form(self, lengths: tuple[int, ...]) -> _MessageTemplate | None:
        if any(length < 0 for length in lengths) or sum(lengths) > ROW_BYTES_MAX:
            return None
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        form = self._forms[lengths] = self._new_form(lengths)
        return form

    def _new_form(self, lengths: tuple[int, ...]) -> _MessageTemplate:
        places: list[int] = []
        layout = [f"<{len(self._head)}s"]
        end = size = found = 0
        for index, kind in enumerate(self._kinds):
            if index in self._structs:
                places += (end, 0)
            places += (end, 0)  # validity: nothing is null
            if kind in _TEXTS:
                length = lengths[found]
                found += 1
                taken = -(-length // 8) * 8
                places += (end, _OFFSETS_BYTES, end + _OFFSETS_BYTES, length)
                layout.append(f"ii{taken}s")
                size += _OFFSETS_BYTES // 2 + length  # as Arrow counts: an offset an event
                end += _OFFSETS_BYTES + taken
            else:
                places += (end, _SIZES[kind])
                layout.append(_FIXED[kind])
                size += _SIZES[kind]
                end += 8
        head = bytearray(self._head)
        _INT64.pack_into(head, self._places.body_length, end)
        struct.pack_into(f"<{len(places)}q", head, self._places.buffers, *places)
        digest = Digest(count=1, size=max(size, EVENT_BYTES_MIN), largest=size)
        return _MessageTemplate(bytes(head), struct.Struct("".join(layout)), digest)


def codec_of_schema(schema: pa.Schema) -> SingleEventCodec | None:
    """The form of a schema of bodies; None when its events are not plain."""
    try:
        check_schema(schema)
    except InvalidEvent:
        return None  # whoever publishes with it is told
    names = schema.names
    if not {"tag", "data", "properties"}.issuperset(names) or "properties" in names[:-1]:
        return None
    kinds, structs = _flat(schema)
    if not _RECOGNISED.issuperset(kinds) or not 0 < len(kinds) <= COLUMNS_MAX:
        return None
    return SingleEventCodec(schema, kinds, structs)


def trusted_codec_of(schema: pa.Schema) -> SingleEventCodec | None:
    """A template for batches that the realm itself makes; None if a column has a type without one.
    No value may be null; times are in microseconds since 1970."""
    kinds, structs = _flat(schema)
    if not 0 < len(kinds) <= COLUMNS_MAX:
        return None
    if not all(kind in _FIXED or kind in _TEXTS for kind in kinds):
        return None
    return SingleEventCodec(schema, kinds, structs)


def _flat(schema: pa.Schema) -> tuple[list[str], set[int]]:
    """The types of columns, those of a struct's fields in its place; where structs begin."""
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
    """The form of the schema in a message (``penstock_core.columns.schema.ipc.schema_bytes``), if
    it has one."""
    try:
        return _by_schema[message]
    except KeyError:
        if len(message) > SCHEMA_BYTES_KEPT_MAX:
            return None
        if len(_by_schema) >= SCHEMAS_MAX:
            _by_schema.clear()
        found = _by_schema[message] = codec_of_schema(schema_from(message))
        return found


_by_kind: dict[tuple[object, ...], SingleEventCodec | None] = {}


def encode_event(event: Event) -> tuple[SingleEventCodec, bytes] | None:
    """The message of an event to be published. None if it has to be encoded the usual way, which
    also reports errors. Raises ``InvalidEvent``."""
    if not _is_plain(event):
        return None
    properties = event._properties or {}
    tag, data = event._tag, event._data
    kind = (tag is not None, bool(data), *properties, *map(type, properties.values()))
    try:
        form = _by_kind[kind]
    except KeyError:
        form = _learn(kind, event)
    if form is None:
        return None
    values = [*properties.values()]
    if data or not (values or tag is not None):
        values.insert(0, data)
    if tag is not None:
        values.insert(0, tag)
    try:
        made = form.made(values)
    except (struct.error, UnicodeEncodeError):
        return None
    return None if made is None else (form, made[0])


def _is_plain(event: Event) -> bool:
    return event._rows is None and event._options in _PLAIN


def _learn(kind: tuple[object, ...], event: Event) -> SingleEventCodec | None:
    if len(_by_kind) >= KINDS_MAX:
        _by_kind.clear()
    plain = all(type(value) in NATIVE for value in event.properties.values())
    form = codec_of_schema(body_of([event]).schema) if plain else None
    _by_kind[kind] = form
    return form


def _sample(schema: pa.Schema) -> pa.RecordBatch:
    """Any one event of a plain schema."""
    return pa.RecordBatch.from_arrays([_cell(field.type) for field in schema], schema=schema)


def _cell(kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        children = [_cell(field.type) for field in kind]
        return pa.Array.from_buffers(kind, 1, [None], 0, 0, children)
    zeros = pa.py_buffer(bytes(8))
    buffers = [None, zeros, zeros] if str(kind) in _TEXTS else [None, zeros]
    return pa.Array.from_buffers(kind, 1, buffers, 0)
