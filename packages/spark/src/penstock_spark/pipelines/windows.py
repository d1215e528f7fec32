"""Windows of time: parses lengths, and closes open windows after the last event.

Spark emits the final row of a window when the watermark passes the end of the window, and only
events advance the watermark. Therefore, after the last event, :func:`close_windows` adds a
micro-batch to the query's log, without events and with a watermark at the end of the last open
window. The query runs this micro-batch once, like any other.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pyarrow import fs

from penstock_core.vocabulary.errors import Corrupt, IllegalState, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DURATION: Final = re.compile(r"\s*(\d+)\s*(millisecond|second|minute|hour|day|week)s?\s*")
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LOG_VERSION: Final = "v1"
_WATERMARK: Final = "batchWatermarkMs"
_WINDOWS: Final = ("window", "session_window")
"""Names of the columns for windows in the state of a query."""


def duration(key: str, text: str) -> timedelta:
    """Parse a length of time. Raises ``InvalidArgument``, with a text that begins with ``key``, if
    ``text`` is not a positive length."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        raise InvalidArgument(
            f'{key} is {text!r}; it must be a time such as "10 minutes", in milliseconds, seconds, '
            "minutes, hours, days or weeks"
        )
    return timedelta(**{f"{match[2]}s": int(match[1])})


def close_windows(spark: SparkSession, query: str) -> bool:
    """Plan a micro-batch that closes the open windows when the query is started next. Return False
    if no window is open.

    ``query`` is the path or URI of the query's checkpoint. The query must not be running. Raises
    ``IllegalState`` if its last micro-batch has not ended, and ``Corrupt`` if the checkpoint cannot
    be read.
    """
    if _CheckpointLogs(query).last_done() is None:
        return False
    end_ms = _last_end_ms(spark, query)
    if end_ms is None:
        return False
    # A window closes when the watermark has reached its end.
    move_watermark(query, end_ms)
    return True


def move_watermark(query: str, watermark_ms: int) -> None:
    """Plan a micro-batch without events for a query that is not running.

    Its watermark is ``watermark_ms`` (milliseconds since 1970), or the current one if that is
    later. Raises the errors of :func:`close_windows`.
    """
    log = _CheckpointLogs(query)
    last = log.last_done()
    if last is None:
        raise IllegalState(f"{query} has not completed a micro-batch yet; run the query first")
    log.add(last + 1, _with_watermark(log.read(last), watermark_ms, query))


def _last_end_ms(spark: SparkSession, query: str) -> int | None:
    """Return the latest end of an open window in the query's state, in milliseconds since 1970;
    None if no window is open."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import StructType

    state = spark.read.format("statestore").load(query)
    end_columns = [
        f"{side.name}.{field.name}.end"
        for side in state.schema
        if isinstance(side.dataType, StructType)
        for field in side.dataType
        if field.name in _WINDOWS
    ]
    if not end_columns:
        raise Corrupt(f"the state of {query} has no windows: {state.schema.simpleString()}")
    end = sf.max(end_columns[0])
    row = state.select(sf.ceil(sf.unix_micros(end) / 1_000).alias("end_ms")).first()
    return None if row is None or row.end_ms is None else int(row.end_ms)


def _with_watermark(entry: str, watermark_ms: int, query: str) -> str:
    """Return a log entry with its watermark raised to ``watermark_ms``. Raises ``Corrupt`` if the
    entry has another format."""
    version, _, after_version = entry.partition("\n")
    metadata, _, positions = after_version.partition("\n")
    try:
        settings: dict[str, Any] = json.loads(metadata)
        old_watermark_ms = int(settings[_WATERMARK])
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"the offsets of {query} do not have the format of Spark 4.3") from error
    if version != _LOG_VERSION:
        raise Corrupt(f"the offsets of {query} are of version {version}, not {_LOG_VERSION}")
    settings[_WATERMARK] = max(old_watermark_ms, watermark_ms)
    return f"{version}\n{json.dumps(settings, separators=(',', ':'))}\n{positions}"


class _CheckpointLogs:
    """Reads and extends the logs of a query's checkpoint at a path or URI."""

    def __init__(self, query: str) -> None:
        if _URI.match(query):
            self._files, self._path = fs.FileSystem.from_uri(query)
        else:
            self._files, self._path = fs.LocalFileSystem(), query

    def last_done(self) -> int | None:
        """Return the number of the last micro-batch; None before the first one.

        Raises ``IllegalState`` if this micro-batch has not ended.
        """
        last = self._newest("offsets")
        if last is not None and self._newest("commits") != last:
            raise IllegalState(f"micro-batch {last} of {self._path} has not ended")
        return last

    def _newest(self, log: str) -> int | None:
        selector = fs.FileSelector(f"{self._path}/{log}", allow_not_found=True)
        names = [info.base_name for info in self._files.get_file_info(selector)]
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def read(self, number: int) -> str:
        with self._files.open_input_stream(f"{self._path}/offsets/{number}") as stream:
            return bytes(stream.read()).decode()

    def add(self, number: int, entry: str) -> None:
        """Add the entry of micro-batch ``number`` to the log of offsets, atomically."""
        target = f"{self._path}/offsets/{number}"
        # Spark ignores files whose names are not numbers.
        temporary = f"{self._path}/offsets/.{number}.closing.tmp"
        with self._files.open_output_stream(temporary) as stream:
            stream.write(entry.encode())
        self._files.move(temporary, target)
