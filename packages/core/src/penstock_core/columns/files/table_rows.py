"""Events as rows of a table: the columns of an archive as readers see them.

A table has a column for each part of an event and for each property (SEM B4). The integers and
floats of a property are one column of doubles if all of them are exact as doubles (SEM E10); the
table also has the columns with their exact types.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.files.archives import DAY, ArchiveLayout, joined_numbers, shown_rows
from penstock_core.columns.schema.free_names import PREFIX
from penstock_core.columns.schema.layout import ORIGIN, RESERVED_PREFIX, STAMPED
from penstock_core.columns.schema.rows import Publishers
from penstock_core.columns.schema.struct_fields import field_of

REQUIRED: Final = frozenset(("event_id", "published"))
"""Columns that every row has."""
_DELTA: Final = f"{RESERVED_PREFIX}_delta"
_ORIGIN: Final = f"{RESERVED_PREFIX}_origin"
PROGRAM_TYPES: Final[Mapping[str, pa.DataType]] = {
    _ORIGIN: pa.struct(list(ORIGIN.items())),
    f"{RESERVED_PREFIX}_nulls": pa.list_(pa.string()),
    f"{RESERVED_PREFIX}_more": pa.binary(),
}
"""The types of the columns for programs."""
PROGRAM_COLUMNS: Final = frozenset(PROGRAM_TYPES)
"""Columns for programs, which a table has only if an event has a value in them."""


class TableRows(NamedTuple):
    """Events as rows of a table, in the order of their ids."""

    table: pa.Table
    """The rows; columns without any value are left out, except the required ones."""
    inexact: frozenset[str]
    """Properties with an integer that is not exact as a double."""


class TableLayout:
    """The columns of a channel's table.

    ``stored`` is the schema of the channel's events so far. Each property has a column, even if no
    stored event has a value of it any more.
    """

    def __init__(self, stored: pa.Schema) -> None:
        self._archive = ArchiveLayout(stored)
        no_rows = self._archive.of(no_events(stored))
        self._joined = joined_numbers(no_rows.schema)
        self._final_names: dict[str, str] = {}
        """Names of columns in tables, by their names in archives."""
        shown = self._shown(pa.table(no_rows), inexact=[]).schema
        self.columns = pa.schema(field for field in shown if field.name not in PROGRAM_TYPES)
        """All columns but those for programs, if all integers are exact as doubles."""
        self.prefixed = frozenset(
            path for path, name in column_paths(shown) if name.startswith(PREFIX)
        )
        """The paths of columns and fields whose names got a prefix, so that all paths are distinct.
        These names may change when a property is added."""

    def rows_of(self, batches: Iterable[pa.RecordBatch], publishers: Publishers) -> TableRows:
        """Return stored events as rows."""
        inexact: list[str] = []
        parts = [_with_full_origin(self._archive.of(batch, publishers)) for batch in batches]
        rows = self._shown(pa.concat_tables(parts, promote_options="default"), inexact)
        ids = rows.column("event_id").to_numpy()
        if not (ids[1:] > ids[:-1]).all():
            # Transient and late events have lower ids than events stored before them.
            rows = rows.take(np.argsort(ids, kind="stable"))
        used = [
            name
            for name in (*self.columns.names, *PROGRAM_TYPES)
            if name in rows.column_names
            and (name in REQUIRED or rows.column(name).null_count < len(rows))
        ]
        return TableRows(rows.select(used).combine_chunks(), frozenset(inexact))

    def columns_with(self, inexact: Container[str], names: Container[str]) -> pa.Schema:
        """Return the columns of a table whose files have the columns ``names``.

        ``inexact`` are the properties with an integer that is not exact as a double.
        """
        hidden = {
            self._final_names[column.name] for column in self._joined if column.logical in inexact
        }
        shown = [field for field in self.columns if field.name not in hidden]
        programs = [
            pa.field(name, table_column_type(kind))
            for name, kind in PROGRAM_TYPES.items()
            if name in names
        ]
        return pa.schema([*shown, *programs])

    def fits(self, names: Collection[str], joined: Container[str]) -> bool:
        """Whether a file with the columns ``names`` can be a part of a table with this layout.

        A file cannot if it has numbers of a property whose integers and floats are one column in
        this layout, and were not yet one column when the file was written. ``joined`` is the value
        of :attr:`joined` at that time.
        """
        return all(
            column.logical in joined
            or not any(
                self._final_names.get(name, name) in names
                for name in (column.logical, column.name, *column.exact_names)
            )
            for column in self._joined
        )

    def name_of(self, column: str) -> str:
        """Return the name of an archive's column in tables."""
        return self._final_names.get(column, column)

    @property
    def joined(self) -> frozenset[str]:
        """The properties whose integers and floats are one column."""
        return frozenset(column.logical for column in self._joined)

    def _shown(self, rows: pa.Table, inexact: list[str]) -> pa.Table:
        """Return archive rows with the columns of a table: those that readers see, and the exact
        columns of numbers that share one column. Add the properties with an integer that is not
        exact as a double to ``inexact``."""
        shown = shown_rows(rows, with_exact=True, on_typed=inexact.extend)
        shown = shown.select([name for name in shown.column_names if name not in (DAY, _DELTA)])
        schema = pa.schema(
            pa.field(field.name, table_column_type(field.type)) for field in shown.schema
        )
        rows = shown.replace_schema_metadata(None).cast(schema)
        distinct = distinct_names(schema)
        self._final_names |= zip(schema.names, distinct.names, strict=True)
        if distinct == schema:
            return rows
        return pa.table(
            [
                column if column.type == field.type else _renamed(column, field.type)
                for column, field in zip(rows.columns, distinct, strict=True)
            ],
            schema=distinct,
        )


