"""Events as rows of an archive table: a column for each part of an event, in plain types.

============================  ================================================================
column                        content
============================  ================================================================
event_id, published           set by the realm
tag, data                     as published
ttl, priority, persistent     as published; null if the publisher did not set it
headers                       struct of all headers, including publisher and host
one for each property         named as in the channel's own columns
``$penstock_…``               for programs only: ``origin``, ``nulls``, ``more``
============================  ================================================================

Whole numbers are stored with 64 bits and floats as doubles, so that a column never changes type. A
null in a property's column means "key absent", unless ``$penstock_nulls`` names its path.
Properties that no table column can hold (lists of only nulls, empty dictionaries) are in
``$penstock_more``. If the name of a property is in use, ignoring case, its column is called
``properties.<name>``, and so is a field of a struct. The metadata of a field names the property in
its column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from penstock_core.columns.events.lifted_columns import in_columns
from penstock_core.columns.events.publishers import with_publishers
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.free_names import PREFIX, free_name, free_names
from penstock_core.columns.schema.layout import (
    BODY,
    FIELDS,
    HEADERS,
    LOGICAL_NAME,
    RESERVED_PREFIX,
    STAMPED,
    key_path,
)
from penstock_core.columns.schema.number_columns import (
    NotExact,
    ShownColumn,
    shown_columns,
    typed_columns,
)
from penstock_core.columns.schema.rows import Publishers
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.schema.schema_fit import fitted, nulls_column, spilled
from penstock_core.columns.schema.shapes import (
    NULL,
    ListShape,
    Shape,
    Slot,
    StructShape,
    arrow_type,
    struct_shape,
)
from penstock_core.columns.schema.struct_fields import field_of
from penstock_core.vocabulary.errors import InvalidArgument

PROPERTY: Final = b"penstock.property"
"""Field metadata: the name of the property field in the column."""
CHANNEL: Final = b"penstock.channel"
"""Metadata of ``event_id``: the channel's name."""
EPOCH: Final = b"penstock.epoch"
"""Metadata of ``event_id``: distinguishes channels that had this name one after the other."""
DAY: Final = "published_day"
"""Column with the day of ``published``; archives are partitioned by it."""

_HEADERS: Final = pa.struct(list(HEADERS.items()))
_PLAIN: Final[dict[str, pa.DataType]] = {
    **STAMPED,
    **{name: FIELDS[name].type for name in ("tag", "data", "ttl", "priority", "persistent")},
    "headers": _HEADERS,
}
_RESERVED_COLUMNS: Final = ("origin", "nulls", "more", "delta")
_USED_NAMES: Final = frozenset(name.casefold() for name in (*_PLAIN, DAY))
_LOGICAL: Final = LOGICAL_NAME


