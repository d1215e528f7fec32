"""Roll-ups: what a definition may say, and rows that come once, whatever happens in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from packages.spark.tests.pipelines.deltas import rows_in
from packages.spark.tests.pipelines.places import Places
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, StepFailed
from penstock_spark.pipelines.definition import Pipeline, parse
from penstock_spark.pipelines.runner import run
from penstock_spark.pipelines.running import late_rows
from penstock_spark.pipelines.steps.rollup import RollUpStep
from penstock_spark.pipelines.windows import close_windows

MIDNIGHT = datetime(2013, 1, 1, tzinfo=UTC)
STEP: dict[str, Any] = {
    "name": "sums",
    "kind": "roll-up",
    "source": "flights",
    "time": "scheduled",
    "window": "1 hour",
    "delay": "10 minutes",
    "group_by": ["origin"],
    "aggregates": {"flights": "count(*)", "first": "min_by(flight, event_id)"},
    "channel": "sums",
}


def defined(folder: Path = Path(), *, read: dict[str, Any] | None = None, **keys: Any) -> Pipeline:
    """A pipeline of the step with other keys, its source read with further ones."""
    step = {key: value for key, value in {**STEP, **keys}.items() if value is not None}
    flights = {"name": "flights", "channel": "flights", "starting": "earliest", **(read or {})}
    return parse({"name": "p", "source": [flights], "step": [step]}, folder=folder)


def test_a_definition_is_a_step() -> None:
    (step,) = defined(slide="30 minutes", group_by={"route": "origin || dest"}).steps

    assert isinstance(step, RollUpStep)
    assert (step.reads({}), step.writes()) == (("flights",), ("channel sums",))
    assert step.groups == {"route": "origin || dest"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"window": None}, "window or gap: none is given"),
        ({"gap": "1 hour"}, "window or gap: both are given"),
        ({"window": "1 month"}, "window is '1 month'; it must be a time such as \"10 minutes\""),
        ({"window": "0 hours"}, "window is '0 hours'; it must be a time"),
        (
            {"slide": "2 hours"},
            "slide is '2 hours'; it applies to windows and may be at most their length",
        ),
        ({"delay": "soon"}, "delay is 'soon'; it must be a time"),
        ({"delay": None}, "delay is missing"),
        ({"source": "flihgts"}, "source is 'flihgts', which is not a source: did you mean flights"),
        ({"aggregates": {}}, "aggregates is empty"),
        ({"aggregates": {"n": "count(*"}}, r"aggregates.n is 'count\(\*'; a \( is not closed"),
        ({"aggregates": {"n": "dep_delay"}}, "not an aggregate: for example sum"),
        ({"aggregates": {"n": "summ(x)"}}, "not an aggregate: did you mean sum"),
        ({"aggregates": {"n": "first(x)"}}, r"min_by\(value, event_id\) is the first by id"),
        ({"aggregates": {"n": "sum(x) - last(x)"}}, r"max_by\(value, event_id\) is the last"),
        ({"aggregates": {"n": "count(DISTINCT x)"}}, "approx_count_distinct"),
        ({"aggregates": {"n": "sum(x) over (order by y)"}}, "a window function"),
        ({"aggregates": {"n": "sum(x * rand())"}}, "must produce the same rows"),
        ({"aggregates": {"window_end": "count(*)"}}, "'window_end', which is a column of the"),
        ({"aggregates": {"Origin": "count(*)"}}, "'Origin', which is a column of the result"),
        ({"aggregates": {"event_id": "count(*)"}}, "'event_id', which is a column of the result"),
        ({"where": "sum(x) > 1"}, "where is .*; sum summarises many events"),
        ({"window": None, "gap": "1 hour", "group_by": None}, "gap needs group_by"),
        ({"channel": None}, "channel, table: none is given"),
        ({"output": "update", "at_end": "close"}, "at_end = 'close' needs output = \"append\""),
        ({"output": "update", "window": None, "gap": "1 hour"}, "gap needs output"),
        ({"output": "update", "group_by": ["key"]}, "'key', which is a column of the result"),
        (
            {"output": "update", "table": {"path": "t", "format": "parquet"}},
            "table.format is 'parquet'; running values replace each other",
        ),
        (
            {"output": "update", "channel": {"name": "c", "options": {"txnAppId": "x"}}},
            "the step sets these itself",
        ),
        ({"read": {"bounded": True}}, "is not a stream; windows close only in streams"),
        (
            {"read": {"watermark": {"column": "published", "delay": "1 hour"}}},
            "has a watermark; keep only one",
        ),
        (
            {
                "read": {"watermark": {"column": "published", "delay": "1 hour"}},
                "delay": None,
            },
            "time is 'scheduled', but the watermark of source flights is of 'published'",
        ),
    ],
)
def test_what_a_definition_says_wrong_is_named(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^step sums: .*{said}"):
        defined(**keys)


def test_late_rows_are_summed_up_over_the_operators_of_a_query() -> None:
    operators = [{"numRowsDroppedByWatermark": 2}, {}, {"numRowsDroppedByWatermark": 1}]

    assert late_rows({"stateOperators": operators}) == 3
    assert late_rows({}) == 0


class Flights:
    """A channel of flights, one every ten minutes, from two airports in turn."""

    def __init__(self, client: Session) -> None:
        self.channel = client.channels.create("flights", type="persistent")
        self.sums = client.channels.create("sums", type="persistent")
        self._count = 0

    def depart(self, count: int) -> None:
        first, self._count = self._count, self._count + count
        self.channel.publish_many([self._flight(n) for n in range(first, self._count)])

    def _flight(self, n: int) -> penstock.Event:
        time = MIDNIGHT + timedelta(minutes=10 * n)
        origin = ("EWR", "JFK")[n % 2]
        return penstock.Event(properties={"scheduled": time, "origin": origin, "flight": n})


@pytest.fixture
def flights(client: Session) -> Flights:
    return Flights(client)


def sums_of(channel: Channel) -> list[tuple[int, str, int, int]]:
    """Hour, origin, flights and first flight of each row, in the order of windows."""
    rows = channel.read().to_pylist()
    result = [(int((row["window_start"] - MIDNIGHT) / timedelta(hours=1)), row) for row in rows]
    return sorted((hour, row["origin"], row["flights"], row["first"]) for hour, row in result)


def hours(first: int, end: int) -> list[tuple[int, str, int, int]]:
    """The rows of full hours."""
    return [
        (hour, origin, 3, 6 * hour + place)
        for hour in range(first, end)
        for place, origin in enumerate(("EWR", "JFK"))
    ]


def test_windows_come_once_when_they_close_over_several_runs(
    spark: SparkSession, url: str, flights: Flights, tmp_path: Path
) -> None:
    pipeline = defined(tmp_path, table="table", read={"max_events": 10})

    flights.depart(17)
    run(pipeline, url=url, once=True, spark=spark)
    # Flight 16 left at 2:40; with ten minutes to spare the hours before 2 are over.
    assert sums_of(flights.sums) == hours(0, 2)
    flights.depart(13)
    run(pipeline, url=url, once=True, spark=spark)
    assert sums_of(flights.sums) == hours(0, 4)
    run(pipeline, url=url, once=True, spark=spark)

    assert sums_of(flights.sums) == hours(0, 4)
    table = rows_in(tmp_path / "table")
    assert sorted(row["flights"] for row in table) == [3] * 8


def test_at_the_end_open_windows_are_closed_once_and_later_flights_come_late(
    spark: SparkSession, url: str, flights: Flights, tmp_path: Path
) -> None:
    pipeline = defined(tmp_path, at_end="close")

    flights.depart(28)
    run(pipeline, url=url, once=True, spark=spark)
    closed = [*hours(0, 4), (4, "EWR", 2, 24), (4, "JFK", 2, 25)]
    assert sums_of(flights.sums) == closed

    flights.depart(8)  # two more in the hour that was closed, six in the next one
    (report,) = run(defined(tmp_path), url=url, once=True, spark=spark).steps
    assert report.rows_late == 2
    assert sums_of(flights.sums) == closed
    # The run ends here: what it has planned is done by the next one, and only then what is new.
    query = str(tmp_path / "checkpoints" / "p" / "sums" / "query")
    assert close_windows(spark, query)
    with pytest.raises(IllegalState, match="has not ended"):
        close_windows(spark, query)
    flights.depart(1)
    run(pipeline, url=url, once=True, spark=spark)

    assert sums_of(flights.sums) == [*closed, *hours(5, 6), (6, "EWR", 1, 36)]


def test_sessions_end_after_a_gap(
    spark: SparkSession, url: str, flights: Flights, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"window": None, "gap": "25 minutes"}
    pipeline = defined(tmp_path, at_end="close", **keys, where="flight NOT IN (1, 4)")
    flights.depart(7)

    run(pipeline, url=url, once=True, spark=spark)

    result = flights.sums.read().select(["origin", "flights", "first"]).sort_by("first").to_pylist()
    assert [tuple(row.values()) for row in result] == [("EWR", 2, 0), ("JFK", 2, 3), ("EWR", 1, 6)]


def test_running_values_are_the_state_of_a_merge_channel_and_rows_of_a_table(
    spark: SparkSession,
    url: str,
    client: Session,
    flights: Flights,
    tmp_path: Path,
    places: Places,
) -> None:
    live = client.channels.create("live", type="persistent", engine="merge", keys={"key": 1})
    table = {"path": places.table("sums"), "compact_every": 2}
    pipeline = defined(
        tmp_path, output="update", channel="live", table=table, read={"max_events": 10}
    )
    for count in (20, 10):
        flights.depart(count)
        run(pipeline, url=url, once=True, spark=spark)

    expected = [3, 3] * 5
    states = live.read().sort_by("key").to_pylist()
    assert [row["flights"] for row in states] == expected
    assert states[0]["key"] == "2013-01-01T00:00:00.000Z/EWR"
    assert live.state("2013-01-01T04:00:00.000Z/JFK").properties["flights"] == 3
    table_rows = sorted(places.rows("sums"), key=lambda row: str(row["key"]))
    assert [row["flights"] for row in table_rows] == expected
    assert [row["key"] for row in table_rows] == [row["key"] for row in states]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"aggregates": {"n": "sum(dep)"}}, r"aggregates.n is 'sum\(dep\)'; Spark says: .*dep"),
        ({"time": "flight"}, "time is 'flight', of type long; it must be a TIMESTAMP"),
        ({"group_by": ["orign"]}, "group_by.orign is '`orign`'; Spark says: .*orign"),
    ],
)
def test_what_only_spark_can_tell_names_the_step_and_the_key(
    spark: SparkSession,
    url: str,
    flights: Flights,
    tmp_path: Path,
    keys: dict[str, Any],
    said: str,
) -> None:
    flights.depart(2)

    with pytest.raises(StepFailed, match=f"step sums: {said}"):
        run(defined(tmp_path, **keys), url=url, once=True, spark=spark)