def table_column_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column in a table: small integers have 32 bits, as Parquet stores
    them."""
    if pa.types.is_list(kind):
        return pa.list_(table_column_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, table_column_type(f.type)) for f in kind])
    return pa.int32() if kind in (pa.int8(), pa.int16()) else kind


def column_paths(columns: pa.Schema | pa.DataType, above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each column and of each field inside it, as Iceberg joins the
    names; the elements of a list have the name ``element``."""
    for column in columns:
        path, kind = f"{above}{column.name}", column.type
        yield path, column.name
        while pa.types.is_list(kind):
            path, kind = f"{path}.element", kind.value_type
            yield path, "element"
        if pa.types.is_struct(kind):
            yield from column_paths(kind, f"{path}.")


def parquet_columns(
    columns: pa.Schema | pa.StructType, above: str = ""
) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and the type of each column that a Parquet file has for these columns."""
    for column in columns:
        path, kind = f"{above}{column.name}", column.type
        while pa.types.is_list(kind):
            path, kind = f"{path}.list.element", kind.value_type
        if pa.types.is_struct(kind):
            yield from parquet_columns(kind, f"{path}.")
        else:
            yield path, kind


def distinct_names(schema: pa.Schema) -> pa.Schema:
    """Return the schema with distinct paths of columns and fields, ignoring case.

    Iceberg joins names with dots, so a property ``a.b`` and the field ``b`` of a property ``a``
    would be the same column. The later one gets a prefix.
    """
    used: set[str] = set()
    return pa.schema([_distinct(field, "", used) for field in schema])


def _distinct(field: pa.Field, above: str, used: set[str]) -> pa.Field:
    """Return a field with a name whose path is not in ``used``, and add the path. ``above`` is the
    path of the fields around it, which ends with a dot."""
    name = field.name
    while (path := f"{above}{name}").casefold() in used:
        name = f"{PREFIX}{name}"
    used.add(path.casefold())
    return pa.field(name, _distinct_inside(field.type, path, used), nullable=field.nullable)


def _distinct_inside(kind: pa.DataType, path: str, used: set[str]) -> pa.DataType:
    """Return a type whose inner fields have paths that are not in ``used``, and add these paths."""
    if pa.types.is_struct(kind):
        return pa.struct([_distinct(field, f"{path}.", used) for field in kind])
    if pa.types.is_list(kind):
        used.add(f"{path}.element".casefold())
        return pa.list_(_distinct_inside(kind.value_type, f"{path}.element", used))
    return kind


def _renamed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column with other names of the fields inside it."""
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)


def no_events(stored: pa.Schema) -> pa.RecordBatch:
    """Return an empty stored batch with the columns of a channel."""
    fields = [*(pa.field(name, kind, nullable=False) for name, kind in STAMPED.items())]
    fields += [field for field in stored if field.name not in STAMPED]
    return pa.RecordBatch.from_arrays(
        [pa.array([], field.type) for field in fields], schema=pa.schema(fields)
    )


def _with_full_origin(rows: pa.RecordBatch) -> pa.Table:
    """Return archive rows whose column ``$penstock_origin`` has all its fields, so that the rows of
    several batches have one type."""
    index = rows.schema.get_field_index(_ORIGIN)
    if index < 0:
        return pa.table(rows)
    origin = rows.column(index)
    kind = PROGRAM_TYPES[_ORIGIN]
    fields = {field.name: number for number, field in enumerate(origin.type)}
    arrays = [
        field_of(origin, fields[field.name]).cast(field.type)
        if field.name in fields
        else pa.nulls(len(origin), field.type)
        for field in kind
    ]
    column = pa.StructArray.from_arrays(arrays, fields=list(kind), mask=origin.is_null())
    return pa.table(rows).set_column(index, pa.field(_ORIGIN, kind), column)
