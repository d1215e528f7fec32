"""The sources of a pipeline: each ``[[source]]`` reads channels, a queue, or a table."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct, field

from penstock.tables.disk import check_format, is_iceberg
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.errors.error_marks import secret_options
from penstock_spark.pipelines.csv_tables import read_csv

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Allowed names of sources, which are used in SQL and as parameters of Python functions."""

_DELAY: Final = re.compile(r"\s*\d+(\.\d+)?\s*(millisecond|second|minute|hour|day|week)s?\s*")


class Watermark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The delay that rows may have: Spark drops rows older than the newest time minus the delay."""

    column: str
    """The column with the time of a row."""
    delay: str
    """The delay with its unit, such as ``"10 minutes"``."""

    def __post_init__(self) -> None:
        if _DELAY.fullmatch(self.delay) is None:
            raise InvalidArgument(
                f'watermark.delay is {self.delay!r}; it must be a time such as "10 minutes"'
            )


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[source]]``. Exactly one of ``channel``, ``queue`` and ``table`` is set."""

    name: str
    """The name of the source in SQL: letters, digits and ``_``."""

    channel: str | tuple[str, ...] = ""
    """The name of a channel, several names, or a pattern such as ``flights/*``."""

    queue: str = ""
    """The name of a queue. It is read by peeking: events stay in the queue."""

    table: str = ""
    """The path of a table, relative to the definition's file, or a URI; of an Iceberg table
    ``iceberg://CATALOG/NAMESPACE/TABLE``."""

    format: Literal["", "delta", "iceberg", "parquet", "csv", "json"] = ""
    """The format of the table. If it is empty, the suffix of the table's name decides; a name
    without such a suffix means a table that a pipeline has written, or a Delta table."""

    durable: str = ""
    """The durable that the query is bound to: the realm keeps events until they are processed."""

    starting: Any = ""
    """The start of the first run: ``earliest``, ``latest``, an event id, a time, or one of them for
    each channel. Later runs continue where the last one ended."""

    selector: str = ""
    """A condition on the events to read; empty means all events."""
    columns: tuple[str, ...] = ()
    """The columns to read; empty means all columns."""

    max_events: int | None = None
    """Largest number of events in a micro-batch; None means the default of the format
    ``penstock``."""

    bounded: bool = False
    """Whether the source is read completely at each use, instead of as a stream. Tables are always
    bounded."""

    watermark: Watermark | None = None
    """Delay that events may have; None means that no event is too late."""

    options: dict[str, str | int | bool] = field(default_factory=dict)
    """Further options of the Spark format, by the names that ``.option(…)`` accepts."""

    def __post_init__(self) -> None:
        if SOURCE_NAME.fullmatch(self.name) is None:
            raise InvalidArgument(
                f"name is {self.name!r}; names are used in SQL, so they may have letters, digits "
                f"and _, and must not begin with a digit"
            )
        keys = [key for key in ("channel", "queue", "table") if getattr(self, key)]
        if len(keys) != 1:
            has = f"{' and '.join(keys)} are given" if keys else "none is given"
            raise InvalidArgument(f"channel, queue or table: {has}; give exactly one")
        self._check_table() if self.table else self._check_channel()

    @property
    def is_table(self) -> bool:
        """Whether the source reads a table, and not a channel or queue."""
        return bool(self.table)

    @property
    def is_stream(self) -> bool:
        """Whether a query reads the source as a stream."""
        return not (self.is_table or self.bounded)

    @property
    def reads(self) -> str:
        """A description for display, such as ``channel flights`` or ``table airports.csv``."""
        if self.table:
            return f"table {self.table}"
        if self.queue:
            return f"queue {self.queue}"
        names = (self.channel,) if isinstance(self.channel, str) else self.channel
        return f"channel {', '.join(names)}"

    def _check_table(self) -> None:
        """Raise ``InvalidArgument`` if a key is set that does not apply to tables."""
        for key in ("durable", "starting", "selector", "max_events", "watermark"):
            if getattr(self, key):
                raise InvalidArgument(
                    f"{key} applies to a channel or queue, but this reads a table"
                )
        if self.format:
            check_format(self.table, self.format)

    def _check_channel(self) -> None:
        """Raise ``InvalidArgument`` if keys of a channel or queue contradict each other."""
        if self.format:
            raise InvalidArgument("format applies to a table, but this reads a channel or queue")
        _start_options(self.starting)
        if self.durable and self.queue:
            raise InvalidArgument("durable applies to a channel, but this reads a queue")
        if self.durable and self.starting != "":
            raise InvalidArgument(
                "starting and durable are both given, but the durable decides where the first run "
                "begins; leave out starting, or create a durable that starts where you want"
            )
        if self.durable and self.bounded:
            raise InvalidArgument("durable applies to a stream, but bounded is true")
        if self.max_events is not None and self.max_events < 1:
            raise InvalidArgument(f"max_events is {self.max_events}; it must be 1 or more")

    def format_options(self) -> dict[str, str]:
        """Return the options of the format ``penstock`` that read this channel or queue. Must not
        be called for tables."""
        options = {
            **_destination(self),
            **_start_options(self.starting),
            "durable": self.durable,
            "selector": self.selector,
            "columns": ",".join(self.columns),
            "maxEventsPerTrigger": str(self.max_events or ""),
        }
        non_empty = {option: text for option, text in options.items() if text}
        return non_empty | _option_texts(self.options)

    def frame(self, spark: SparkSession, url: str, path: str = "", **options: str) -> DataFrame:
        """Return the source as a DataFrame, which is streaming if :attr:`is_stream`.

        ``url`` is that of the realm. ``path`` is the absolute path of a table. ``options`` override
        the options of the source.
        """
        if self.is_table:
            return self._table(spark, path or self.table)
        reader = spark.readStream if self.is_stream else spark.read
        reader_options = {"url": url, **self.format_options(), **options, **secret_options()}
        frame = reader.format("penstock").options(**reader_options).load()
        if self.watermark is not None and self.is_stream:
            frame = frame.withWatermark(self.watermark.column, self.watermark.delay)
        return frame

    @property
    def table_format(self) -> str:
        """The format of the table: the key ``format``, otherwise ``iceberg`` for the URI of an
        Iceberg table, otherwise the suffix of the name; empty for a table that a pipeline has
        written."""
        if is_iceberg(self.table):
            return "iceberg"
        suffix = PurePosixPath(self.table).suffix.removeprefix(".").lower()
        return self.format or (suffix if suffix in ("csv", "json", "parquet") else "")

    def _table(self, spark: SparkSession, path: str) -> DataFrame:
        """Return the table at ``path`` as a DataFrame."""
        if self.table_format in ("", "delta", "iceberg") or _is_penstock_table(path):
            from penstock_spark.tables import Table

            table = Table.open(path) if self.format == "delta" else Table.found(path)
            frame: DataFrame = table.read(spark)
        elif self.table_format == "csv":
            frame = read_csv(spark, path, _option_texts(self.options))
        else:
            reader = spark.read.format(self.table_format)
            frame = reader.options(**_option_texts(self.options)).load(path)
        return frame.select(*self.columns) if self.columns else frame


