"""Data files: writes rows to Parquet files, split by partition and size, and reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import date
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.tables.disk import storing
from penstock.tables.kinds import PARTITION_TYPES, columns_of, conformed, united
from penstock.tables.log import DataFile, Log, NewFile
from penstock_core.vocabulary.errors import InvalidArgument

ROW_GROUP_ROWS: Final = 1 << 17
ROW_GROUP_BYTES: Final = 16 << 20
"""Bytes of rows in memory, of all open files together, after which they are written."""
FILE_BYTES_MAX: Final = 256 << 20
"""Bytes of rows in memory after which a file is closed and the next one begun."""
OPEN_FILES_MAX: Final = 64
"""Maximum number of partitions whose files are open; the file opened first is closed."""
ID_COLUMN: Final = "event_id"
"""The column whose smallest and largest value is recorded for each file."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Name of the folder for a null partition value, the same as in Spark."""

Values = tuple[str | None, ...]


class RowWriter:
    """Writes rows to new data files, which are not visible before a commit.

    A writer can run on another machine than the commit, such as in a Spark task.
    """

    def __init__(self, log: Log, table: pa.Schema | None, partition_by: tuple[str, ...]) -> None:
        self._log = log
        self._table = pa.schema([]) if table is None else table
        self._partition_by = partition_by
        self._rows_schema: pa.Schema | None = None
        """Schema of the rows added last."""
        self.schema: pa.Schema = self._table
        """The columns of the table after these rows are added."""
        self._file_schema: pa.Schema = self._table
        """The columns of the files being written: those of the table that the rows have."""
        self._open: dict[Values, _Growing] = {}
        self._done: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises ``InvalidArgument`` for values that the table cannot hold, and ``StorageFailed`` if
        the disk is full.
        """
        with storing(self._log.uri):
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        """Write the rows of each partition to its file, and begin new files at the size limit."""
        if batch.schema != self._rows_schema:
            self._prepare(batch.schema)
        rows = conformed(batch, self._file_schema)
        keeps_columns = self._log.keeps_partition_columns
        for values, part in split(rows, self._partition_by, keeps_columns=keeps_columns):
            if "" in values and not self._log.keeps_empty_partitions:
                name = self._partition_by[values.index("")]
                raise InvalidArgument(
                    f"partition_by names {name!r}, which is an empty text in {part.num_rows} rows; "
                    "a Delta table would return it as null; write null or another text, or "
                    "partition by another column"
                )
            growing = self._open.get(values) or self._begin(values, part.schema)
            growing.add(part)
            if growing.size >= FILE_BYTES_MAX:
                self._close(values)
        if sum(growing.held_bytes for growing in self._open.values()) >= ROW_GROUP_BYTES:
            for growing in self._open.values():
                growing.write()

    def _begin(self, values: Values, schema: pa.Schema) -> _Growing:
        """Begin a file for a partition."""
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        partition = dict(zip(self._partition_by, values, strict=True))
        growing = self._open[values] = _Growing(self._log, partition, schema)
        return growing

    def _close(self, values: Values) -> None:
        """Finish the open file of a partition."""
        self._done.append(self._open[values].close())
        del self._open[values]

    def _prepare(self, schema: pa.Schema) -> None:
        self.close()
        self.schema = united(self.schema, schema)
        self._file_schema = columns_of(self.schema, schema.names)
        check_partitions(self._file_schema, self._partition_by)
        self._rows_schema = schema

    def close(self) -> list[DataFile]:
        """Finish all files, synced to disk, and return them. Raises ``StorageFailed``."""
        with storing(self._log.uri):
            while self._open:
                self._close(next(iter(self._open)))
        return self._done

    def abandon(self) -> None:
        """Close open files without committing them. A later compaction removes them."""
        while self._open:
            self._open.popitem()[1].abandon()


class _Abandoned(Exception):
    """Raised to leave the context of a file that is no longer needed."""


class _Growing:
    """A file that is being written."""

    def __init__(self, log: Log, partition: dict[str, str | None], schema: pa.Schema) -> None:
        self._partition = partition
        self._stack = ExitStack()
        self._file: NewFile = self._stack.enter_context(log.new_file(folder_of(partition)))
        self._writer = pq.ParquetWriter(self._file.sink, schema, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._rows = self._held_rows = 0
        self.held_bytes = 0
        """Bytes of rows that are not written yet."""
        self._ids: tuple[int, int] | None = None
        self.size = 0
        """Bytes of the rows in memory, before compression."""

    def add(self, rows: pa.RecordBatch) -> None:
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self.held_bytes += rows.nbytes
        if self._held_rows >= ROW_GROUP_ROWS or self.held_bytes >= ROW_GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Write the collected rows as a row group."""
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        if ID_COLUMN in table.column_names and pa.types.is_int64(
            table.schema.field(ID_COLUMN).type
        ):
            ids = pc.min_max(table.column(ID_COLUMN)).as_py()
            if ids["min"] is not None:
                first, last = self._ids or (ids["min"], ids["max"])
                self._ids = min(first, ids["min"]), max(last, ids["max"])
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows += self._held_rows
        self.size += self.held_bytes
        self._held, self._held_rows, self.held_bytes = [], 0, 0

    def close(self) -> DataFile:
        with self._stack:
            self.write()
            self._writer.close()
        file = self._file
        return DataFile(file.path, self._rows, file.size, partition=self._partition, ids=self._ids)

    def abandon(self) -> None:
        with suppress(_Abandoned, OSError), self._stack:
            self._writer.close()
            raise _Abandoned


