"""The progress of steps in the figures that users see."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery

from penstock_spark.pipelines.running import RunningQuery, RunningWork, lag_of
from penstock_spark.pipelines.step import Progress, WorkOutcome
from penstock_spark.pipelines.targets import COUNTED


def source(latest: Any, end: str = '{"c":{"a":{"e":"x","n":90}},"v":1}') -> dict[str, Any]:
    return {"latestOffset": latest, "endOffset": end}


@pytest.mark.parametrize(
    ("sources", "lag"),
    [
        ([source('{"c":{"a":{"e":"x","n":100,"lag_events":7,"lag_ms":30}}}')], (7, 30)),
        (
            [
                source('{"c":{"a":{"lag_events":7,"lag_ms":30},"b":{"lag_events":1,"lag_ms":9}}}'),
                source('{"c":{"a":{"lag_events":2,"lag_ms":40}}}'),
            ],
            (10, 40),
        ),
        ([source('{"c":{"a":{"e":"x","n":100}}}')], (10, None)),
        ([source('{"c":{"a":{"e":"x","n":80}}}')], (0, None)),
        ([source(None), source("12"), source("{")], (None, None)),
        ([], (None, None)),
    ],
)
def test_lag_is_what_the_source_says_else_what_positions_tell(
    sources: list[dict[str, Any]], lag: tuple[int | None, int | None]
) -> None:
    assert lag_of({"sources": sources}) == lag


class Ended:
    """A query that made one micro-batch."""

    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, metrics: Row) -> None:
        self.lastProgress = {
            "batchId": 0,
            "observedMetrics": {COUNTED: metrics},
            "sources": [{"numInputRows": 4_000, "latestOffset": None, "endOffset": None}],
        }


@pytest.mark.parametrize(
    "metrics",
    [
        Row(rows=750),
        Row(values=[750], schema={"type": "struct", "fields": [{"name": "rows", "type": "long"}]}),
    ],
    ids=["classic", "Spark Connect"],
)
def test_rows_that_go_out_are_counted_with_and_without_connect(metrics: Row) -> None:
    running = RunningQuery("copy", cast("StreamingQuery", Ended(metrics)))

    progress = running.progress()

    assert (progress.rows, progress.rows_out) == (4_000, 750)


def test_work_runs_in_a_thread_and_says_how_it_ended() -> None:
    go_on = threading.Event()

    def work() -> WorkOutcome:
        go_on.wait(60)
        return WorkOutcome(text="3 events moved", rows=3)

    running = RunningWork("move", work)
    running.start()
    running.report(Progress(step="move", rows=2, total=3))
    assert (running.is_over, running.is_busy, running.progress().rows) == (False, True, 2)
    go_on.set()
    running.join(60)

    assert (running.is_over, running.error) == (True, None)
    assert running.outcome == WorkOutcome(text="3 events moved", rows=3)


def test_work_that_fails_says_why() -> None:
    def work() -> WorkOutcome:
        raise ValueError("no")

    running = RunningWork("move", work)
    running.start()
    running.join(60)

    assert running.outcome is None
    assert isinstance(running.error, ValueError)
