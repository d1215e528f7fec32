"""A running step: a query of Spark, or work in a thread."""

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
    """A step that has been started."""

    @property
    def is_over(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """Whether it is doing something that should be finished rather than interrupted."""
        ...

    @property
    def error(self) -> BaseException | None:
        """Why it ended, when it failed."""
        ...

    @property
    def outcome(self) -> WorkOutcome | None: ...

    @property
    def has_moved(self) -> bool:
        """Whether it got on since it was started: what made it fail before has passed."""
        ...

    def progress(self) -> Progress: ...

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended, for at most so long."""
        ...

    def stop(self) -> None:
        """End it now. What it was in the middle of is done again by the next run, once."""
        ...


class RunningQuery:
    """A query of Spark's."""

    def __init__(self, step: str, query: StreamingQuery, before: Progress | None = None) -> None:
        self._query = query
        self._seen = -1
        """The last micro-batch that was counted."""
        self._first = True
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
        """Whether a micro-batch went through since it was started."""
        return self._seen >= 0

    def progress(self) -> Progress:
        last = self._query.lastProgress
        if last is None:
            return self._progress
        number = last["batchId"]
        # Only the last hundred are kept, and reading them is expensive: usually one has come.
        fresh = [last] if number <= self._seen + 1 else self._query.recentProgress
        rows = late = 0
        out: int | None = None
        for each in fresh:
            if each["batchId"] > self._seen and _rows_of(each):
                rows += _rows_in(each)
                if (stored := _rows_out(each)) is not None:
                    out = (out or 0) + stored
                late += late_rows(each)
                self._seen = each["batchId"]
        known = self._progress
        lag_events, lag_ms = lag_of(last)
        self._progress = Progress(
            step=known.step,
            rows=known.rows + rows,
            rows_out=known.rows_out if out is None else (known.rows_out or 0) + out,
            rows_late=known.rows_late + late,
            rows_per_s=_rate(last, _rows_in(last)) or 0.0,
            rows_out_per_s=_rate(last, _rows_out(last)),
            batch=self._seen if self._seen >= 0 else known.batch,
            batch_ms=_duration(last),
            lag_events=lag_events,
            lag_ms=lag_ms,
            text="runs" if _rows_of(last) else "waits",
            later=_later(last),
        )
        return self._progress

    def join(self, timeout_s: float) -> None:
        with contextlib.suppress(Exception):  # why it failed is asked for by itself
            self._query.awaitTermination(timeout_s)  # type: ignore[arg-type]  # it takes parts

    def stop(self) -> None:
        with contextlib.suppress(Exception):  # it waits for its thread this long, and no longer
            self._query.stop()


class RunningWork:
    """Work with an end, in a thread of its own."""

    def __init__(self, step: str, work: Work) -> None:
        self.error: BaseException | None = None
        self.outcome: WorkOutcome | None = None
        self._latest = Progress(step=step, text="runs")
        self._rows: int | None = None
        """Rows in the first report, which may include the work of earlier runs."""
        self._work = work
        self._thread = threading.Thread(target=self._run, name=f"step-{step}", daemon=True)

    def start(self) -> None:
        """Begin; listeners for its reports must be registered before."""
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_busy(self) -> bool:
        return not self.is_over

    def report(self, progress: Progress) -> None:
        """Take a progress report from the work."""
        if self._rows is None:
            self._rows = progress.rows
        self._latest = progress

    @property
    def has_moved(self) -> bool:
        """Whether it has reported more rows than at first."""
        return self._rows is not None and self._latest.rows > self._rows

    def progress(self) -> Progress:
        return self._latest

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """Do nothing more: the work checks the stop signal itself, and its thread ends with the
        process."""

    def _run(self) -> None:
        try:
            self.outcome = self._work()
        except BaseException as error:  # noqa: BLE001 - the root of the thread; the runner answers it
            self.error = error


def _later(progress: Mapping[str, Any]) -> dict[str, list[str]]:
    """The properties that a query leaves out; an archive, whose rows are files, has them all."""
    if _observed(progress, READ) is not None:
        return {}
    from penstock_spark.reading.progress import later_columns

    return later_columns(progress)


def _rows_in(progress: Mapping[str, Any]) -> int:
    events = _observed(progress, READ)
    return _rows_of(progress) if events is None else events


def _rows_of(progress: Mapping[str, Any]) -> int:
    """The number of rows in a progress report; over Spark Connect only the sources have it."""
    rows = progress.get("numInputRows")
    if rows is None:
        rows = sum(source.get("numInputRows") or 0 for source in progress.get("sources") or ())
    return int(rows)


def _rows_out(progress: Mapping[str, Any]) -> int | None:
    events = _observed(progress, READ)
    return _observed(progress, COUNTED) if events is None else events


def _observed(progress: Mapping[str, Any], name: str) -> int | None:
    metrics = (progress.get("observedMetrics") or {}).get(name)
    rows = getattr(metrics, "rows", None)
    if rows is None and metrics is not None:  # Spark Connect gives the fields beside the values
        fields = getattr(metrics, "schema", {}).get("fields", ())
        values = dict(zip((f["name"] for f in fields), getattr(metrics, "values", ()), strict=True))
        rows = values.get("rows")
    return None if rows is None else int(rows)


def _duration(progress: Mapping[str, Any]) -> int | None:
    took = (progress.get("durationMs") or {}).get("triggerExecution")
    return None if took is None else int(took)


def late_rows(progress: Mapping[str, Any]) -> int:
    """Number of rows of a micro-batch that were left out because they came behind the watermark."""
    return sum(
        int(operator.get("numRowsDroppedByWatermark", 0))
        for operator in progress.get("stateOperators", ())
    )


def _rate(progress: Mapping[str, Any], rows: int | None) -> float | None:
    took_ms = _duration(progress)
    return None if rows is None or not took_ms else round(rows * 1_000 / took_ms, 1)


def lag_of(progress: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """The number of events of all sources that are not processed, and the age in ms of the
    oldest."""
    events: list[int] = []
    ages_ms: list[int] = []
    for source in progress.get("sources") or ():
        latest = source.get("latestOffset")
        events += _told(latest, "lag_events") or _behind(source)
        ages_ms += _told(latest, "lag_ms")
    return sum(events) if events else None, max(ages_ms, default=None)


def _told(offset: Any, key: str) -> list[int]:
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


def _behind(source: Mapping[str, Any]) -> list[int]:
    """Events between what was read and what is there, computed from the positions."""
    there, read = positions_in(source.get("latestOffset")), positions_in(source.get("endOffset"))
    return [max(0, next_id - read.get(name, next_id)) for name, next_id in there.items()]
