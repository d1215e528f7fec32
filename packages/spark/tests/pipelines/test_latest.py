"""The latest of each key: what a definition may say, and that states are kept exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from packages.client.tests.archiving import Archiver
from packages.spark.tests.pipelines.deltas import rows_in
from packages.spark.tests.pipelines.places import Places
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import InvalidArgument, StepFailed
from penstock_spark.pipelines.definition import Pipeline, parse
from penstock_spark.pipelines.runner import run
from penstock_spark.pipelines.standing import QUERY, StepFiles
from penstock_spark.pipelines.steps.latest import LatestStep
from penstock_spark.tables import Table

STEP: dict[str, Any] = {
    "name": "states",
    "kind": "latest",
    "source": "changes",
    "key": "ccy",
    "deltas": True,
    "table": "table",
}
AS_OF = ("as_of", "ccy", "bid::string", "ask")
LAKE = {"name": "lake", "table": "lake"}


def defined(folder: Path = Path(), *, read: dict[str, Any] | None = None, **keys: Any) -> Pipeline:
    """A pipeline of the step with other keys, its source read with further ones."""
    step = {key: value for key, value in {**STEP, **keys}.items() if value is not None}
    changes = {"name": "changes", "channel": "changes", **(read or {})}
    return parse({"name": "p", "source": [changes, LAKE], "step": [step]}, folder=folder)


def test_a_definition_is_a_step() -> None:
    (step,) = defined(key=["a", "b"], as_of=7, archive="lake", replaces="full").steps

    assert isinstance(step, LatestStep)
    assert (step.keys, step.rules.replaces) == (("a", "b"), "full")
    assert (step.reads({}), step.writes()) == (("changes", "lake"), ("table table",))


def test_columns_that_are_chosen_are_read_with_those_that_are_needed() -> None:
    pipeline = defined(read={"columns": ["ask", "ccy"]})
    (step,) = pipeline.steps

    assert isinstance(step, LatestStep)
    assert step.options_of(pipeline.source("changes")) == {
        "includeNulls": "true",
        "columns": "ccy,event_id,ask,nulls",
    }
    assert step.options_of(pipeline.source("lake")) == {}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"key": None}, "key"),
        ({"key": ""}, "key is empty"),
        ({"key": []}, "key is empty"),
        ({"source": "chnges"}, "source is 'chnges', which is not a source: did you mean changes"),
        ({"source": "lake"}, "source is 'lake', which is not a stream; give as_of"),
        ({"read": {"bounded": True}}, "is not a stream; give as_of, or a channel"),
        ({"archive": "lake"}, "archive needs as_of"),
        ({"partial": True}, "partial needs as_of"),
        ({"as_of": 1, "archive": "lakes"}, "archive is 'lakes', .* did you mean lake"),
        ({"as_of": -1}, "as_of is -1; it must be the id of an event"),
        ({"deltas": False, "replaces": "x"}, "replaces applies to deltas"),
        ({"deleted": "(x"}, r"deleted is '\(x'; a \( is not closed"),
        ({"order": " "}, "order is ' '; it must be an SQL expression"),
        ({"table": None}, "channel, table: none is given; give at least one target of the rows"),
        (
            {"as_of": 1, "table": None},
            "channel, table: none is given; give at least one target of the states",
        ),
        ({"table": {"path": "t", "format": "parquet"}}, "states replace each other, and only De"),
        ({"read": {"channel": ["a", "b"]}}, "ids of several channels cannot be compared"),
        ({"read": {"channel": "fx/*"}}, "ids of several channels cannot be compared"),
    ],
)
def test_what_a_definition_says_wrong_is_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^step states: .*{said}"):
        defined(**keys)


def test_several_channels_have_an_order_or_a_key_that_tells_them_apart() -> None:
    several = {"channel": ["a", "b"]}

    assert defined(read=several, order="published").steps
    assert defined(read=several, key=["channel", "ccy"]).steps


@pytest.fixture
def changes(client: Session) -> Channel:
    return client.channels.create("changes", type="persistent")


def change(channel: Channel, *changed: dict[str, Any]) -> None:
    channel.publish_many([penstock.Event(properties=properties) for properties in changed])


def states_in(path: Path, *columns: str) -> dict[Any, tuple[Any, ...]]:
    return {row["ccy"]: tuple(row[name] for name in columns) for row in rows_in(path)}


def test_states_are_kept_in_a_table_and_a_merge_channel_over_several_runs(
    spark: SparkSession, url: str, client: Session, changes: Channel, tmp_path: Path
) -> None:
    live = client.channels.create("live", type="persistent", engine="merge", keys={"ccy": 1})
    pipeline = defined(tmp_path, channel="live", deleted="gone")
    table = tmp_path / "table"

    change(changes, {"ccy": 1, "bid": 1.0, "ask": 2.0}, {"ccy": 2, "bid": 7.0, "gone": False})
    change(changes, {"ccy": 1, "ask": 3.0}, {"ccy": 2, "bid": None})
    run(pipeline, url=url, once=True, spark=spark)
    assert states_in(table, "bid", "ask", "last_event_id") == {1: (1.0, 3.0, 2), 2: (None, None, 3)}
    assert live.state(1).properties["ask"] == 3.0

    change(changes, {"ccy": 2, "ask": 9.0}, {"ccy": 1, "gone": True}, {"bid": 5.0})
    run(pipeline, url=url, once=True, spark=spark)

    assert states_in(table, "bid", "ask", "deleted") == {
        1: (None, None, True),
        2: (None, 9.0, False),
    }
    assert live.info().events == 2
    change(changes, {"ccy": 3, "comment": "a new property"})
    with pytest.raises(
        StepFailed,
        match="source has new columns comment, but the step's stored state has the columns",
    ):
        run(pipeline, url=url, once=True, spark=spark)


def test_steps_with_state_go_on_after_a_kill_between_their_table_and_their_checkpoint(
    spark: SparkSession, url: str, changes: Channel, tmp_path: Path, places: Places
) -> None:
    """Spark ends a query with state if rows of a micro-batch are not computed, even if the table
    has them already."""
    each_day = {
        "name": "days",
        "kind": "roll-up",
        "source": "changes",
        "window": "1 day",
        "delay": "1 day",
        "aggregates": {"events": "count(*)"},
        "table": places.table("days"),
    }
    each_state = {**STEP, "table": places.table("states")}
    source = {"name": "changes", "channel": "changes", "starting": "earliest"}
    definition = {"name": "p", "source": [source], "step": [each_state, each_day]}
    pipeline = parse(definition, folder=tmp_path)
    change(changes, {"ccy": 1, "bid": 1.0}, {"ccy": 2, "bid": 7.0})
    run(pipeline, url=url, once=True, spark=spark)
    for step in ("states", "days"):
        commits = Path(StepFiles(pipeline, step).checkpoint) / QUERY / "commits"
        max(commits.glob("[0-9]*"), key=lambda path: int(path.name)).unlink()
    change(changes, {"ccy": 1, "bid": 2.0})

    report = run(pipeline, url=url, once=True, spark=spark)

    assert [(step_report.state, step_report.restarts) for step_report in report.steps] == [
        ("done", 0),
        ("done", 0),
    ]
    assert sorted(
        (row["ccy"], row["bid"], row["last_event_id"]) for row in places.rows("states")
    ) == [(1, 2.0, 2), (2, 7.0, 1)]


def test_states_of_a_merge_channel_are_followed(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    rates = client.channels.create("rates", type="persistent", engine="merge", keys={"ccy": 1})
    pipeline = defined(tmp_path, deltas=False, read={"channel": "rates"})
    euro = rates.register("EUR", bid=1.0, ask=2.0)
    rates.register("USD", bid=3.0, ask=4.0)
    run(pipeline, url=url, once=True, spark=spark)
    euro.update(ask=2.5)
    euro.update(bid=None)

    run(pipeline, url=url, once=True, spark=spark)

    expected = {name: rates.state(name) for name in ("EUR", "USD")}
    assert states_in(tmp_path / "table", "bid", "ask", "last_event_id") == {
        name: (state.properties["bid"], state.properties["ask"], state.event_id)
        for name, state in expected.items()
    }


def test_states_as_of_an_event_are_made_of_channel_and_archive_and_stored_once(
    spark: SparkSession, url: str, changes: Channel, tmp_path: Path
) -> None:
    change(changes, {"ccy": 1, "bid": 1.0, "ask": 2.0}, {"ccy": 2, "bid": 7.0})
    change(changes, {"ccy": 1, "bid": None}, {"ccy": 2, "bid": "closed"})
    every = spark.read.format("penstock").options(url=url, includeNulls="true").load("changes")
    # As an archive has it: paths of properties, so that another type is not told.
    paths = "CASE WHEN event_id = 2 THEN array('bid') END AS `$penstock_nulls`"
    lake = every.selectExpr("*", paths, "date(published) AS published_day").drop("nulls")
    Table.open(str(tmp_path / "lake"), "delta").append(lake, "test", 0)
    changes.purge(end=2)
    change(changes, {"ccy": 1, "ask": 3.0})

    run(defined(tmp_path, as_of=4, archive="lake"), url=url, spark=spark)
    done = run(defined(tmp_path, as_of=4, archive="lake"), url=url, spark=spark)
    run(defined(tmp_path, as_of=1, archive="lake"), url=url, spark=spark)

    assert "were in table table already" in done.steps[0].text
    result = [
        (*(row[name] for name in AS_OF), str(row["bid"])) for row in rows_in(tmp_path / "table")
    ]
    assert sorted(result, key=str) == [
        (1, 1, None, 2.0, "1.0"),
        (1, 2, None, None, "7.0"),
        (4, 1, None, 3.0, "None"),
        (4, 2, "closed", None, "None"),
    ]
    with pytest.raises(
        StepFailed, match="as_of is 5, but in channel changes the newest event is 4"
    ):
        run(defined(tmp_path, as_of=5), url=url, spark=spark)
    with pytest.raises(StepFailed, match="channel changes begins at event 3; name an archive"):
        run(defined(tmp_path, as_of=4), url=url, spark=spark)


def test_an_archive_without_a_null_tells_a_change_of_type_all_the_same(
    spark: SparkSession, url: str, client: Session, changes: Channel, tmp_path: Path
) -> None:
    change(changes, {"ccy": 1, "bid": 1.0, "ask": 2.0}, {"ccy": 2, "bid": 7.0})
    change(changes, {"ccy": 2, "bid": "closed"})
    Archiver(client, changes, tmp_path / "lake", format="delta").move(3)
    change(changes, {"ccy": 1, "ask": 3.0})

    run(defined(tmp_path, as_of=3, archive="lake"), url=url, spark=spark)

    assert states_in(tmp_path / "table", "bid", "bid::string", "ask") == {
        1: (1.0, None, 3.0),
        2: (None, "closed", None),
    }
    kept = set(rows_in(tmp_path / "table")[0])
    assert kept == {
        "ccy",
        "last_event_id",
        "last_published",
        "tag",
        "data",
        "as_of",
        "bid",
        "bid::string",
        "ask",
    }


def test_states_of_a_merge_channel_as_of_an_event_come_from_what_a_join_has_kept(
    spark: SparkSession, url: str, client: Session, tmp_path: Path
) -> None:
    rates = client.channels.create("rates", type="persistent", engine="merge", keys={"ccy": 1})
    client.channels.create("history", type="persistent").publish(properties={"ccy": "EUR"})
    client.joins.create("rates", "history")
    euro = rates.register("EUR", bid=1.0)
    as_of = euro.update(bid=2.0)
    euro.update(bid=3.0)
    kept = {"channel": "history", "options": {"includeOrigin": True}}
    keys = {"deltas": False, "as_of": as_of, "order": "origin.event_id"}

    run(defined(tmp_path, read=kept, **keys), url=url, spark=spark)

    (row,) = rows_in(tmp_path / "table")
    assert row["bid"] == rates.state("EUR", as_of=as_of, archive="history").properties["bid"] == 2.0
    with pytest.raises(StepFailed, match="merge channel rates has only the newest states"):
        run(defined(tmp_path, read={"channel": "rates"}, as_of=1), url=url, spark=spark)