class ArchiveLayout:
    """Converts the events of one channel to rows of its archive.

    ``stored`` is the channel's schema, at least as new as the events. ``table`` is the schema of
    the archive so far; None if it does not exist yet.
    """

    def __init__(
        self,
        stored: pa.Schema,
        table: pa.Schema | None = None,
        *,
        channel: str = "",
        epoch: str = "",
    ) -> None:
        self._channel = ChannelSchema.empty().grown(stored)
        index = self._channel.arrow.get_field_index("properties")
        kind = self._channel.arrow.field(index).type if index >= 0 else pa.struct([])
        self._shape = struct_shape(kind)
        self._origin = {CHANNEL: channel.encode(), EPOCH: epoch.encode()}
        # Properties that no table column can hold, which move to `more`.
        self._leaving = [slot for slot in self._shape.slots if not _has_column(slot.shape)]
        self._nulls = [slot for slot in self._shape.slots if slot.shape == NULL]
        names = _names(self._shape, table)
        self._columns = [
            (number, slot, wide, _field(names[slot.name], slot, wide))
            for number, slot in enumerate(self._shape.slots)
            if slot.name in names
            for wide in [_wide(slot.shape, _type_in(table, names[slot.name]))]
        ]

    def of(self, batch: pa.RecordBatch, publishers: Publishers = ()) -> pa.RecordBatch:
        """Return the archive rows of stored events."""
        batch = in_columns(batch, self._channel)
        count = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns |= self._overflow_columns(batch)
        fields, arrays = [], []
        for name, kind in _PLAIN.items():
            array = columns.get(name)
            if name == "headers":
                array = _headers(batch, publishers)
            elif array is None:
                # The data of an event is never null: without the column it is empty.
                array = (
                    pa.nulls(count, kind) if name != "data" else pa.repeat(pa.scalar(b""), count)
                )
            metadata = self._origin if name == "event_id" else None
            fields.append(pa.field(name, kind, metadata=metadata))
            arrays.append(array)
        properties = columns.get("properties")
        for number, slot, wide, field in self._columns:
            assert properties is not None, "there are slots"
            child = field_of(properties, number)
            arrays.append(fitted(child, slot.shape, wide))
            fields.append(field)
        for name in _RESERVED_COLUMNS:
            array = columns.get(name)
            if array is not None and array.null_count < count:
                fields.append(pa.field(_reserved(name), array.type))
                arrays.append(array)
        fields.append(pa.field(DAY, pa.date32()))
        arrays.append(columns["published"].cast(pa.timestamp("us")).cast(pa.date32()))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _overflow_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the columns ``nulls`` and ``more``, with explicit nulls and with the properties
        that no table column can hold."""
        if not self._shape.slots:
            return {}
        columns: dict[str, pa.Array] = {}
        if (nulls := nulls_column(batch, self._shape)) is not None:
            columns["nulls"] = nulls
        if self._leaving:
            columns["more"] = spilled(batch, self._shape, self._leaving)
        return columns


def _names(shape: StructShape, table: pa.Schema | None) -> dict[str, str]:
    """Return the column name of each property, by the name of its field: the column that the table
    has for it, or a new name that is free."""
    fields_by_column = {} if table is None else _properties_of(table)
    names = {field: column for column, field in fields_by_column.items()}
    used_names = {*_USED_NAMES, *(name.casefold() for name in names.values())}
    for slot in shape.slots:
        if slot.name in names or slot.shape == NULL or not _has_column(slot.shape):
            continue
        # Mark the name as used, so that the column gets another one: the prefix is reserved.
        if slot.name.startswith(_reserved("")):
            used_names.add(slot.name.casefold())
        name = names[slot.name] = free_name(slot.name, used_names)
        used_names.add(name.casefold())
    slots = {slot.name for slot in shape.slots if slot.shape != NULL and _has_column(slot.shape)}
    return {field: name for field, name in names.items() if field in slots}


def _properties_of(table: pa.Schema) -> dict[str, str]:
    """Return, for each column that holds a property, the name of its field in the channel's
    schema."""
    return {
        field.name: field.metadata[PROPERTY].decode()
        for field in table
        if field.metadata and PROPERTY in field.metadata
    }


def _type_in(table: pa.Schema | None, name: str) -> pa.DataType | None:
    index = -1 if table is None else table.get_field_index(name)
    return None if table is None or index < 0 else table.field(index).type


def _field(name: str, slot: Slot, wide: Shape) -> pa.Field:
    """Return the column of the property in ``slot``, with the property's name in its metadata."""
    metadata = {PROPERTY: slot.name.encode()}
    if slot.logical != slot.name:
        metadata[_LOGICAL] = slot.logical.encode()
    return pa.field(name, arrow_type(wide), metadata=metadata)


def _reserved(name: str) -> str:
    """Return the name of a column that is for programs only."""
    return f"{RESERVED_PREFIX}_{name}"


def _has_column(shape: Shape) -> bool:
    """Whether a table can hold the shape. A property that is always null needs no column, because
    ``nulls`` has its name."""
    return shape == NULL or _is_whole(shape)


def _is_whole(shape: Shape) -> bool:
    """Whether the shape has no part without a type: an empty struct, or elements that are all
    null."""
    if isinstance(shape, ListShape):
        return _is_whole(shape.element)
    if isinstance(shape, StructShape):
        return bool(shape.slots) and all(_is_whole(slot.shape) for slot in shape.slots)
    return shape != NULL


