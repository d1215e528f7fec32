"""Running steps: queries of Spark, and work in threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock_core.wire.positions import positions_in
from penstock_spark.pipelines.step import Progress, Work, WorkOutcome
from penstock_spark.pipelines.targets import COUNTED, READ

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PROCESSING: Final = "Processing new data"
"""The status message of a query in the middle of a micro-batch."""


class Running(Protocol):
    """A step that was started."""

    @property
    def is_over(self) -> bool:
        """Whether the step has ended, with or without an error."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether the step is doing work that should be finished rather than interrupted."""
        ...

    @property
    def error(self) -> BaseException | None:
        """The error of a failed step; None if it has not failed."""
        ...

    @property
    def outcome(self) -> WorkOutcome | None:
        """The result of work that has ended; None for queries."""
        ...

    @property
    def has_moved(self) -> bool:
        """Whether the step has made progress since its start, which proves that the cause of an
        earlier failure is gone."""
        ...

    def progress(self) -> Progress:
        """Return the current progress."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` seconds for the end of the step."""
        ...

    def stop(self) -> None:
        """End the step now. The next run repeats an interrupted micro-batch, whose rows are stored
        once."""
        ...


class RunningQuery:
    """A running streaming query of Spark."""

    def __init__(self, step: str, query: StreamingQuery, before: Progress | None = None) -> None:
        """``before`` is the progress of the step before this query was started; its counts are
        continued."""
        self._query = query
        self._counted_batch = -1
        """Number of the last counted micro-batch."""
        self._progress = before or Progress(step=step)

    @property
    def is_over(self) -> bool:
        return not self._query.isActive

    @property
    def is_busy(self) -> bool:
        status = self._query.status
        return bool(status["isTriggerActive"]) and status["message"] == PROCESSING

    @property
    def error(self) -> BaseException | None:
        return self._query.exception() if self.is_over else None

    @property
    def outcome(self) -> WorkOutcome | None:
        return None

    @property
    def has_moved(self) -> bool:
        """Whether a micro-batch has succeeded since the start."""
        return self._counted_batch >= 0

    def progress(self) -> Progress:
        last = self._query.lastProgress
        if last is None:
            return self._progress
        number = last["batchId"]
        # Reading all hundred recent reports from the JVM is slow, and usually only one is new.
        reports = [last] if number <= self._counted_batch + 1 else self._query.recentProgress
        rows = rows_late = 0
        rows_out: int | None = None
        for report in reports:
            if report["batchId"] > self._counted_batch and _rows_of(report):
                rows += _rows_in(report)
                if (stored := _rows_out(report)) is not None:
                    rows_out = (rows_out or 0) + stored
                rows_late += late_rows(report)
                self._counted_batch = report["batchId"]
        earlier = self._progress
        lag_events, lag_ms = lag_of(last)
        self._progress = Progress(
            step=earlier.step,
            rows=earlier.rows + rows,
            rows_out=earlier.rows_out if rows_out is None else (earlier.rows_out or 0) + rows_out,
            rows_late=earlier.rows_late + rows_late,
            rows_per_s=_rate(last, _rows_in(last)) or 0.0,
            rows_out_per_s=_rate(last, _rows_out(last)),
            batch=self._counted_batch if self._counted_batch >= 0 else earlier.batch,
            batch_ms=_duration_ms(last),
            lag_events=lag_events,
            lag_ms=lag_ms,
            text="runs" if _rows_of(last) else "waits",
            later=_left_out_properties(last),
        )
        return self._progress

    def join(self, timeout_s: float) -> None:
        with contextlib.suppress(Exception):  # `error` reports the failure
            self._query.awaitTermination(timeout_s)  # type: ignore[arg-type]  # seconds may be fractions

    def stop(self) -> None:
        with contextlib.suppress(Exception):  # the query's thread may not end in time
            self._query.stop()