def check_partitions(schema: pa.Schema, partition_by: tuple[str, ...]) -> None:
    """Raise ``InvalidArgument`` for a partition column that is missing or has a wrong type."""
    for name in partition_by:
        if name not in schema.names:
            raise InvalidArgument(
                f"partition_by names {name!r}, which these rows do not have; they have "
                f"{', '.join(schema.names)}"
            )
        if str(schema.field(name).type) not in PARTITION_TYPES:
            raise InvalidArgument(
                f"partition_by names {name!r}, which has type {schema.field(name).type}; a table "
                "can be partitioned by strings, whole numbers, booleans and dates"
            )


def split(
    rows: pa.RecordBatch, partition_by: tuple[str, ...], *, keeps_columns: bool = False
) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """Yield the rows of each partition, in order; with the partition columns only if
    ``keeps_columns``."""
    if not rows.num_rows:
        return
    kept = [name for name in rows.schema.names if keeps_columns or name not in partition_by]
    if not partition_by:
        yield (), rows
        return
    if all(_is_constant(rows.column(name)) for name in partition_by):  # such as those of one day
        yield (
            tuple(_as_text(rows.column(name)[0].as_py()) for name in partition_by),
            rows.select(kept),
        )
        return
    keys = pa.Table.from_batches([rows.select(list(partition_by))])
    for key in keys.group_by(list(partition_by)).aggregate([]).to_pylist():
        mask: Any = None
        for name in partition_by:
            column, value = rows.column(name), key[name]
            equal = pc.is_null(column) if value is None else pc.equal(column, pa.scalar(value))
            mask = equal if mask is None else pc.and_(mask, equal)
        values = tuple(_as_text(key[name]) for name in partition_by)
        yield values, rows.select(kept).filter(pc.fill_null(mask, fill_value=False))


def _is_constant(column: pa.Array) -> bool:
    """Return whether all rows have the same value, or all are null."""
    if column.null_count:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def folder_of(partition: Mapping[str, str | None]) -> str:
    """Return the folder of a partition, such as ``day=2026-05-04``; empty without partitions."""
    return "/".join(
        f"{quote(name, safe='')}={NO_VALUE if value is None else quote(value, safe=' ')}"
        for name, value in partition.items()
    )


def partition_values(file: DataFile, schema: pa.Schema, rows: int) -> dict[str, Any]:
    """Return the partition columns of a file, which it does not contain, for ``rows`` rows."""
    return {
        name: pa.repeat(pa.scalar(value, pa.string()).cast(schema.field(name).type), rows)
        for name, value in file.partition.items()
    }


def batches_of(
    file: DataFile,
    source: Any,
    schema: pa.Schema,
    row_groups: list[int] | None = None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, in the columns of the table for which ``wanted`` returns True."""
    parquet = pq.ParquetFile(source)
    file_columns = set(parquet.schema_arrow.names)
    target = pa.schema([field for field in schema if wanted(field.name)])
    names = [name for name in target.names if name in file_columns]
    groups = range(parquet.num_row_groups) if row_groups is None else row_groups
    for number in groups:
        table = parquet.read_row_group(number, columns=names)
        for batch in table.combine_chunks().to_batches():
            columns = dict(zip(names, batch.columns, strict=True))
            columns |= {
                name: column
                for name, column in partition_values(file, schema, batch.num_rows).items()
                if wanted(name)
            }
            rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
            if not columns:  # a batch without columns has no length unless it is made like this
                rows = pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
            yield conformed(rows, target)


def record_batches(rows: Any) -> Iterator[pa.RecordBatch]:
    """Yield rows of any supported kind as record batches. Raises ``InvalidArgument`` for other
    objects."""
    if isinstance(rows, pa.RecordBatch):
        yield rows
        return
    if isinstance(rows, pa.Table):
        # A table without rows yields one empty batch, which carries its columns.
        yield from rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        return
    if hasattr(rows, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(rows)
        return
    if isinstance(rows, Iterable):
        yield from rows
        return
    raise InvalidArgument(
        f"rows has type {type(rows).__name__}; give an Arrow table or record batches, or a pandas "
        "or polars table"
    )
