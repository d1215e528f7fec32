"""The column types of tables, and the conversion of rows to the columns of a table."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from penstock_core.vocabulary.errors import InvalidArgument

_UNCHANGED_TYPES: Final = frozenset(
    str(kind)
    for kind in (
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
    )
)
_STORED_AS: Final = {
    str(source): kind
    for source, kind in (
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.uint8(), pa.int16()),
        (pa.uint16(), pa.int32()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
    )
}
PARTITION_TYPES: Final = frozenset(
    str(kind)
    for kind in (
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.string(),
        pa.date32(),
    )
)
"""Names of the column types that can partition a table."""


def stored_kind(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a table's column for values of type ``kind``; None if tables cannot store
    them."""
    name = str(kind)
    if name in _UNCHANGED_TYPES:
        return kind
    if name in _STORED_AS:
        return _STORED_AS[name]
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC") if kind.tz else pa.timestamp("us")
    if pa.types.is_decimal(kind):
        # Delta and Iceberg allow decimals of up to 38 digits.
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    if pa.types.is_dictionary(kind):
        return stored_kind(kind.value_type)
    return _nested(kind)


def _nested(kind: pa.DataType) -> pa.DataType | None:
    """Return the stored type of a map, struct or list; None if tables cannot store it."""
    if pa.types.is_map(kind):
        key, item = stored_kind(kind.key_type), stored_kind(kind.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_struct(kind):
        fields = [(field, stored_kind(field.type)) for field in kind]
        # Parquet cannot represent a struct without fields.
        if not fields or any(stored is None for _, stored in fields):
            return None
        return pa.struct(
            [field.with_type(stored).with_nullable(nullable=True) for field, stored in fields]
        )
    # All list types of Arrow have this attribute: large lists, views and lists of a fixed size.
    if hasattr(kind, "value_type"):
        element = stored_kind(kind.value_type)
        return None if element is None else pa.list_(pa.field("element", element))
    return None


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a new table for rows of ``schema``. Columns of type null are left out.

    Raises ``InvalidArgument`` for a type that tables cannot store, and for names that differ only
    in case.
    """
    fields = []
    names: dict[str, str] = {}
    for field in schema:
        if pa.types.is_null(field.type):
            continue
        earlier = names.get(field.name.casefold())
        if earlier is not None:
            raise InvalidArgument(
                f"columns {earlier!r} and {field.name!r} differ only in case, which programs that "
                f"read tables ignore; rename one of them"
            )
        names[field.name.casefold()] = field.name
        kind = stored_kind(field.type)
        if kind is None:
            raise InvalidArgument(
                f"column {field.name!r} has type {field.type}, which tables cannot hold; cast it, "
                "for example to a string, or leave it out"
            )
        fields.append(pa.field(field.name, kind, metadata=field.metadata))
    return pa.schema(fields)


def check_fields(schema: pa.Schema) -> None:
    """Raise ``InvalidArgument`` for fields of a struct that differ only in case. The Delta library
    would raise an error that names neither the column nor a remedy."""
    for field in schema:
        _check_fields(field.type, field.name)


def _check_fields(kind: pa.DataType, path: str) -> None:
    """Raise ``InvalidArgument`` for struct fields inside a type that differ only in case."""
    if pa.types.is_list(kind):
        _check_fields(kind.value_type, path)
    if not pa.types.is_struct(kind):
        return
    names: dict[str, str] = {}
    for field in kind:
        earlier = names.setdefault(field.name.casefold(), field.name)
        if earlier != field.name:
            raise InvalidArgument(
                f"column {path!r} has the fields {earlier!r} and {field.name!r}, which differ only "
                "in case, and Delta ignores case; rename one of them, or write a Parquet table"
            )
        _check_fields(field.type, f"{path}.{field.name}")


def extend_columns(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Return the columns of ``table``, extended by those that only ``rows`` has. Structs are
    extended by the fields that only ``rows`` has.

    Existing columns keep their types. Raises the errors of :func:`stored_schema`.
    """
    rows = stored_schema(rows)
    table_names = {name.casefold(): name for name in table.names}
    fields = list(table)
    for field in rows:
        name = table_names.get(field.name.casefold())
        if name is None:
            fields.append(field)
            continue
        index = table.get_field_index(name)
        fields[index] = fields[index].with_type(_extend_type(fields[index].type, field.type))
    return pa.schema(fields)


def columns_of(table: pa.Schema, names: list[str]) -> pa.Schema:
    """Return the columns of a table whose names are in ``names``; case is ignored."""
    table_names = {name.casefold(): name for name in table.names}
    columns = [table_names[name.casefold()] for name in names if name.casefold() in table_names]
    return pa.schema([table.field(name) for name in columns])


def _extend_type(kind: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return ``kind``, extended by the struct fields that only ``other`` has."""
    if pa.types.is_struct(kind) and pa.types.is_struct(other):
        fields = list(kind)
        for field in other:
            index = kind.get_field_index(field.name)
            if index < 0:
                fields.append(field)
            else:
                fields[index] = fields[index].with_type(
                    _extend_type(fields[index].type, field.type)
                )
        return pa.struct(fields)
    if pa.types.is_list(kind) and pa.types.is_list(other):
        return pa.list_(kind.value_field.with_type(_extend_type(kind.value_type, other.value_type)))
    return kind


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert ``rows`` to the columns of ``schema``. Missing columns are filled with nulls.

    Raises ``InvalidArgument``, which names the column, if values cannot be converted without loss.
    """
    indexes = {name.casefold(): index for index, name in enumerate(rows.schema.names)}
    arrays = []
    for field in schema:
        index = indexes.get(field.name.casefold())
        if index is None:
            arrays.append(pa.nulls(rows.num_rows, field.type))
            continue
        try:
            arrays.append(_convert(rows.column(index), field.type))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidArgument(
                f"column {field.name!r} has type {field.type} in the table, and these values of "
                f"type {rows.column(index).type} do not fit: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _convert(array: Any, kind: pa.DataType) -> Any:
    """Convert ``array`` to the type ``kind``. Struct fields are matched by name; missing fields are
    filled with nulls.

    Raises ``ValueError`` or an error of Arrow if values do not fit.
    """
    if array.type.equals(kind):
        return array
    if pa.types.is_dictionary(array.type):
        return _convert(array.dictionary_decode(), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        names = {field.name: index for index, field in enumerate(array.type)}
        extra = names.keys() - {field.name for field in kind}
        if extra:
            raise ValueError(f"no field {', '.join(sorted(extra))}")
        # Unlike `field`, this respects the offset of a slice and the nulls of the struct.
        children = array.flatten()
        fields = [
            _convert(children[names[field.name]], field.type)
            if field.name in names
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        # Arrow cannot build a list array from offsets and a mask if the offsets are a slice.
        if not array.offset and not array.null_count:
            return pa.ListArray.from_arrays(
                array.offsets, _convert(array.values, kind.value_type), kind
            )
        compact = pa.concat_arrays([array])  # a copy whose offsets start at 0
        values = _convert(compact.values, kind.value_type)
        return pa.ListArray.from_arrays(compact.offsets, values, kind, mask=compact.is_null())
    return array.cast(kind)
