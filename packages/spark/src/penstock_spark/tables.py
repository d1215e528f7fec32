"""Tables that Spark reads and writes, each micro-batch exactly once.

Tasks write Parquet files that are not part of the table yet. The driver adds the files to the table
in one commit, with the writer's name and version. The rows of a micro-batch do not leave the tasks.
All executors must reach the folder of the table; only the driver needs the catalog of an Iceberg
table.
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

from penstock.tables import Compacted, DataFile
from penstock.tables import Table as ArrowTable
from penstock.tables.files import RowWriter
from penstock.tables.log import FileMaker
from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_spark.errors.error_marks import active_secret, marking
from penstock_spark.writing.batch_content import QUERY_ID


class Table(ArrowTable):
    """A :class:`penstock.tables.Table` that also accepts rows as DataFrames of Spark."""

    def append(self, rows: Any, app: str, version: int, content: str = "") -> bool:
        """Append rows once. Return False if the table already has this version of ``app``.

        ``rows`` are a DataFrame, or rows that :meth:`penstock.tables.Table.append` accepts.
        """
        if not isinstance(rows, DataFrame):
            return super().append(rows, app, version, content=content)
        if self.is_stored(app, version, content):
            self.sync()
            _compute_rows(rows)
            return False
        columns = self.state.schema or pa.schema([])
        partition_by, secret = self.partition_by, active_secret()
        write = _TaskWriter(self._log.file_maker(), partition_by, columns, error_secret=secret)
        results = rows.mapInArrow(write, _RESULT).collect()
        # The columns of the DataFrame are also added: without rows, no task reports any columns.
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
        """Replace the rows with equal keys, as :meth:`penstock.tables.Table.merge` does. The rows
        of a DataFrame are collected on the driver."""
        if isinstance(rows, DataFrame):
            if self.is_stored(app, version, content):
                self.sync()
                _compute_rows(rows)
                return False
            rows = rows.toArrow()
        return super().merge(rows, key, app, version=version, content=content)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the committed files of the table as a DataFrame of Spark's Parquet reader.

        Raises ``NameDoesNotExist`` if the table does not exist yet.
        """
        self.refresh()
        schema: StructType = from_arrow_schema(self.schema)
        self.settle()
        files = self.locations()
        if not files:
            return spark.createDataFrame([], schema)
        reader = spark.read.schema(schema)
        if not self._log.keeps_partition_columns:
            # With the folder of the table, Spark takes partition values from the paths of files.
            reader = reader.option("basePath", self.root)
        return reader.parquet(*files)


def _compute_rows(rows: DataFrame) -> None:
    """Compute the rows of a micro-batch that the table has already, without storing them.

    After each micro-batch of a query with state, Spark checks that tasks have committed all parts
    of the state. If the tasks did not run, the query fails, and fails again at each start.
    """
    # Spark Connect has no local properties, so a query with state cannot be recognised.
    if is_remote() or rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID):
        rows.write.format("noop").mode("overwrite").save()


class _TaskFiles(msgspec.Struct, frozen=True):
    """The data files that one task has written."""

    files: tuple[DataFile, ...]
    columns: bytes
    """Arrow schema of the table after the rows of the task are added."""


_RESULT: Final = "files binary"
"""Schema of the row that a task returns."""


class _TaskWriter(msgspec.Struct, frozen=True):
    """Writes the rows of a task to data files of a table, and returns one row that lists the files.

    Spark uses the result of one attempt of each task. The files of other attempts are never
    committed.
    """

    maker: FileMaker
    partition_by: tuple[str, ...]
    columns: pa.Schema
    """Current columns of the table. The driver passes them, so that tasks need not read the table's
    log."""
    error_secret: str = ""
    """Secret that authenticates errors of the task for the driver; empty means that errors are not
    marked."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking(self.error_secret):
            yield self._write_files(batches)

    def _write_files(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        writer = RowWriter(self.maker, self.columns, self.partition_by)
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
