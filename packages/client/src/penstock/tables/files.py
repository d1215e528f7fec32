"""Writes rows to Parquet files, split by partition and size, and reads such files."""

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
from penstock.tables.kinds import PARTITION_TYPES, columns_of, conform, extend_columns
from penstock.tables.log import DataFile, FileMaker, NewFile
from penstock_core.columns.files.table_rows import parquet_columns
from penstock_core.vocabulary.errors import InvalidArgument

ROW_GROUP_ROWS: Final = 1 << 17
"""Largest number of rows in a row group."""
ROW_GROUP_BYTES: Final = 16 << 20
"""Bytes of collected rows, of all open files together, at which the rows are written."""
FILE_BYTES_MAX: Final = 256 << 20
"""Bytes of rows, before compression, at which a file is closed and the next one begins."""
OPEN_FILES_MAX: Final = 64
"""Largest number of files, one for each partition, that are open at the same time. To open another
one, the file that was opened first is closed."""
REPEATS_MIN: Final = 3
"""A column other than text gets a dictionary if its values occur at least this often on average."""
ID_COLUMN: Final = "event_id"
"""The column whose smallest and largest value is recorded for each file."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
"""Name of the folder for a null partition value, which Spark uses, too."""

PartitionValues = tuple[str | None, ...]
"""Values of the partition columns, as texts; None for null."""


class RowWriter:
    """Writes rows to new data files. Readers do not see the files until a commit adds them.

    The writer can run on another machine than the program that commits, such as in a Spark task.
    """

    def __init__(
        self, log: FileMaker, table: pa.Schema | None, partition_by: tuple[str, ...]
    ) -> None:
        self._log = log
        self._table = pa.schema([]) if table is None else table
        self._partition_by = partition_by
        self._rows_schema: pa.Schema | None = None
        """Schema of the last added rows."""
        self.schema: pa.Schema = self._table
        """The columns of the table, extended by the new columns of all added rows."""
        self._file_schema: pa.Schema = self._table
        """The columns of the open files: those columns of the table that the rows have."""
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._done: list[DataFile] = []
        """Finished files."""

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
        rows = conform(batch, self._file_schema)
        keeps_columns = self._log.keeps_partition_columns
        for values, part in split(rows, self._partition_by, keeps_columns=keeps_columns):
            if "" in values and not self._log.keeps_empty_partitions:
                name = self._partition_by[values.index("")]
                raise InvalidArgument(
                    f"partition_by names {name!r}, which is an empty text in {part.num_rows} rows; "
                    "a Delta table would return it as null; write null or another text, or "
                    "partition by another column"
                )
            open_file = self._open.get(values) or self._begin(values)
            open_file.add(part)
            if open_file.size >= FILE_BYTES_MAX:
                self._close(values)
        if sum(open_file.collected_bytes for open_file in self._open.values()) >= ROW_GROUP_BYTES:
            for open_file in self._open.values():
                open_file.write()

    def _begin(self, values: PartitionValues) -> _OpenFile:
        """Begin a file for a partition."""
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        partition = dict(zip(self._partition_by, values, strict=True))
        open_file = self._open[values] = _OpenFile(self._log, partition)
        return open_file

    def _close(self, values: PartitionValues) -> None:
        """Finish the open file of a partition."""
        self._done.append(self._open[values].close())
        del self._open[values]

    def _prepare(self, schema: pa.Schema) -> None:
        """Prepare for rows with the columns ``schema``. Open files are finished, because a Parquet
        file has one schema."""
        self.close()
        self.schema = extend_columns(self.schema, schema)
        self._file_schema = columns_of(self.schema, schema.names)
        check_partitions(self._file_schema, self._partition_by)
        self._rows_schema = schema

    def close(self) -> list[DataFile]:
        """Finish the open files and return all files of the writer, synced to disk.

        Raises ``StorageFailed`` if the disk is full.
        """
        with storing(self._log.uri):
            while self._open:
                self._close(next(iter(self._open)))
        return self._done

    def abandon(self) -> None:
        """Close open files without committing them. A later compaction removes them."""
        while self._open:
            self._open.popitem()[1].abandon()


class _Abandoned(Exception):
    """Raised inside the context of a new file to leave it without completing the file."""


class _OpenFile:
    """A Parquet file of one partition that is being written. Rows are collected to row groups."""

    def __init__(self, log: FileMaker, partition: dict[str, str | None]) -> None:
        self._partition = partition
        self._stack = ExitStack()
        self._file: NewFile = self._stack.enter_context(log.new_file(folder_of(partition)))
        self._writer: pq.ParquetWriter | None = None
        """The writer of the file; None before the first row group, which decides the columns with
        dictionaries."""
        self._collected: list[pa.RecordBatch] = []
        """Rows that are not written yet."""
        self._rows = self._collected_rows = 0
        self.collected_bytes = 0
        """Bytes of the rows that are not written yet."""
        self._ids: tuple[int, int] | None = None
        """Smallest and largest event id of the written rows; None without such a column."""
        self.size = 0
        """Bytes of the written rows, before compression."""

    def add(self, rows: pa.RecordBatch) -> None:
        self._collected.append(rows)
        self._collected_rows += rows.num_rows
        self.collected_bytes += rows.nbytes
        if self._collected_rows >= ROW_GROUP_ROWS or self.collected_bytes >= ROW_GROUP_BYTES:
            self.write()

    def write(self) -> None:
        """Write the collected rows as a row group."""
        if not self._collected:
            return
        table = pa.Table.from_batches(self._collected)
        if ID_COLUMN in table.column_names and pa.types.is_int64(
            table.schema.field(ID_COLUMN).type
        ):
            ids = pc.min_max(table.column(ID_COLUMN)).as_py()
            if ids["min"] is not None:
                first, last = self._ids or (ids["min"], ids["max"])
                self._ids = min(first, ids["min"]), max(last, ids["max"])
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._file.sink,
                table.schema,
                compression="zstd",
                use_dictionary=repeating_columns(table),
            )
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._rows += self._collected_rows
        self.size += self.collected_bytes
        self._collected, self._collected_rows, self.collected_bytes = [], 0, 0

    def close(self) -> DataFile:
        with self._stack:
            self.write()
            assert self._writer is not None, "a file is opened for its first rows"
            self._writer.close()
        file = self._file
        return DataFile(file.path, self._rows, file.size, partition=self._partition, ids=self._ids)

    def abandon(self) -> None:
        with suppress(_Abandoned, OSError), self._stack:
            if self._writer is not None:
                self._writer.close()
            raise _Abandoned


def repeating_columns(rows: pa.Table) -> list[str]:
    """Return the Parquet columns of ``rows`` that a dictionary makes smaller: all texts, and other
    columns whose values repeat. Compressed dictionaries of nearly unique numbers, such as ids and
    measurements, are larger than the numbers themselves."""
    return [
        path
        for path, kind in parquet_columns(rows.schema)
        if pa.types.is_string(kind)
        or (
            path in rows.schema.names
            # The path of a field inside a struct may be the name of another column, too.
            and not pa.types.is_nested(rows.schema.field(path).type)
            and pc.count_distinct(rows.column(path)).as_py() * REPEATS_MIN <= rows.num_rows
        )
    ]


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
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the values and the rows of each partition; the order of rows is kept.

    The rows are without the partition columns unless ``keeps_columns``.
    """
    if not rows.num_rows:
        return
    file_columns = [name for name in rows.schema.names if keeps_columns or name not in partition_by]
    if not partition_by:
        yield (), rows
        return
    # Rows that arrive together are usually of one partition, such as one day; no filter is needed.
    if all(_is_constant(rows.column(name)) for name in partition_by):
        yield (
            tuple(_as_text(rows.column(name)[0].as_py()) for name in partition_by),
            rows.select(file_columns),
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
        # A comparison with a null row is null, which means that the row is in another partition.
        yield values, rows.select(file_columns).filter(pc.fill_null(mask, fill_value=False))


def _is_constant(column: pa.Array) -> bool:
    """Return whether all rows have the same value, or all are null."""
    if column.null_count:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _as_text(value: object) -> str | None:
    """Return a partition value as a text; None for null."""
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
    """Return the partition columns of a file as arrays of length ``rows``. The file does not
    contain them; each has a single value."""
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
    """Yield the rows of a file in the columns of the table.

    ``source`` is the opened file and ``schema`` has the columns of the table; only columns whose
    names ``wanted`` accepts are read. ``row_groups`` are the indexes of the row groups to read;
    None means all.
    """
    parquet = pq.ParquetFile(source)
    file_columns = set(parquet.schema_arrow.names)
    target = pa.schema([field for field in schema if wanted(field.name)])
    names = [name for name in target.names if name in file_columns]
    groups = range(parquet.num_row_groups) if row_groups is None else row_groups
    for group in groups:
        table = parquet.read_row_group(group, columns=names)
        for batch in table.combine_chunks().to_batches():
            columns = dict(zip(names, batch.columns, strict=True))
            columns |= {
                name: column
                for name, column in partition_values(file, schema, batch.num_rows).items()
                if wanted(name)
            }
            rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
            # A batch without columns has a length only if it is made from a struct array.
            if not columns:
                rows = pa.RecordBatch.from_struct_array(pa.nulls(batch.num_rows, pa.struct([])))
            yield conform(rows, target)


def record_batches(rows: Any) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches.

    ``rows`` can be a record batch, an Arrow table, an object with an Arrow stream such as a pandas
    or polars table, or an iterable of record batches. Raises ``InvalidArgument`` for other objects.
    """
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
