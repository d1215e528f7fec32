"""How far steps have come, in figures that people see."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.spark.pipelines.running import RunningWork, lag_of
from penstock.spark.pipelines.step import Progress, WorkOutcome


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
