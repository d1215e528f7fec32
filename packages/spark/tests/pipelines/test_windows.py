"""Lengths of time, and windows that are closed through the log of their query."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from penstock_core.vocabulary.errors import Corrupt, IllegalState, InvalidArgument
from penstock_spark.pipelines.windows import close_windows, duration, move_watermark

NO_SPARK: Any = None


def test_a_length_of_time() -> None:
    assert duration("gap", "90 minutes") == timedelta(minutes=90)
    assert duration("gap", " 1 day ") == timedelta(days=1)


@pytest.mark.parametrize("text", ["", "1", "0 hours", "-1 hour", "1 month", "1.5 hours"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^gap is .*; it must be a time such as"):
        duration("gap", text)


def test_a_query_that_never_ran_has_no_window(tmp_path: Path) -> None:
    assert not close_windows(cast("SparkSession", NO_SPARK), str(tmp_path / "query"))


def test_a_query_in_the_middle_of_a_micro_batch_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n{}")

    with pytest.raises(IllegalState, match=r"micro-batch 0 of .* has not ended"):
        close_windows(cast("SparkSession", NO_SPARK), str(tmp_path))


LOGGED = 'v1\n{"batchWatermarkMs":5,"conf":{"a":"b"}}\n{"c":{}}\n-'


@pytest.mark.parametrize("place", ["", "file://"])
def test_the_log_gets_an_entry_with_another_watermark_and_the_same_positions(
    tmp_path: Path, place: str
) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        for number in (9, 10):
            (tmp_path / log / str(number)).write_text(LOGGED)

    move_watermark(f"{place}{tmp_path}", 7)

    added = (tmp_path / "offsets" / "11").read_text()
    assert added == LOGGED.replace(":5,", ":7,")
    assert len(list((tmp_path / "offsets").iterdir())) == 3


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        ("v2\n" + LOGGED.partition("\n")[2], "are of version v2, not v1"),
        ("v1\n{}\n{}", "do not have the format of Spark 4.3"),
        ("v1\nx\n{}", "do not have the format of Spark 4.3"),
    ],
)
def test_a_log_that_is_not_known_is_left_as_it_is(tmp_path: Path, logged: str, said: str) -> None:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        (tmp_path / log / "0").write_text(logged)

    with pytest.raises(Corrupt, match=said):
        move_watermark(str(tmp_path), 7)
    assert len(list((tmp_path / "offsets").iterdir())) == 1