def _wide(shape: Shape, table: pa.DataType | None = None) -> Shape:
    """Return the shape with the widest numbers, and with field names that differ even if case is
    ignored.

    ``table`` is the type of the column in the archive so far; fields in it keep their names.
    """
    if isinstance(shape, ListShape):
        inner = table.value_type if table is not None and pa.types.is_list(table) else None
        return ListShape(_wide(shape.element, inner))
    if isinstance(shape, StructShape):
        fields = list(table) if table is not None and pa.types.is_struct(table) else []
        table_fields = {_own_name(field): field for field in fields}
        new = [slot.name for slot in shape.slots if slot.name not in table_fields]
        names = free_names(new, [field.name for field in fields])
        names |= {name: field.name for name, field in table_fields.items()}
        return StructShape(
            tuple(
                Slot(
                    names[slot.name],
                    slot.logical,
                    _wide(
                        slot.shape,
                        table_fields[slot.name].type if slot.name in table_fields else None,
                    ),
                )
                for slot in shape.slots
            )
        )
    if shape.startswith("int"):
        return "int64"
    return "double" if shape == "float" else shape


def _own_name(field: pa.Field) -> str:
    """Return a struct field's name in the channel, without the prefix that made it unique."""
    logical, name = (field.metadata or {}).get(_LOGICAL, b"").decode(), str(field.name)
    if logical and name.startswith(PREFIX):
        stripped = name.removeprefix(PREFIX)
        # free_name() may have appended a number.
        for candidate in (stripped, stripped.rpartition(".")[0]):
            if candidate == logical or candidate.startswith(f"{logical}::"):
                return candidate
    return name


def _headers(batch: pa.RecordBatch, publishers: Publishers) -> pa.Array:
    """Return all headers. Publisher and host recorded by the realm replace those set by clients."""
    count = batch.num_rows
    index = batch.schema.get_field_index("headers")
    client_headers: Any = batch.column(index) if index >= 0 else None
    if client_headers is None:
        headers = pa.nulls(count, _HEADERS)
    else:
        indexes = {field.name: n for n, field in enumerate(client_headers.type)}
        arrays = [
            field_of(client_headers, indexes[name]).cast(kind)
            if name in indexes
            else pa.nulls(count, kind)
            for name, kind in HEADERS.items()
        ]
        headers = pa.StructArray.from_arrays(
            arrays, fields=list(_HEADERS), mask=client_headers.is_null()
        )
    return with_publishers(headers, batch.column("event_id"), publishers)


# --- archive rows to events ---------------------------------------------------------------


def identity_of(table: pa.Schema) -> tuple[str, str]:
    """Return the name and the epoch of the channel that an archive was made from.

    Raises ``InvalidArgument`` if the table is not an archive.
    """
    index = table.get_field_index("event_id")
    metadata = (table.field(index).metadata or {}) if index >= 0 else {}
    if CHANNEL not in metadata:
        raise InvalidArgument(
            "this table is not an archive of a channel: no archive step of a pipeline wrote it"
        )
    return metadata[CHANNEL].decode(), metadata[EPOCH].decode()


def is_archive(table: pa.Schema) -> bool:
    """Whether a table is the archive of a channel."""
    index = table.get_field_index("event_id")
    return index >= 0 and CHANNEL in (table.field(index).metadata or {})


def shown_rows(
    rows: pa.Table,
    columns: Sequence[str] | None = None,
    *,
    with_exact: bool = False,
    on_typed: Callable[[Sequence[str]], None],
) -> pa.Table:
    """Return the rows of an archive as readers see them.

    The integers and floats of a property are one column of doubles (SEM E10) if each integer is
    exact as a double. Otherwise they are in typed columns, and ``on_typed`` is called with the
    names of the properties. ``columns`` selects columns; a name with a type selects the exact
    column. ``with_exact`` adds the exact columns of numbers that share one column. Raises
    ``InvalidArgument`` for unknown columns.
    """
    property_columns = _properties_of(rows.schema)
    slots = [_slot_of(field) for field in rows.schema if field.name in property_columns]
    exact = typed_columns(StructShape(tuple(slots)))
    shown, inexact = _numbers_shown(rows, slots, exact)
    available = {name: rows.column(slots[index].name) for name, index in exact.items()} | shown
    if columns is None and inexact:
        on_typed(inexact)
    selected = list(shown if columns is None else columns)
    if with_exact:
        selected += [name for name in exact if name not in selected]
    if unknown := [name for name in selected if name not in available]:
        raise InvalidArgument(
            f"unknown column {', '.join(unknown)}; the table has {', '.join(available)}"
        )
    return _table_of(
        rows, {name: available[name] for name in selected}, {slot.name for slot in slots}
    )


