"""Channels as tables that Spark's own Parquet reader reads: the files of one snapshot (SEM B7).

The realm makes the files when a table is requested. Spark's reader then reads only the columns and
row groups that a query needs. Executors that cannot reach the files read the same columns through
the format ``penstock``.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StructType
from pyspark.sql.utils import is_remote

from penstock.client.sync.sync import Queue
from penstock_core.api.tables import TableFile, TableFiles
from penstock_core.columns.files.table_rows import TableLayout
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    LimitReached,
    RemoteProtocolViolation,
    Unavailable,
)
from penstock_core.vocabulary.names import escaped
from penstock_spark.columns.projection import Extras, spark_schema
from penstock_spark.connections import ChannelLink, ask
from penstock_spark.options import Where
from penstock_spark.reading.channels import typed_properties
from penstock_spark.reading.sealed import is_readable_here

Access = Literal["auto", "local", "remote"]
ACCESS: Final = ("auto", "local", "remote")
_DRIVER_LOOKUPS_SETTING: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Setting with the largest number of paths that the driver looks up itself; for more paths Spark
starts a job."""
_setting_changes: Final = threading.Lock()
"""Acquired while a setting of the session is changed, so that threads do not mix their values."""
_IN_PATTERNS: Final = re.compile(r"([\\*?{}\[\]])")
"""Characters with a special meaning in paths, which Hadoop treats as patterns."""


class _Streamed(NamedTuple):
    """The columns of a channel or queue that is read through the format ``penstock``."""

    kind: Literal["channel", "queue"]
    name: str
    source: StructType
    """The columns that the format returns."""
    shown: StructType
    """The columns of the table, in the same order."""
    end: int
    """Id after the newest event of the table."""


def native_table(spark: SparkSession, where: Where, access: Access) -> DataFrame:
    """Return a channel or queue as a table of the events that it stores now.

    Raises ``InvalidArgument``, ``NameDoesNotExist``, ``CannotConnect``, ``LimitReached``,
    ``StorageFailed``, ``Damaged``, and ``Unavailable`` if ``access`` is ``local`` and this machine
    does not have the files.
    """
    if access not in ACCESS:
        raise InvalidArgument(f"access is {access!r}; it must be one of {', '.join(ACCESS)}")
    if access == "local" or (access == "auto" and _runs_here(spark)):
        files = ask(where, lambda link: _files_of(link, is_needed=access == "local"))
        if files is not None:
            return _read(spark, files)
    streamed = ask(where, _streamed)
    for field, shown in zip(streamed.source, streamed.shown, strict=True):
        if not _has_same_fields(field.dataType, shown.dataType):
            raise InvalidArgument(
                f"column {shown.name} has a field with integers and floats, which the table has in "
                f"two columns and the format penstock in one; read it with access='local' where "
                f"the files are, or with the format penstock"
            )
    frame = (
        spark.read.schema(streamed.source)
        .format("penstock")
        .options(url=where.url, includeHeaders=True, endingOffsets=streamed.end)
        .option(streamed.kind, escaped(streamed.name))
        .load()
    )
    # A cast also renames the fields of structs to the names that they have in the table.
    return frame.select(
        *(
            functions.col(_quoted(field.name)).cast(shown.dataType).alias(shown.name)
            for field, shown in zip(streamed.source, streamed.shown, strict=True)
        )
    )


def _has_same_fields(kind: DataType, other: DataType) -> bool:
    """Return whether structs inside the two types have equal numbers of fields, at every depth."""
    if isinstance(kind, StructType) and isinstance(other, StructType):
        return len(kind) == len(other) and all(
            _has_same_fields(field.dataType, other_field.dataType)
            for field, other_field in zip(kind, other, strict=True)
        )
    if isinstance(kind, ArrayType) and isinstance(other, ArrayType):
        return _has_same_fields(kind.elementType, other.elementType)
    return True


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _runs_here(spark: SparkSession) -> bool:
    """Return whether all executors run on this machine."""
    return not is_remote() and str(spark.sparkContext.master).startswith("local")


def _files_of(link: ChannelLink, *, is_needed: bool) -> TableFiles | None:
    """Return the files of the table; None if this machine cannot read them, or if the realm does
    not offer tables.

    With ``is_needed``, raises ``Unavailable`` or the error of the realm instead.
    """
    sealed = link.store.locate(0, link.end).sealed
    # The check avoids that a realm on another machine writes files that cannot be read here.
    if is_needed or not sealed or any(is_readable_here(part.path, part.size) for part in sealed):
        try:
            files = link.store.locate_table()
        except (IllegalState, LimitReached, RemoteProtocolViolation):
            # The realm has no tables, has no room for their files, or is older than this request.
            if is_needed:
                raise
            return None
        unreadable = [file.path for file in files.files if not _is_readable(file)]
        if not unreadable:
            return files
        if is_needed:
            raise Unavailable(
                f"the file {unreadable[0]!r} of the table cannot be read on this machine; this "
                f"machine must have the realm's data directory under the same path, or access must "
                f"be auto"
            )
    return None


def _is_readable(file: TableFile) -> bool:
    """Return whether this process can read a file of a table. The size must be equal, because files
    of tables do not grow: a longer file is another one."""
    try:
        return Path(file.path).stat().st_size == file.size and os.access(file.path, os.R_OK)
    except OSError:
        return False


def _read(spark: SparkSession, files: TableFiles) -> DataFrame:
    """Return the files of a table as a DataFrame of Spark's Parquet reader."""
    schema: StructType = from_arrow_schema(schema_from(files.columns))
    if not files.files:
        return spark.createDataFrame([], schema)
    paths = ["file://" + _IN_PATTERNS.sub(r"\\\1", file.path) for file in files.files]
    # A missing file must be an error, whatever the settings of the session are: otherwise rows
    # would be missing without notice.
    reader = spark.read.options(ignoreMissingFiles=False, ignoreCorruptFiles=False).schema(schema)
    # If the files are more than the setting allows, Spark starts a job that looks them up, which
    # takes longer than a look-up in the driver. The raised setting also applies to other threads
    # that read files in the meantime, which does no harm.
    with _setting_changes:
        files_max = spark.conf.get(_DRIVER_LOOKUPS_SETTING) or "32"
        if len(paths) <= int(files_max):
            return reader.parquet(*paths)
        spark.conf.set(_DRIVER_LOOKUPS_SETTING, len(paths))
        try:
            return reader.parquet(*paths)
        finally:
            spark.conf.set(_DRIVER_LOOKUPS_SETTING, files_max)


def _streamed(link: ChannelLink) -> _Streamed:
    """Return the columns with which the format ``penstock`` reads a channel as a table."""
    # Read before the columns, so that the columns of all events below `end` are known.
    end = link.end
    stored = link.store.columns()
    typed = typed_properties({link.name: link}, {link.name: stored})
    columns = TableLayout(stored).columns_with(typed, ())
    extras = Extras(headers=True)
    known = {*spark_schema([stored], extras=extras, typed=typed).names}
    # Names of the format differ only where Iceberg reserves a name.
    names = [
        name if name in known or (plain := name.removeprefix("properties.")) not in known else plain
        for name in columns.names
    ]
    return _Streamed(
        "queue" if isinstance(link.store, Queue) else "channel",
        link.name,
        spark_schema([stored], columns=tuple(names), extras=extras, typed=typed),
        shown=from_arrow_schema(columns),
        end=end,
    )
