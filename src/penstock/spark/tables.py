"""Delta and Parquet tables as Spark writes and reads them: each micro-batch once.

Tasks write Parquet files that nobody sees; the driver adds them to the table in one commit, with
the writer's name and version. The rows of a batch never come to the driver. All executors must
reach the folder of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.vocabulary.errors import InvalidArgument
from penstock.tables import Compacted, DataFile, Format
from penstock.tables import Table as ArrowTable
from penstock.tables.table import check_version

FORMAT: Final = "penstock-table"
"""Used only by :meth:`Table.append`; its options are internal."""


class Table(ArrowTable):
    """A table whose rows may be Spark's; see :class:`penstock.tables.Table`."""

    def append(self, rows: Any, app: str, version: int) -> bool:
        """Add rows, once: False when this version of ``app`` is in the table already.

        ``rows`` are a DataFrame, or what :meth:`penstock.tables.Table.append` takes.
        """
        if not isinstance(rows, DataFrame):
            return super().append(rows, app, version)
        check_version(app, version)
        last = self.last_of(app)
        if last is not None and last >= version:
            return False
        to = _To(self.uri, self.format, self.partition_by, app, version)
        session = rows.sparkSession
        session.dataSource.register(TableSource)
        text = msgspec.json.encode(to).decode()
        rows.write.format(FORMAT).option("to", text).mode("append").save()
        self.refresh()
        return True

    def merge(self, rows: Any, key: str | Sequence[str], app: str, version: int) -> bool:
        """Put rows in the place of those with the same key; see
        :meth:`penstock.tables.Table.merge`. The rows of a DataFrame come to the driver."""
        if isinstance(rows, DataFrame):
            last = self.last_of(app)
            if last is not None and last >= version:
                return False
            rows = rows.toArrow()
        return super().merge(rows, key, app, version)

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


class _To(msgspec.Struct, frozen=True):
    """A table that rows are written to, and the identity of the write."""

    uri: str
    format: Format
    partition_by: tuple[str, ...]
    app: str
    version: int


@dataclass(frozen=True)
class _TaskFiles(WriterCommitMessage):
    """The files of one task."""

    files: tuple[DataFile, ...]
    schema: pa.Schema


class TableSource(DataSource):
    """The way from tasks to the driver for :meth:`Table.append`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise InvalidArgument("rows can only be appended to a table: write with mode append")
        to = msgspec.json.decode(self.options["to"], type=_To)
        return _Writer(to, to_arrow_schema(schema, timezone="UTC"))


class _Writer(DataSourceArrowWriter):
    def __init__(self, to: _To, schema: pa.Schema) -> None:
        self._to = to
        self._schema = schema
        """The columns, also where no task has a row."""

    def _table(self) -> ArrowTable:
        return ArrowTable.open(self._to.uri, self._to.format, self._to.partition_by)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _TaskFiles:
        writer = self._table().writer()
        try:
            for batch in iterator:
                writer.add(batch)
            return _TaskFiles(tuple(writer.close()), writer.schema)
        finally:
            writer.abandon()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        table = self._table()
        written = [message for message in messages if isinstance(message, _TaskFiles)]
        schema = table.with_columns(pa.schema([]), self._schema)
        for message in written:
            schema = table.with_columns(schema, message.schema)
        files = [file for message in written for file in message.files]
        table.commit(schema, files, app=self._to.app, version=self._to.version)


__all__ = ["Compacted", "Table"]