class RunningWork:
    """Work that runs in a separate thread."""

    def __init__(self, step: str, work: Work) -> None:
        self.error: BaseException | None = None
        self.outcome: WorkOutcome | None = None
        self._latest = Progress(step=step, text="runs")
        self._rows: int | None = None
        """Number of rows in the first report, which may include the work of earlier runs."""
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"step-{step}", daemon=True)

    def start(self) -> None:
        """Start the thread. The step's context must already refer to this object, because the
        work reports to it."""
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_busy(self) -> bool:
        return not self.is_over

    def report(self, progress: Progress) -> None:
        """Store a progress report from the work."""
        if self._rows is None:
            self._rows = progress.rows
        self._latest = progress

    @property
    def has_moved(self) -> bool:
        """Whether the work has reported more rows than in its first report."""
        return self._rows is not None and self._latest.rows > self._rows

    def progress(self) -> Progress:
        return self._latest

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Do nothing: the work checks the stop signal itself, and its thread ends with the
        process."""

    def _run(self) -> None:
        try:
            self.outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - the runner handles it
            self.error = error


def _left_out_properties(progress: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the properties that a query leaves out, by channel; none for an archive, which stores
    all. The rows of an archive's query are files."""
    if _observed(progress, READ) is not None:
        return {}
    from penstock_spark.reading.progress import later_columns

    return later_columns(progress)


def _rows_in(progress: Mapping[str, Any]) -> int:
    """Return the number of events that a micro-batch has read."""
    events = _observed(progress, READ)
    return _rows_of(progress) if events is None else events


def _rows_of(progress: Mapping[str, Any]) -> int:
    """Return the number of input rows in a progress report. Over Spark Connect, only the sources in
    the report have the number."""
    rows = progress.get("numInputRows")
    if rows is None:
        rows = sum(source.get("numInputRows") or 0 for source in progress.get("sources") or ())
    return int(rows)


def _rows_out(progress: Mapping[str, Any]) -> int | None:
    """Return the number of rows that a micro-batch has written; None if it was not counted."""
    events = _observed(progress, READ)
    return _observed(progress, COUNTED) if events is None else events


def _observed(progress: Mapping[str, Any], name: str) -> int | None:
    """Return the count that the query observes under ``name``; None if it does not."""
    metrics = (progress.get("observedMetrics") or {}).get(name)
    rows = getattr(metrics, "rows", None)
    if rows is None and metrics is not None:  # Spark Connect lists names and values separately
        fields = getattr(metrics, "schema", {}).get("fields", ())
        values = dict(zip((f["name"] for f in fields), getattr(metrics, "values", ()), strict=True))
        rows = values.get("rows")
    return None if rows is None else int(rows)


def _duration_ms(progress: Mapping[str, Any]) -> int | None:
    """Return the time that a micro-batch took, in milliseconds; None if unknown."""
    duration_ms = (progress.get("durationMs") or {}).get("triggerExecution")
    return None if duration_ms is None else int(duration_ms)


def late_rows(progress: Mapping[str, Any]) -> int:
    """Return the number of rows that a micro-batch dropped because they were older than the
    watermark."""
    return sum(
        int(operator.get("numRowsDroppedByWatermark", 0))
        for operator in progress.get("stateOperators", ())
    )


def _rate(progress: Mapping[str, Any], rows: int | None) -> float | None:
    """Return ``rows`` per second of a micro-batch; None if the rows or the time are unknown."""
    duration_ms = _duration_ms(progress)
    return None if rows is None or not duration_ms else round(rows * 1_000 / duration_ms, 1)


def lag_of(progress: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the number of unprocessed events of all sources, and the age of the oldest one in
    milliseconds; None for a value that is unknown."""
    events: list[int] = []
    ages_ms: list[int] = []
    for source in progress.get("sources") or ():
        latest = source.get("latestOffset")
        events += _values_in_offset(latest, "lag_events") or _events_behind(source)
        ages_ms += _values_in_offset(latest, "lag_ms")
    return sum(events) if events else None, max(ages_ms, default=None)


def _values_in_offset(offset: Any, key: str) -> list[int]:
    """Return the integers under ``key`` of each channel in a position; empty if the position is not
    of the format ``penstock``."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        decoded = msgspec.json.decode(offset) if isinstance(offset, str) else offset
        channels = decoded.get("c") if isinstance(decoded, dict) else None
        if isinstance(channels, dict):
            return [
                place[key]
                for place in channels.values()
                if isinstance(place, dict) and isinstance(place.get(key), int)
            ]
    return []


def _events_behind(source: Mapping[str, Any]) -> list[int]:
    """Return, for each channel, the number of ids between the end of the micro-batch and the newest
    event."""
    newest, processed = (
        positions_in(source.get("latestOffset")),
        positions_in(source.get("endOffset")),
    )
    return [max(0, next_id - processed.get(name, next_id)) for name, next_id in newest.items()]
