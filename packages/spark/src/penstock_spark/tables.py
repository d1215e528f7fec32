"""Delta and Parquet tables that Spark reads and writes: each micro-batch once.

Tasks write Parquet files that are invisible to readers; the driver adds them to the table in one
commit, with the writer's name and version. The rows of a batch stay in the tasks. All executors
must reach the folder of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from penstock.tables import Compacted, DataFile, Format
from penstock.tables import Table as ArrowTable
from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_spark.errors.error_marks import active_secret, marking
from penstock_spark.writing.batch_content import QUERY_ID


class Table(ArrowTable):
    """A table whose rows may be Spark's; see :class:`penstock.tables.Table`."""

    def append(self, rows: Any, app: str, version: int, content: str = "") -> bool:
        """Append rows once; return False if the table has this version of ``app`` already.

        ``rows`` are a DataFrame, or rows that :meth:`penstock.tables.Table.append` accepts.
        """
        if not isinstance(rows, DataFrame):
            return super().append(rows, app, version, content=content)
        if self.is_stored(app, version, content):
            _compute_rows(rows)
            return False
        columns = self.state.schema or pa.schema([])
        partition_by, secret = self.partition_by, active_secret()
        write = _TaskWriter(
            self.uri, self.format, partition_by, columns=columns, error_secret=secret
        )
        results = rows.mapInArrow(write, _RESULT).collect()
        # The schema of the frame counts, too: without rows, no task reports any columns.
        schema = self.with_columns(pa.schema([]), to_arrow_schema(rows.schema, timezone="UTC"))
        files: list[DataFile] = []
        for (encoded,) in results:
            task_files = msgspec.json.decode(encoded, type=_TaskFiles)
            schema = self.with_columns(schema, schema_from(task_files.columns))
            files += task_files.files
        return self.commit(schema, files, app=app, version=version, content=content)

    def merge(
        self, rows: Any, key: str | Sequence[str], app: str, version: int, content: str = ""
    ) -> bool:
        """Replace the rows with the same keys; see :meth:`penstock.tables.Table.merge`. The rows
        of a DataFrame are collected on the driver."""
        if isinstance(rows, DataFrame):
            if self.is_stored(app, version, content):
                _compute_rows(rows)
                return False
            rows = rows.toArrow()
        return super().merge(rows, key, app, version=version, content=content)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the present table, read by Spark's Parquet reader: exactly its committed files.

        Raises ``NameDoesNotExist`` if the table does not exist yet.
        """
        self.refresh()
        schema: StructType = from_arrow_schema(self.schema)
        self.settle()
        files = self.locations()
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", self.root).parquet(*files)


def _compute_rows(rows: DataFrame) -> None:
    """Compute the rows of a micro-batch that is stored already.

    After each micro-batch of a query with state, Spark checks that tasks have committed all parts
    of the state. If they did not run, the query ends in error, again at each start.
    """
    # Spark Connect has no local properties, so a query with state cannot be recognised.
    if is_remote() or rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID):
        rows.write.format("noop").mode("overwrite").save()


class _TaskFiles(msgspec.Struct, frozen=True):
    """Data files written by one task."""

    files: tuple[DataFile, ...]
    columns: bytes
    """The columns of the table after its rows are added."""


_RESULT: Final = "files binary"


class _TaskWriter(msgspec.Struct, frozen=True):
    """Writes the rows of a task to data files of a table, and returns one row that lists the files.

    Spark uses one result of each task, however often it runs; files of other attempts stay
    uncommitted.
    """

    uri: str
    format: Format
    partition_by: tuple[str, ...]
    columns: pa.Schema
    """Present columns of the table, from the driver, so that tasks do not read the table's log."""
    error_secret: str = ""
    """Authenticates errors for the driver; empty: they are not marked."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking(self.error_secret):
            yield self._write_files(batches)

    def _write_files(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        table = ArrowTable.open(self.uri, self.format, self.partition_by)
        writer = table.writer_of(self.columns, self.partition_by)
        try:
            for batch in batches:
                writer.add(batch)
            files = tuple(writer.close())
        finally:
            # Removes the files of a failed task; has no effect after `close`.
            writer.abandon()
        task_files = _TaskFiles(files, schema_bytes(writer.schema))
        return pa.RecordBatch.from_pydict({"files": pa.array([msgspec.json.encode(task_files)])})


__all__ = ["Compacted", "Table"]