def _is_penstock_table(path: str) -> bool:
    """Return whether the folder at ``path`` has a commit log of Penstock. Of such a table, only
    committed Parquet files are read."""
    return (Path(path) / "_penstock").is_dir()


def _option_texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Return the values of options as texts, because Spark accepts only texts."""
    return {
        option: str(value).lower() if isinstance(value, bool) else str(value)
        for option, value in options.items()
    }


def joined_names(names: Sequence[str]) -> str:
    """Return names and patterns as the text of one option, separated by commas. Commas in names are
    escaped."""
    return ",".join(name.replace(",", "%2C") for name in names)


def _destination(source: Source) -> dict[str, str]:
    """Return the option that names the channels or the queue of a source."""
    if source.queue:
        return {"queue": source.queue}
    if not isinstance(source.channel, str):
        return {"channel": joined_names(source.channel)}
    return {"channel": source.channel}


def _start_options(starting: Any) -> dict[str, str]:
    """Return the option for the start of a read. Raises ``InvalidArgument`` if ``starting`` is not
    a valid start."""
    if isinstance(starting, dict) and starting and all(map(_is_position, starting.values())):
        return {"startingOffsets": json.dumps(starting, sort_keys=True)}
    if isinstance(starting, str) and starting in ("", "earliest", "latest"):
        return {"startingOffsets": starting}
    if _is_position(starting):
        return {"startingOffsets": str(starting)}
    with contextlib.suppress(TypeError, ValueError):
        moment = starting if isinstance(starting, datetime) else datetime.fromisoformat(starting)
        if moment.tzinfo is None:
            raise InvalidArgument(
                f"starting is {starting}, a time without a time zone: add one, as in "
                f"{moment.isoformat()}Z for UTC or {moment.isoformat()}+02:00"
            )
        return {"startingTimestamp": moment.isoformat()}
    raise InvalidArgument(
        f'starting is {starting!r}; it must be "earliest", "latest", an event id, a time such as '
        "2013-01-31T09:30:00Z, or a table of channel = id"
    )


def _is_position(value: Any) -> bool:
    """Return whether a value is an event id, as a number or text, or "earliest" or "latest"."""
    if isinstance(value, str):
        return value in ("earliest", "latest") or value.isdecimal()
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
