"""Tests for penstock_spark.pipelines.steps.redrive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from packages.spark.tests.pipelines.steps.contexts import StepContext
from packages.spark.tests.redriving.graves import buried, data_of
from penstock.client.sync.sync import Session
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidArgument, NameDoesNotExist
from penstock_spark.pipelines import Pipeline, Source, parse
from penstock_spark.pipelines.step import WorkOutcome
from penstock_spark.pipelines.steps.redrive import RedriveStep


def step(**keys: Any) -> RedriveStep:
    keys_of_step = {"name": "fix-it", "kind": "redrive", "record": "record", **keys}
    parsed = parse({"name": "p", "step": [keys_of_step]}).steps[0]
    assert isinstance(parsed, RedriveStep)
    return parsed


def run(step: RedriveStep, context: StepContext) -> WorkOutcome:
    work = step.plan(context)
    return work()


def flights() -> list[Event]:
    return [
        Event(b"%d" % n, properties={"number": n, "dest": dest, "when": {"hour": n}})
        for n, dest in enumerate(("SEA", "sea", "LAX", ""))
    ]


def test_without_a_transformation_no_spark_is_needed(
    client: Session, url: str, tmp_path: Path
) -> None:
    buried(client, flights())
    context = StepContext(url, tmp_path, "fix-it", once=True)
    done = run(step(**{"from": "dead"}), context)

    assert done.text == "4 dead events of dead were redriven, 0 dropped, 0 kept"
    assert done.facts["published"] == {"orders": 4}
    assert done.facts["left"] == 0
    assert len(data_of(client, "record")) == 4
    assert (context.reports[-1].rows, context.reports[-1].total) == (4, 4)
    assert context.reports[-1].text == "4 redriven, 0 dropped"


@pytest.mark.slow
def test_a_dry_run_says_what_would_be(client: Session, url: str, tmp_path: Path) -> None:
    buried(client, flights())
    definition = step(**{"from": "dead"}, dry_run=True, selector="number < 3")
    done = run(definition, StepContext(url, tmp_path, "fix-it"))

    assert done.text == "3 dead events of dead would be redriven, 0 dropped, 0 kept"
    assert done.facts["left"] == 4
    assert "record" not in client.channels.list()


def test_it_ends_when_it_is_stopped(client: Session, url: str, tmp_path: Path) -> None:
    buried(client, flights())
    context = StepContext(url, tmp_path, "fix-it")
    context.stopping.set()
    done = run(step(**{"from": "dead"}), context)

    assert (done.rows, done.facts["is_complete"]) == (0, False)


def test_what_is_missing_is_named(client: Session, url: str, tmp_path: Path) -> None:
    client.channels.create("dead", type="persistent")

    with pytest.raises(NameDoesNotExist, match="no channel or queue grave"):
        run(step(**{"from": "grave"}, once=True), StepContext(url, tmp_path, "fix-it"))
    with pytest.raises(NameDoesNotExist, match="nowhere"):
        run(step(**{"from": "dead"}, channel="nowhere"), StepContext(url, tmp_path, "fix-it"))


def test_sql_changes_events_and_chooses_what_becomes_of_them(
    client: Session, url: str, tmp_path: Path, spark: SparkSession
) -> None:
    buried(client, flights())
    sql = """
        WITH named AS (SELECT *, upper(dest) AS fixed FROM dead)  -- as it should have been
        SELECT * EXCEPT (dest, fixed), fixed AS dest,
               CASE WHEN fixed = '' THEN 'dropped' END AS outcome
        FROM named WHERE number <> 2 AND origin.cause = 'evicted';
    """
    definition = step(**{"from": "dead"}, sql=sql, once=True)
    done = run(definition, StepContext(url, tmp_path, "fix-it", spark=spark))

    assert done.text == "2 dead events of dead were redriven, 1 dropped, 1 kept"
    back = [event.properties for event in client.channels.get("orders").browse(start=5)]
    assert back == [
        {"number": 0, "dest": "SEA", "when": {"hour": 0}},
        {"number": 1, "dest": "SEA", "when": {"hour": 1}},
    ]
    assert data_of(client, "dead") == [b"2"]


def upper(dead: DataFrame, spark: SparkSession) -> DataFrame:
    """The function of the test below."""
    cities = spark.createDataFrame([("SEA", "Seattle")], ["code", "city"])
    joined = dead.join(cities, f.upper(dead.dest) == cities.code)
    return joined.drop("dest", "code")


def test_python_does_too(client: Session, url: str, tmp_path: Path, spark: SparkSession) -> None:
    buried(client, flights())
    definition = RedriveStep(
        name="fix-it",
        store="dead",
        python=upper,
        record="record",
        redrive_of=True,
        unmatched="dropped",
        once=True,
        max_events=3,
    )
    done = run(definition, StepContext(url, tmp_path, "fix-it", spark=spark))

    assert done.text == "2 dead events of dead were redriven, 2 dropped, 0 kept"
    back = [event.properties for event in client.channels.get("orders").browse(start=5)]
    assert [item["city"] for item in back] == ["Seattle", "Seattle"]
    assert [item["redrive_of"]["event_id"] for item in back] == [0, 1]


def test_sql_that_spark_does_not_take_is_named(
    client: Session, url: str, tmp_path: Path, spark: SparkSession
) -> None:
    buried(client, flights())
    definition = step(**{"from": "dead"}, sql="SELECT\n nothing FROM dead", once=True)

    with pytest.raises(InvalidArgument, match=r"sql: .*nothing.*line 2"):
        run(definition, StepContext(url, tmp_path, "fix-it", spark=spark))
    assert len(data_of(client, "dead")) == 4


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({}, "from is missing"),
        ({"from": "dead", "record": ""}, 'record is missing; .* such as "record/dead"'),
        ({"from": "dead", "record": "dead"}, "record is 'dead', which stores the dead events"),
        ({"from": "dead", "channel": "dead"}, "channel is 'dead', which stores the dead events"),
        ({"from": "dead", "sql": "x", "python": "m:f"}, "sql or python: both are given"),
        ({"from": "dead", "sql": "SELECT 1"}, "sql does not read dead"),
        ({"from": "dead", "python": "fix"}, "python is 'fix'"),
        ({"from": "dead", "selector": "a ="}, "selector line 1"),
        ({"from": "dead", "max_events": 0}, "max_events is 0"),
        (
            {"from": "dead", "unmatched": "lost"},
            "unmatched must be 'dropped' or 'kept', not 'lost'",
        ),
        ({"from": "dead", "audit": "x"}, "unknown key 'audit'"),
    ],
)
def test_wrong_keys_are_named_with_what_is_right(keys: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        step(**keys)


def test_only_tables_are_read_beside_the_dead_events() -> None:
    with pytest.raises(
        InvalidArgument, match="flights is a stream; in addition to the dead events"
    ):
        Pipeline(
            name="p",
            sources=(Source(name="flights", channel="flights"),),
            steps=(
                RedriveStep(
                    name="fix",
                    store="dead",
                    record="record",
                    sql="SELECT dead.* FROM dead JOIN flights USING (number)",
                ),
            ),
        )


def test_what_it_reads_and_writes_is_told() -> None:
    definition = step(**{"from": "dead"}, sql="SELECT * FROM dead JOIN airports USING (dest)")
    airports = Source(name="airports", table="airports", format="csv")

    assert definition.reads({"airports": airports}) == ("channel dead", "airports")
    assert definition.writes() == ("the origin of each event", "channel record")
