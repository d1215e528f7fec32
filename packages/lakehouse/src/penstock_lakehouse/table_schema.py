"""The Iceberg schema of a table: ids and types of its columns, and the name mapping.

The id of a column is computed from its path (SEM B4). Data files contain no column ids; clients
find their columns by name, through the name mapping of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from penstock_core.columns.files.table_rows import REQUIRED
from penstock_core.columns.schema.layout import UTC_MICROSECONDS

_FIRST_ID: Final = 1_000
"""Smallest id of a column of a property. Smaller ids belong to the columns of `_FIXED`."""
_IDS: Final = 2_000_000_000
"""Number of ids for columns of properties. Iceberg reserves the ids close to the largest 32-bit
integer."""
_FIXED: Final[Mapping[str, int]] = {
    name: number
    for number, name in enumerate(
        ("event_id", "published", "tag", "data", "ttl", "priority", "persistent", "headers"), 1
    )
}
_TYPES: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    UTC_MICROSECONDS: "timestamptz",
    pa.timestamp("us"): "timestamp",
}


class ColumnIds:
    """The ids of the columns of one table."""

    def __init__(self, number_of: Callable[[bytes], int] = xxh3_64_intdigest) -> None:
        """``number_of`` hashes a path to a number; the id is computed from the number."""
        self._number_of = number_of
        self._paths: dict[int, str] = {}

    def id_of(self, path: str) -> int:
        """Return the id of a column or of a field inside one. ``path`` is the names of the column
        and of the fields, separated by line feeds."""
        column_id = _FIXED.get(path)
        salt = ""
        while column_id is None or self._paths.setdefault(column_id, path) != path:
            column_id = _FIRST_ID + self._number_of((path + salt).encode()) % _IDS
            # If another path has this id, the next round hashes the path with one line feed more.
            salt += "\n"
        return column_id

    @property
    def last(self) -> int:
        """The largest id in use."""
        return max(self._paths, default=max(_FIXED.values()))


class Leaf(NamedTuple):
    """A primitive column of a Parquet file: a column of the table, or one value inside it."""

    column_id: int
    kind: str
    """The column's type in Iceberg."""
    in_list: bool
    """Whether the column is inside a list, so that a row can have several values."""


class TableSchema(NamedTuple):
    """The Iceberg schema of a table, as parts of its metadata."""

    fields: list[dict[str, Any]]
    """The columns, in Iceberg's JSON form."""
    mapping: list[dict[str, Any]]
    """The name mapping: value of the table property ``schema.name-mapping.default``."""
    last_column_id: int
    """The largest column id."""

    def document(self, schema_id: int) -> dict[str, Any]:
        """Return the schema in JSON."""
        return {"type": "struct", "schema-id": schema_id, "fields": self.fields}

    def leaves(self, names: Collection[str]) -> Iterator[Leaf]:
        """Yield the Parquet columns of a file that has the table columns ``names``, in the order of
        the file."""
        for field in self.fields:
            if field["name"] in names:
                yield from _leaves(field["id"], field["type"], in_list=False)


def table_schema(columns: pa.Schema) -> TableSchema:
    """Return the Iceberg schema of columns whose types are those of
    :func:`penstock_core.columns.files.table_rows.table_column_type`."""
    ids = ColumnIds()
    fields, mapping = _struct(columns, "", ids)
    return TableSchema(fields, mapping, ids.last)


def _leaves(column_id: int, kind: Any, *, in_list: bool) -> Iterator[Leaf]:
    """Yield the Parquet columns of a column whose Iceberg type, in JSON form, is ``kind``."""
    if isinstance(kind, str):
        yield Leaf(column_id, kind, in_list)
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["id"], field["type"], in_list=in_list)
    else:
        yield from _leaves(kind["element-id"], kind["element"], in_list=True)


def _struct(
    columns: pa.Schema | pa.StructType, parent_path: str, ids: ColumnIds
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the Iceberg fields of columns, and their name mapping. ``parent_path`` is the path of
    the struct that contains them; empty for columns of the table."""
    fields, mapping = [], []
    for column in columns:
        path = f"{parent_path}\n{column.name}" if parent_path else column.name
        column_id = ids.id_of(path)
        kind, inner_mapping = _type(column.type, path, ids)
        required = not parent_path and column.name in REQUIRED
        fields.append({"id": column_id, "name": column.name, "required": required, "type": kind})
        mapped: dict[str, Any] = {"field-id": column_id, "names": [column.name]}
        if inner_mapping:
            mapped["fields"] = inner_mapping
        mapping.append(mapped)
    return fields, mapping


def _type(kind: pa.DataType, path: str, ids: ColumnIds) -> tuple[Any, list[dict[str, Any]]]:
    """Return the Iceberg type of a column, and the name mapping of the fields inside it."""
    if pa.types.is_struct(kind):
        fields, mapping = _struct(kind, path, ids)
        return {"type": "struct", "fields": fields}, mapping
    if pa.types.is_list(kind):
        element_path = f"{path}\nelement"
        element_id = ids.id_of(element_path)
        element, inner_mapping = _type(kind.value_type, element_path, ids)
        mapped: dict[str, Any] = {"field-id": element_id, "names": ["element"]}
        if inner_mapping:
            mapped["fields"] = inner_mapping
        list_type = {
            "type": "list",
            "element-id": element_id,
            "element": element,
            "element-required": False,
        }
        return list_type, [mapped]
    return _TYPES[kind], []