class JoinedNumbers(NamedTuple):
    """The column that readers see for the integers and floats of a property."""

    logical: str
    """Name of the property."""
    name: str
    """Name of the column."""
    exact_names: tuple[str, ...]
    """Names of the columns with the types as stored."""


def joined_numbers(table: pa.Schema) -> list[JoinedNumbers]:
    """Return the columns of an archive that show readers both the integers and the floats of a
    property."""
    property_columns = _properties_of(table)
    shape = StructShape(tuple(_slot_of(field) for field in table if field.name in property_columns))
    name_of = {index: name for name, index in typed_columns(shape).items()}
    return [
        JoinedNumbers(
            column.logical, column.name, tuple(name_of[index] for index in column.sources)
        )
        for column in shown_columns(shape)
        if len(column.sources) > 1
    ]


def _numbers_shown(
    rows: pa.Table, slots: Sequence[Slot], exact: Mapping[str, int]
) -> tuple[dict[str, pa.ChunkedArray], list[str]]:
    """Return the columns that readers see, in stored order, and the properties whose numbers cannot
    share a column.

    ``exact`` has the slot index of each typed column by name.
    """
    name_of = {slots[index].name: name for name, index in exact.items()}
    shown_in_place: dict[str, tuple[str, pa.ChunkedArray] | None] = {}
    """Name and values of the shown column, by the name of the stored column; None for a stored
    column that is not shown."""
    inexact = []
    for column in shown_columns(StructShape(tuple(slots))):
        parts = [slots[index] for index in column.sources]
        if len(parts) == 1:
            continue
        joined = _joined(rows, parts, column)
        if joined is None:
            inexact.append(column.logical)
            shown_in_place |= {
                slot.name: (name_of[slot.name], rows.column(slot.name)) for slot in parts
            }
        else:
            # The joined column is shown at the position of its first part.
            shown_in_place |= {slot.name: None for slot in parts}
            shown_in_place[parts[0].name] = column.name, joined
    shown = (shown_in_place.get(name, (name, rows.column(name))) for name in rows.schema.names)
    return dict(column for column in shown if column is not None), inexact


def _slot_of(field: pa.Field) -> Slot:
    """Return the slot of the property in a column of an archive."""
    logical = field.metadata.get(_LOGICAL, field.metadata[PROPERTY]).decode()
    return Slot(field.name, logical, _shape_of(field.type))


def _joined(rows: pa.Table, parts: Sequence[Slot], column: ShownColumn) -> pa.ChunkedArray | None:
    """Return the numbers of several columns as one column; None if an integer has no exact
    double."""
    names, shapes = [part.name for part in parts], [part.shape for part in parts]
    try:
        chunks = [
            column.compute(batch.columns, shapes) for batch in rows.select(names).to_batches()
        ]
    except NotExact:
        return None
    return pa.chunked_array(chunks, type=column.field.type)


