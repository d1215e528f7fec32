"""Delta and Parquet tables as Spark writes and reads them: each micro-batch once.

Tasks write Parquet files that nobody sees; the driver adds them to the table in one commit, with
the writer's name and version. The rows of a batch never come to the driver. All executors must
reach the folder of the table.
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
        """Add rows, once: False when this version of ``app`` is in the table already.

        ``rows`` are a DataFrame, or what :meth:`penstock.tables.Table.append` takes.
        """
        if not isinstance(rows, DataFrame):
            return super().append(rows, app, version, content=content)
        if self.is_stored(app, version, content):
            _computed(rows)
            return False
        known = self.state.schema or pa.schema([])
        partition_by, secret = self.partition_by, active_secret()
        write = _TaskWriter(self.uri, self.format, partition_by, columns=known, error_secret=secret)
        results = rows.mapInArrow(write, _RESULT).collect()
        # The columns of the rows, also where no task has any.
        schema = self.with_columns(pa.schema([]), to_arrow_schema(rows.schema, timezone="UTC"))
        files: list[DataFile] = []
        for (encoded,) in results:
            found = msgspec.json.decode(encoded, type=_TaskFiles)
            schema = self.with_columns(schema, schema_from(found.columns))
            files += found.files
        return self.commit(schema, files, app=app, version=version, content=content)

    def merge(
        self, rows: Any, key: str | Sequence[str], app: str, version: int, content: str = ""
    ) -> bool:
        """Put rows in the place of those with the same key; see
        :meth:`penstock.tables.Table.merge`. The rows of a DataFrame come to the driver."""
        if isinstance(rows, DataFrame):
            if self.is_stored(app, version, content):
                _computed(rows)
                return False
            rows = rows.toArrow()
        return super().merge(rows, key, app, version=version, content=content)

    def read(self, spark: SparkSession) -> DataFrame:
        """The table as it is now, by Spark's own Parquet reader: exactly its committed files.

        Raises ``NameDoesNotExist`` when there is no table yet.
        """
        self.refresh()
        schema: StructType = from_arrow_schema(self.schema)
        self.settle()
        files = self.locations()
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", self.root).parquet(*files)


def _computed(rows: DataFrame) -> None:
    """Compute the rows of a micro-batch that is stored already.

    After each micro-batch of a query with state, Spark checks that tasks have committed all parts
    of the state. If they did not run, the query ends in error, again at each start.
    """
    # A session of Spark Connect cannot tell whether a query uses it.
    if is_remote() or rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID):
        rows.write.format("noop").mode("overwrite").save()


class _TaskFiles(msgspec.Struct, frozen=True):
    """The files that one task has written."""

    files: tuple[DataFile, ...]
    columns: bytes
    """The columns of the table after its rows are added."""


_RESULT: Final = "found binary"


class _TaskWriter(msgspec.Struct, frozen=True):
    """Writes the rows of a task to data files of a table, and gives a row with what it has written.

    Spark takes one result of each task, however often it runs; files of others stay uncommitted.
    """

    uri: str
    format: Format
    partition_by: tuple[str, ...]
    columns: pa.Schema
    """The columns that the table has already; the driver knows them, so no task reads its log."""
    error_secret: str = ""
    """Authenticates errors for the driver; empty: they are not marked."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with marking(self.error_secret):
            yield self._written(batches)

    def _written(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        table = ArrowTable.open(self.uri, self.format, self.partition_by)
        writer = table.writer_of(self.columns, self.partition_by)
        try:
            for batch in batches:
                writer.add(batch)
            files = tuple(writer.close())
        finally:
            writer.abandon()
        found = _TaskFiles(files, schema_bytes(writer.schema))
        return pa.RecordBatch.from_pydict({"found": pa.array([msgspec.json.encode(found)])})


__all__ = ["Compacted", "Table"]
