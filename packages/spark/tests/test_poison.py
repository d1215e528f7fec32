"""Finding the events that make a micro-batch fail, without Spark."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from penstock_core.vocabulary.errors import CannotConnect, ConnectionLost, InvalidArgument
from penstock_spark.errors.error_marks import driver_secret, mark
from penstock_spark.options import SourceOptions, source_options
from penstock_spark.reading.offsets import Position
from penstock_spark.reading.poison import (
    EventKey,
    NotPoison,
    bury_poison,
    is_of_realm,
    isolate,
    ranges_of,
    reason_of,
    unfinished_batch,
)

NO_SPARK = cast("SparkSession", None)


class Trial:
    """A transformation that fails on some events."""

    def __init__(self, *bad: int, count: int = 1_000) -> None:
        self.bad = set(bad)
        self.keys: list[EventKey] = [("orders", n) for n in range(count)]
        self.runs = 0

    def __call__(self, keys: Sequence[EventKey]) -> str:
        self.runs += 1
        failing = sorted(n for _, n in keys if n in self.bad)
        return f"ValueError: event {failing[0]}" if failing else ""

    def isolated(self, limit: int = 10) -> dict[int, str]:
        return {n: error for (_, n), error in isolate(self.keys, self, limit).items()}


@pytest.mark.parametrize("bad", [0, 1, 499, 500, 742, 999])
def test_one_bad_event_is_found_in_about_log2_runs(bad: int) -> None:
    trial = Trial(bad)

    assert trial.isolated() == {bad: f"ValueError: event {bad}"}
    assert trial.runs <= 2 * math.ceil(math.log2(1_000)) + 3


@pytest.mark.parametrize("bad", [(3, 4), (0, 999), (1, 2, 3, 500, 501), tuple(range(100, 110))])
def test_several_bad_events_are_found_in_order(bad: tuple[int, ...]) -> None:
    trial = Trial(*bad)

    assert list(trial.isolated()) == list(bad)
    assert trial.isolated() == {n: f"ValueError: event {n}" for n in bad}


def test_a_micro_batch_of_one_event() -> None:
    assert Trial(0, count=1).isolated() == {0: "ValueError: event 0"}


def test_more_than_the_limit_are_no_poison() -> None:
    assert len(Trial(1, 2, 3).isolated(limit=3)) == 3
    with pytest.raises(NotPoison, match=r"more than 2 events fail, the first with: .* event 1"):
        Trial(1, 2, 3).isolated(limit=2)


def test_what_does_not_fail_again_is_no_poison() -> None:
    with pytest.raises(NotPoison, match="does not fail when it is run again"):
        Trial().isolated()
    with pytest.raises(NotPoison, match="has no unacknowledged event"):
        Trial(count=0).isolated()


def test_what_fails_without_events_is_no_poison() -> None:
    with pytest.raises(NotPoison, match="also fails without any event: no such table"):
        isolate([("orders", 1)], lambda keys: "no such table", 10)


def test_what_fails_only_beside_others_is_no_poison() -> None:
    keys = [("orders", n) for n in range(8)]

    def pair(part: Sequence[EventKey]) -> str:
        return "twice" if {2, 5} <= {n for _, n in part} else ""

    with pytest.raises(NotPoison, match=r"event \d of orders fails only together with others"):
        isolate(keys, pair, 10)


def test_a_part_is_read_by_ranges_and_nothing_of_other_channels() -> None:
    options = ranges_of([("a", 4), ("a", 9), ("c", 0)], ["a", "b", "c"])

    assert json.loads(options["startingOffsets"]) == {"a": 4, "b": 0, "c": 0}
    assert json.loads(options["endingOffsets"]) == {"a": 10, "b": 0, "c": 1}


@pytest.mark.parametrize(
    "error",
    [
        CannotConnect("no realm answered"),
        OSError("disk"),
        MemoryError(),
        PySparkRuntimeError("java.lang.OutOfMemoryError: Java heap space"),
        PySparkRuntimeError("Python worker exited unexpectedly (crashed)"),
        PySparkRuntimeError(f"Job aborted {mark(ConnectionLost('gone'), driver_secret())}"),
        PySparkRuntimeError(
            "Traceback (most recent call last):\n  File 'x'\n"
            "requests.exceptions.ConnectTimeout: timed out"
        ),
    ],
)
def test_no_event_is_to_blame(error: BaseException) -> None:
    assert is_of_realm(error)


def test_an_event_may_be_to_blame() -> None:
    assert not is_of_realm(ValueError("no such airport"))
    assert not is_of_realm(RuntimeError("[CAST_INVALID_INPUT] The value 'x' of the type"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Job aborted\n  File 'x'\nKeyError: 'a'\n\nDuring it\nValueError: no airport XXX\n",
            "ValueError: no airport XXX",
        ),
        (
            "[STREAM_FAILED] it\n[CAST_INVALID_INPUT] The value 'x' is bad. SQLSTATE: 22018\n",
            "[CAST_INVALID_INPUT] The value 'x' is bad.",
        ),
        ("\n something else\nmore", "something else"),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_is_one_line(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


# --- checkpoints --------------------------------------------------------------------------


def options(**more: str) -> SourceOptions:
    return source_options(
        {"url": "penstock://localhost:9000", "channel": "orders", "durable": "lake", **more}
    )


def offset(event_id: int, channel: str = "orders") -> str:
    return json.dumps({"c": {channel: {"e": "r/1", "n": event_id}}, "v": 1})


def log(checkpoint: Path, name: str, number: int, *lines: str) -> None:
    folder = checkpoint / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(number)).write_text("\n".join(("v1", "{}", *lines)))
    (folder / f".{number}.crc").write_bytes(b"crc")


def test_the_micro_batch_that_was_begun_and_not_finished(tmp_path: Path) -> None:
    log(tmp_path, "offsets", 0, offset(5))
    assert unfinished_batch(NO_SPARK, tmp_path, options()) == ({}, {"orders": Position("r/1", 5)})

    log(tmp_path, "commits", 0)
    log(tmp_path, "offsets", 1, '{"path": "other"}', "-", offset(7, "else"), offset(9))
    for place in (str(tmp_path), tmp_path.as_uri()):
        start, end = unfinished_batch(NO_SPARK, place, options())
        assert (start["orders"].event_id, end["orders"].event_id) == (5, 9)


def test_a_checkpoint_without_one(tmp_path: Path) -> None:
    with pytest.raises(NotPoison, match="no micro-batch that was begun"):
        unfinished_batch(NO_SPARK, tmp_path / "none", options())
    log(tmp_path, "offsets", 0, offset(5))
    log(tmp_path, "commits", 0)
    with pytest.raises(NotPoison, match="no micro-batch that was begun"):
        unfinished_batch(NO_SPARK, tmp_path, options())
    log(tmp_path, "offsets", 1, offset(9, "else"))
    with pytest.raises(NotPoison, match="no position of orders"):
        unfinished_batch(NO_SPARK, tmp_path, options())


def test_without_a_durable_nothing_can_be_buried(tmp_path: Path) -> None:
    all_options: dict[str, Any] = {"url": "penstock://localhost:9000", "channel": "orders"}
    with pytest.raises(InvalidArgument, match="give the source the option durable"):
        bury_poison(NO_SPARK, all_options, tmp_path, attempt=lambda table: None)


def test_a_realm_that_is_away_buries_nothing(tmp_path: Path) -> None:
    log(tmp_path, "offsets", 0, offset(5))
    all_options = {"url": "penstock://127.0.0.1:1", "channel": "orders", "durable": "lake"}
    verdict = bury_poison(NO_SPARK, all_options, tmp_path, attempt=lambda table: None)

    assert (verdict.buried, verdict.runs) == ((), 0)
    assert "no realm answered" in verdict.why_none