def _table_of(
    rows: pa.Table, columns: Mapping[str, pa.ChunkedArray], stored: Collection[str]
) -> pa.Table:
    """Return a table of these columns. Columns that are not properties (``stored`` are) keep their
    metadata."""
    fields = [
        rows.schema.field(name)
        if name in rows.schema.names and name not in stored
        else pa.field(name, array.type)
        for name, array in columns.items()
    ]
    return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def from_archive(rows: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """Convert archive rows back to stored events. ``table`` is the schema of the archive."""
    count = rows.num_rows
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays: dict[str, pa.Array] = {}
    for name in BODY:
        stored = _reserved(name) if name in _RESERVED_COLUMNS else name
        array = columns.get(stored)
        if name == "properties":
            array = _properties(columns, table, count)
        elif name == "sparse":
            array = None  # computed below
        elif name not in _PLAIN and name not in _RESERVED_COLUMNS:
            array = None
        if array is not None and (name == "data" or array.null_count < count):
            arrays[name] = array
    if "properties" in arrays and not _has_every_property(arrays):
        # In an archive a null means an absent key, so all rows are sparse.
        arrays["sparse"] = pa.repeat(pa.scalar(True), count)
    fields = [*(pa.field(name, kind, nullable=False) for name, kind in STAMPED.items())]
    stamped = [columns[name].cast(kind) for name, kind in STAMPED.items()]
    body = [name for name in BODY if name in arrays]
    typed = []
    for name in body:
        body_type = BODY[name]
        typed.append(arrays[name] if body_type is None else arrays[name].cast(body_type))
        fields.append(pa.field(name, typed[-1].type))
    return pa.RecordBatch.from_arrays([*stamped, *typed], schema=pa.schema(fields))


def _properties(
    columns: dict[str, pa.Array], table: pa.Schema, count: int
) -> pa.StructArray | None:
    """Return the column ``properties`` from the columns of an archive; None without values."""
    fields, arrays = [], []
    for column, name in _properties_of(table).items():
        if column not in columns:
            continue
        array, field = columns[column], table.field(column)
        if array.null_count == count:
            continue
        logical = field.metadata.get(_LOGICAL)
        metadata = None if logical is None else {_LOGICAL: logical}
        kind = arrow_type(_shape_of(field.type))
        fields.append(pa.field(name, kind, metadata=metadata))
        as_field = array if array.type.equals(field.type) else array.cast(field.type)
        # A cast matches fields by name, and the channel's names may differ: a view renames them.
        arrays.append(as_field if field.type.equals(kind) else as_field.view(kind))
    # A property that was always null has no column. Only `nulls` has its name.
    field_names = {field.name for field in fields}
    for name in _null_names(columns.get(_reserved("nulls"))):
        if name not in field_names:
            fields.append(pa.field(name, pa.null()))
            arrays.append(pa.nulls(count))
    if not fields:
        return None
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _shape_of(kind: pa.DataType) -> Shape:
    """Return the shape of a column of an archive, with field names as in the channel."""
    # `struct_shape` takes structs only, so the type becomes the field of a struct.
    wrapped = struct_shape(pa.struct([pa.field("value", _with_schema_names(kind))]))
    return wrapped.slots[0].shape


def _with_schema_names(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with list elements and fields named as in the schemas of channels."""
    if pa.types.is_list(kind):
        return pa.list_(_with_schema_names(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                pa.field(_own_name(f), _with_schema_names(f.type), metadata=_logical_of(f))
                for f in kind
            ]
        )
    return kind


def _logical_of(field: pa.Field) -> dict[bytes, bytes] | None:
    """Return the metadata of a field whose name differs from its property's name."""
    logical = (field.metadata or {}).get(_LOGICAL)
    is_own_name = logical is None or logical.decode() == _own_name(field)
    return None if logical is None or is_own_name else {_LOGICAL: logical}


def _null_names(nulls: pa.Array | None) -> list[str]:
    """Return the names of top-level properties that are an explicit null in some row."""
    if nulls is None:
        return []
    paths = pc.unique(pc.list_flatten(nulls)).to_pylist()
    return [name for path in paths if (name := _plain_name(path)) is not None]


def _plain_name(path: str) -> str | None:
    """Return the property of a path; None if the path leads inside the property."""
    # A path with a dot or bracket that is not escaped differs after it is escaped again.
    name = path.replace("\\.", ".").replace("\\[", "[").replace("\\]", "]").replace("\\\\", "\\")
    return name if key_path("", name) == path else None


def _has_every_property(arrays: dict[str, pa.Array]) -> bool:
    """Whether every event has every property, so that no null can be an absent key."""
    properties = arrays["properties"]
    if "nulls" in arrays:
        return False
    # Keys may be absent inside a nested value, even if the value is never null.
    return all(
        not properties.field(number).null_count and not pa.types.is_nested(field.type)
        for number, field in enumerate(properties.type)
    )
