"""Archives channels: tasks write files, and the driver commits them.

Each row of this source describes files that a task has written; the events themselves do not pass
through the JVM. Tasks copy events to Parquet as columns, so that all parts of the events are
archived, including properties that appeared after the query began. Positions, triggers and
checkpoints are those of the format ``penstock``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import msgspec
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.client.archiving.lake import Lake
from penstock.tables import Compacted, DataFile, Table
from penstock_core.columns.files.archives import ArchiveLayout
from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_spark.connections import ask
from penstock_spark.errors.errors import converts_errors
from penstock_spark.options import SourceOptions, Where, source_options
from penstock_spark.reading.offsets import Offset
from penstock_spark.reading.plan import EventRange
from penstock_spark.reading.reading import read_whole_batches
from penstock_spark.source import PenstockSource

FORMAT: Final = "penstock-archive"
"""Name of the Spark format. Only :func:`archive_stream` uses it."""
OPTION: Final = "archive"
"""Name of the option with the settings of the archive, as JSON. All other options are those of the
format ``penstock``."""

_ROW_SCHEMA: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("epoch", pa.string()),
        ("events", pa.int64()),
        ("files", pa.binary()),
        ("columns", pa.binary()),
    ]
)


class Written(Struct, frozen=True):
    """The files that one task has written for one channel."""

    channel: str
    epoch: str
    """Epoch of the channel when its events were read."""
    events: int
    """Number of events in the files."""
    files: tuple[DataFile, ...]
    columns: pa.Schema
    """Columns of the archive after these events are added."""


def archive_stream(spark: SparkSession, lake: Lake, options: dict[str, str]) -> DataFrame:
    """Return a stream whose rows describe the files that tasks write.

    The caller passes each micro-batch to :func:`written_in` and the result to :func:`commit`.
    ``options`` are the options of a read with the format ``penstock``.
    """
    spark.dataSource.register(ArchiveSource)
    lake_json = msgspec.json.encode(lake).decode()
    return spark.readStream.format(FORMAT).options(**options, **{OPTION: lake_json}).load()


def commit(
    lake: Lake,
    written: list[Written],
    app: str,
    version: int,
    content: str = "",
    *,
    check: Callable[[Table], object] = lambda table: None,
) -> dict[str, Table]:
    """Commit the files of a micro-batch to their tables, once.

    Return the tables that received events, by name of the channel. ``check`` is called with each
    table before its commit.
    """
    by_channel: dict[str, list[Written]] = {}
    tables: dict[str, Table] = {}
    for task_files in written:
        by_channel.setdefault(task_files.channel, []).append(task_files)
    for channel, channel_files in by_channel.items():
        table = lake.table_of(channel)
        lake.check_identity(table, channel, channel_files[0].epoch)
        check(table)
        columns = channel_files[0].columns
        for task_files in channel_files[1:]:
            columns = table.with_columns(columns, task_files.columns)
        files = [file for task_files in channel_files for file in task_files.files]
        table.commit(columns, files, app=app, version=version, content=content)
        tables[channel] = table
    return dict(sorted(tables.items()))


def written_in(frame: DataFrame) -> list[Written]:
    """Run the tasks of a micro-batch, and return the files that they write."""
    return [
        Written(
            row.channel,
            row.epoch,
            row.events,
            files=msgspec.json.decode(bytes(row.files), type=tuple[DataFile, ...]),
            columns=schema_from(bytes(row.columns)),
        )
        for row in frame.collect()
    ]


def compact(lake: Lake, channel: str, keep_hours: int) -> Compacted:
    """Merge the small files of a channel's archive, and remove files that were replaced more than
    ``keep_hours`` ago."""
    return lake.table_of(channel).compact(keep_hours=keep_hours)


def register(url: str, lake: Lake, channel: str) -> None:
    """Set the channel's attribute ``archive`` to the table in ``lake``, unless it is set."""
    ask(Where(url, channel), lambda link: lake.register(channel, link.store))


# --- data source and reader for Spark -----------------------------------------------------


class ArchiveSource(PenstockSource):
    """Spark's data source of the format ``penstock-archive``, whose rows describe files of
    archives."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(_ROW_SCHEMA)

    def streamReader(self, schema: StructType) -> ArchiveReader:  # type: ignore[override]  # noqa: N802 - wraps the reader of the base class
        inner = super().streamReader(schema)
        return ArchiveReader(inner, self._source(), self._lake())

    def _source(self) -> SourceOptions:
        options = {name: text for name, text in self.options.items() if name != OPTION}
        # The headers include the publishers, which an archive keeps.
        return replace(source_options(options, self.default_url), include_headers=True)

    def _lake(self) -> Lake:
        return msgspec.json.decode(self.options[OPTION], type=Lake)


@converts_errors
class ArchiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches as the reader of the format ``penstock`` does, but its tasks write the
    events to files."""

    def __init__(self, inner: Any, options: SourceOptions, lake: Lake) -> None:
        self._inner = inner
        self._options = options
        self._lake = lake

    def initialOffset(self) -> Offset:  # noqa: N802
        return cast("Offset", self._inner.initialOffset())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return cast("ReadLimit", self._inner.getDefaultReadLimit())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._inner.prepareForTriggerAvailableNow()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return cast("Offset", self._inner.latestOffset(start, limit))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return cast("Offset", self._inner.reportLatestOffset())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return cast("list[InputPartition]", self._inner.partitions(start, end))

    def commit(self, end: Offset) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark passes a placeholder for a micro-batch without partitions.
        if isinstance(partition, EventRange):
            yield from write_partition(self._options, self._lake, partition)


def write_partition(
    options: SourceOptions, lake: Lake, partition: EventRange
) -> Iterator[pa.RecordBatch]:
    """Write the events of a partition to files, and yield one row that describes the files; no row
    if no event matches. Runs in a task."""
    table = lake.table_of(partition.channel)
    lake.check_identity(table, partition.channel, partition.epoch)
    layout = ArchiveLayout(
        schema_from(partition.stored),
        table.schema if table.exists else None,
        channel=partition.channel,
        epoch=partition.epoch,
    )
    writer = table.writer()
    try:
        for batch, mask, publishers in read_whole_batches(options, partition):
            rows = layout.of(batch, publishers)
            writer.add(rows if mask is None else rows.filter(mask))
        files = tuple(file for file in writer.close() if file.rows)
    finally:
        # Removes the files of a failed task; has no effect after `close`.
        writer.abandon()
    if files:
        columns = [
            [partition.channel],
            [partition.epoch],
            [sum(file.rows for file in files)],
            [msgspec.json.encode(files)],
            [schema_bytes(writer.schema)],
        ]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(values, field.type)
                for values, field in zip(columns, _ROW_SCHEMA, strict=True)
            ],
            schema=_ROW_SCHEMA,
        )
