"""The columns of an Iceberg table, and how they become the columns of a :class:`State`.

Iceberg finds columns by ids, data files of Penstock by names: the table has a mapping from names to
ids. Iceberg keeps no metadata of columns, so a property of the table has it by id, with the names
that the columns had when they were written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from penstock.tables.kinds import stored_kind
from penstock_core.columns.files.table_rows import column_paths
from penstock_core.vocabulary.errors import InvalidArgument

COLUMNS: Final = "penstock.columns"
"""Property of a table with the names and the metadata of its columns by id, in JSON."""
NAME_MAPPING: Final = "schema.name-mapping.default"
_NAME: Final = ""
"""Key of a column's name; keys of metadata are not empty."""
_PLAIN: Final[Mapping[pa.DataType, IcebergType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): IntegerType(),
    pa.int16(): IntegerType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", tz="UTC"): TimestamptzType(),
}


def iceberg_schema(columns: pa.Schema, current: Schema | None = None, last_id: int = 0) -> Schema:
    """Return the schema of a table with these columns.

    Columns that ``current`` has keep their ids and types; new ones get ids above ``last_id``.
    Raises ``InvalidArgument`` if Iceberg would take two of the columns for one.
    """
    check_paths(columns)
    ids = count(last_id + 1)
    return Schema(*_fields(columns, current.fields if current is not None else (), ids))


def check_paths(columns: pa.Schema) -> None:
    """Raise ``InvalidArgument`` for columns whose paths are equal: Iceberg joins names with
    dots."""
    used: set[str] = set()
    for path, _ in column_paths(columns):
        if path in used:
            raise InvalidArgument(
                f"column {path!r} exists twice, as a name with a dot and as a field of a struct, "
                f"which Iceberg takes for one column; rename one of them, or use a Delta table"
            )
        used.add(path)


def _fields(
    columns: pa.Schema | pa.StructType, current: tuple[NestedField, ...], ids: Iterator[int]
) -> list[NestedField]:
    by_name = {field.name: field for field in current}
    return [
        _grown(by_name[column.name], column.type, ids)
        if column.name in by_name
        else NestedField(next(ids), column.name, _new(column.type, ids), required=False)
        for column in columns
    ]


def _grown(field: NestedField, kind: pa.DataType, ids: Iterator[int]) -> NestedField:
    """Return a column of the table with new fields inside it."""
    return field.model_copy(update={"field_type": _grown_type(field.field_type, kind, ids)})


def _grown_type(current: IcebergType, kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    if isinstance(current, StructType) and pa.types.is_struct(kind):
        return StructType(*_fields(kind, current.fields, ids))
    if isinstance(current, ListType) and pa.types.is_list(kind):
        element = _grown_type(current.element_type, kind.value_type, ids)
        return ListType(current.element_id, element, current.element_required)
    return current


def _new(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    if pa.types.is_struct(kind):
        return StructType(*_fields(kind, (), ids))
    if pa.types.is_list(kind):
        element_id = next(ids)
        return ListType(element_id, _new(kind.value_type, ids), element_required=False)
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key, value = _new(kind.key_type, ids), _new(kind.item_type, ids)
        return MapType(key_id, key, value_id, value, value_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _PLAIN[kind]


# --- metadata of columns ------------------------------------------------------------------


def column_records(schema: Schema, columns: pa.Schema) -> str:
    """Return the value of the property :data:`COLUMNS` for a table with these columns."""
    records: dict[str, dict[str, str]] = {}
    _record(records, schema.as_struct(), columns)
    return json.dumps(records, separators=(",", ":"))


def _record(records: dict[str, dict[str, str]], kind: IcebergType, columns: Any) -> None:
    """Add the records of the fields inside a type; ``columns`` is its Arrow type or a schema."""
    if isinstance(kind, ListType) and pa.types.is_list(columns):
        _record(records, kind.element_type, columns.value_type)
    elif isinstance(kind, StructType):
        by_name = {column.name: column for column in columns}
        for field in kind.fields:
            column = by_name[field.name]
            metadata = {
                key.decode(): value.decode() for key, value in (column.metadata or {}).items()
            }
            records[str(field.field_id)] = {_NAME: field.name, **metadata}
            _record(records, field.field_type, column.type)


def arrow_columns(schema: Schema, records: str) -> pa.Schema:
    """Return the columns of a table in the types of tables, with their metadata.

    ``records`` is the property :data:`COLUMNS`, empty if the table does not have it. Raises
    ``InvalidArgument`` if a column was renamed since it was recorded.
    """
    by_id: dict[str, dict[str, str]] = json.loads(records or "{}")
    kind = pa.struct(list(schema_to_pyarrow(schema, include_field_ids=False)))
    return pa.schema(list(_with_metadata(kind, schema.as_struct(), by_id)))


def _with_metadata(
    kind: pa.DataType, current: IcebergType, records: Mapping[str, Mapping[str, str]]
) -> Any:
    """Return an Arrow type in the types of tables, with the metadata of the fields inside it."""
    if isinstance(current, StructType):
        return pa.struct(
            [
                _field_with_metadata(column, field, records)
                for column, field in zip(kind, current.fields, strict=True)
            ]
        )
    if isinstance(current, ListType):
        element = _with_metadata(kind.value_type, current.element_type, records)
        return pa.list_(pa.field("element", element))
    return stored_kind(kind) or kind


def _field_with_metadata(
    column: pa.Field, field: NestedField, records: Mapping[str, Mapping[str, str]]
) -> pa.Field:
    record = dict(records.get(str(field.field_id), {}))
    name = record.pop(_NAME, field.name)
    if name != field.name:
        raise InvalidArgument(
            f"another program renamed the column {name!r} to {field.name!r}, and data files find "
            f"their columns by name; rename it back"
        )
    kind = _with_metadata(column.type, field.field_type, records)
    return pa.field(field.name, kind, metadata=record or None)
