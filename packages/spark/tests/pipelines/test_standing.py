"""The state of steps, read from files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_core.vocabulary.errors import IllegalState
from penstock_spark.pipelines import Pipeline, Query, Source
from penstock_spark.pipelines.standing import (
    Positions,
    Status,
    StepFiles,
    is_running,
    pipeline_locked,
)


def pipeline(folder: Path, checkpoints: str = "checkpoints") -> Pipeline:
    return Pipeline(
        name="p",
        sources=(Source(name="flights", channel="flights"),),
        steps=(Query(name="late", sql="SELECT * FROM flights", channel="late"),),
        checkpoints=checkpoints,
        folder=folder,
    )


def test_a_step_stands_where_its_last_done_batch_ended(tmp_path: Path) -> None:
    files = StepFiles(pipeline(tmp_path), "late")
    assert files.positions() == Positions()
    query = Path(files.checkpoint) / "query"
    for number in (9, 10, 11):
        (query / "offsets").mkdir(parents=True, exist_ok=True)
        (query / "offsets" / str(number)).write_text(
            f'v1\n{{"batchWatermarkMs":0}}\n{{"c":{{"a":{{"e":"x","n":{number}00}}}},"v":1}}\n'
            '{"c":{"b":{"e":"y","n":7}},"v":1}\n-'
        )
    (query / "commits").mkdir()
    (query / "commits" / "9").write_text("v1\n{}")
    (query / "commits" / "10").write_text("v1\n{}")
    (query / "commits" / ".10.crc").write_text("")

    assert files.positions() == Positions(batch=10, channels={"a": 1_000, "b": 7})


def test_what_a_step_says_is_kept(tmp_path: Path) -> None:
    files = StepFiles(pipeline(tmp_path), "late")
    assert files.status() is None
    files.prepare()

    files.write(Status(state="failed", error="no"))

    status = files.status()
    assert status is not None
    assert (status.state, status.error) == ("failed", "no")
    Path(f"{files.checkpoint}.json").write_text("{")
    assert files.status() is None


def test_on_a_store_only_spark_keeps_something(tmp_path: Path) -> None:
    files = StepFiles(pipeline(tmp_path, "s3://lake/checkpoints"), "late")

    files.prepare()
    files.write(Status())

    assert files.checkpoint == "s3://lake/checkpoints/p/late"
    assert files.status() is None
    assert files.positions() == Positions()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    one = pipeline(tmp_path)
    assert not is_running(one)

    with pipeline_locked(one):
        assert is_running(one)
        with (
            pytest.raises(IllegalState, match=r"is already running \(process \d+, since 2"),
            pipeline_locked(one),
        ):
            raise AssertionError("it was let in")

    assert not is_running(one)
    with pipeline_locked(one):
        assert is_running(one)


def test_checkpoints_on_a_store_are_locked_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = pipeline(tmp_path, "s3://lake/checkpoints")

    with pipeline_locked(one):
        assert is_running(one)
        assert not is_running(pipeline(tmp_path, "s3://lake/others"))
    assert not is_running(one)
