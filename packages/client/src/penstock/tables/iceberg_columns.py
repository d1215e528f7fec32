"""Converts the columns of an Iceberg table to those of a :class:`State` and back.

Iceberg identifies columns by ids, but data files of Penstock have only names; a name mapping of the
table connects the two. Iceberg does not store metadata of columns. A table property therefore
records for each column id the metadata, and the name that the column had when it was written.
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
"""Key of a column's name in its record. It cannot be a key of metadata, which is never empty."""
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
    """Return the Iceberg schema for ``columns``.

    ``current`` is the present schema of the table: its columns keep their ids and types. New
    columns get ids above ``last_id``. Raises ``InvalidArgument`` if two columns have the same path
    in Iceberg.
    """
    check_paths(columns)
    ids = count(last_id + 1)
    return Schema(*_fields(columns, current.fields if current is not None else (), ids))


def check_paths(columns: pa.Schema) -> None:
    """Raise ``InvalidArgument`` if two columns have the same path in Iceberg, which joins the names
    of nested fields with dots."""
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
    """Return the Iceberg fields for ``columns``; fields of ``current`` keep their ids."""
    by_name = {field.name: field for field in current}
    return [
        _extend_column(by_name[column.name], column.type, ids)
        if column.name in by_name
        else NestedField(next(ids), column.name, _new_type(column.type, ids), required=False)
        for column in columns
    ]


def _extend_column(field: NestedField, kind: pa.DataType, ids: Iterator[int]) -> NestedField:
    """Return a column of the table, extended by the struct fields that only ``kind`` has."""
    return field.model_copy(update={"field_type": _extend_type(field.field_type, kind, ids)})


def _extend_type(current: IcebergType, kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return an Iceberg type, extended by the struct fields that only ``kind`` has."""
    if isinstance(current, StructType) and pa.types.is_struct(kind):
        return StructType(*_fields(kind, current.fields, ids))
    if isinstance(current, ListType) and pa.types.is_list(kind):
        element = _extend_type(current.element_type, kind.value_type, ids)
        return ListType(current.element_id, element, current.element_required)
    return current


def _new_type(kind: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return the Iceberg type for an Arrow type. Fields and elements inside it get new ids."""
    if pa.types.is_struct(kind):
        return StructType(*_fields(kind, (), ids))
    if pa.types.is_list(kind):
        element_id = next(ids)
        return ListType(element_id, _new_type(kind.value_type, ids), element_required=False)
    if pa.types.is_map(kind):
        key_id, value_id = next(ids), next(ids)
        key, value = _new_type(kind.key_type, ids), _new_type(kind.item_type, ids)
        return MapType(key_id, key, value_id, value, value_required=False)
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _PLAIN[kind]


# --- metadata of columns ------------------------------------------------------------------


def column_records(schema: Schema, columns: pa.Schema) -> str:
    """Return the value of the table property :data:`COLUMNS`: the name and metadata of each column
    by its id, in JSON."""
    records: dict[str, dict[str, str]] = {}
    _add_records(records, schema.as_struct(), columns)
    return json.dumps(records, separators=(",", ":"))


def _add_records(records: dict[str, dict[str, str]], kind: IcebergType, columns: Any) -> None:
    """Add to ``records`` the name and metadata of each field inside the type ``kind``.

    ``columns`` is the corresponding Arrow type or schema.
    """
    if isinstance(kind, ListType) and pa.types.is_list(columns):
        _add_records(records, kind.element_type, columns.value_type)
    elif isinstance(kind, StructType):
        by_name = {column.name: column for column in columns}
        for field in kind.fields:
            column = by_name[field.name]
            metadata = {
                key.decode(): value.decode() for key, value in (column.metadata or {}).items()
            }
            records[str(field.field_id)] = {_NAME: field.name, **metadata}
            _add_records(records, field.field_type, column.type)


def arrow_columns(schema: Schema, records: str) -> pa.Schema:
    """Return the Arrow columns of an Iceberg table, with the recorded metadata.

    ``records`` is the value of the table property :data:`COLUMNS`; empty if the table does not have
    it. Raises ``InvalidArgument`` if a column was renamed since it was recorded.
    """
    by_id: dict[str, dict[str, str]] = json.loads(records or "{}")
    kind = pa.struct(list(schema_to_pyarrow(schema, include_field_ids=False)))
    return pa.schema(list(_with_metadata(kind, schema.as_struct(), by_id)))


def _with_metadata(
    kind: pa.DataType, current: IcebergType, records: Mapping[str, Mapping[str, str]]
) -> Any:
    """Return the Arrow type ``kind`` as tables store it, with the recorded metadata of the fields
    inside it. ``current`` is the corresponding Iceberg type."""
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
    """Return an Arrow column with its recorded metadata. Raises ``InvalidArgument`` if the column
    was renamed."""
    record = dict(records.get(str(field.field_id), {}))
    name = record.pop(_NAME, field.name)
    if name != field.name:
        raise InvalidArgument(
            f"another program renamed the column {name!r} to {field.name!r}, and data files find "
            f"their columns by name; rename it back"
        )
    kind = _with_metadata(column.type, field.field_type, records)
    return pa.field(field.name, kind, metadata=record or None)
