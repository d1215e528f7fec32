"""States that Spark makes of deltas are those the realm makes of them, on random histories."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

import penstock
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_spark.pipelines.states import StateRules, states

KEYS = (1, 2, 3, 40)
NAMES = ("bid", "ask", "name", "lines.1")
CHANGES = StateRules(key=("id",), deltas=True, replaces="is_full")


class History:
    """A history of changes on a merge channel, with a join that keeps each state, and as plain
    events."""

    def __init__(self, client: Session, seed: int) -> None:
        self._random = random.Random(seed)
        create = client.channels.create
        self.rates = create("rates", type="persistent", engine="merge", keys={"id": 1})
        self.archive = create("history", type="persistent")
        self.changes = create("changes", type="persistent")
        client.joins.create("rates", "history")

    def go_on(self, count: int) -> None:
        for _ in range(count):
            is_full = self._random.random() < 0.15
            event = penstock.Event(
                self._random.choice((b"", b"", b"x", b"yy")),
                tag=self._random.choice((None, None, "t", "u")),
                properties={"id": self._random.choice(KEYS), **self._properties()},
            )
            marked = {**event.properties, "is_full": True} if is_full else event.properties
            self.changes.publish(event.data, tag=event.tag, properties=marked)
            one = penstock.Event(
                event.data, tag=event.tag, properties=event.properties, is_delta=not is_full
            )
            self.rates.publish_many([one])

    def _properties(self) -> dict[str, Any]:
        names = [name for name in NAMES if self._random.random() < 0.4]
        return {name: self._random.choice(self._values()) for name in names}

    def _values(self) -> tuple[Any, ...]:
        number = self._random.randrange(100)
        return (None, number, number / 4, f"v{number}", [number, "mixed"])

    def as_of(self, event_id: int) -> dict[int, dict[str, Any]]:
        """Return the states of the realm."""
        states_by_key = {}
        for key in KEYS:
            try:
                state = self.rates.state(key, as_of=event_id, archive="history")
            except InvalidArgument:
                continue  # there was nothing of it yet
            states_by_key[key] = shown(state.properties) | {"last_event_id": state.event_id}
        return states_by_key


def shown(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties as far as columns and Spark's one null can show them."""
    shown = {name: value for name, value in properties.items() if name in NAMES}
    return {
        name: value
        for name, value in shown.items()
        if value is not None and not isinstance(value, list)
    }


def computed_states(rows: list[Row]) -> dict[int, dict[str, Any]]:
    """Return the states that Spark computed, in the same form."""
    states_by_key = {}
    for row in rows:
        columns = row.asDict(recursive=True)
        properties: dict[str, Any] = {}
        for column, value in columns.items():
            name = column.partition("::")[0]
            if name in NAMES and value is not None:
                assert name not in properties, f"{name} has two values"
                properties[name] = value
        states_by_key[columns["id"]] = properties | {"last_event_id": columns["last_event_id"]}
    return states_by_key


def read(spark: SparkSession, url: str, channel: str, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(url=url, channel=channel, **options).load()


@pytest.mark.parametrize("seed", [4711])
def test_merged_by_spark_is_merged_by_the_realm(
    spark: SparkSession, url: str, client: Session, seed: int
) -> None:
    history = History(client, seed)
    history.go_on(120)
    changes = read(spark, url, "changes", includeNulls="true", minPartitions=3).persist()

    for event_id in (9, 60, 119):
        of_deltas = states(changes.where(f"event_id <= {event_id}"), CHANGES).collect()

        assert computed_states(of_deltas) == history.as_of(event_id)
        for row in of_deltas:
            event = next(iter(history.archive.browse(start=row.last_event_id)))
            assert (row.tag, bytes(row.data)) == (event.tag, event.data)
    changes.unpersist()


def test_states_of_a_merge_channel_are_whole(
    spark: SparkSession, url: str, client: Session
) -> None:
    history = History(client, 5)
    history.go_on(80)

    result = states(read(spark, url, "rates"), StateRules(key=("id",)))

    assert computed_states(result.collect()) == history.as_of(79)


def test_a_key_that_was_deleted_begins_anew(spark: SparkSession) -> None:
    events = spark.createDataFrame(
        [
            (0, "a", 1, 1, None, False),
            (1, "b", 1, None, None, False),
            (2, "a", None, None, None, True),
            (3, "b", None, 7, ["x"], False),
            (4, "b", None, None, None, None),
            (5, "c", 1, 1, None, True),
            (6, "c", None, 2, None, False),
        ],
        "event_id bigint, key string, x int, y int, nulls array<string>, gone boolean",
    )
    rules = StateRules(key=("key",), deltas=True, deleted="gone")

    result = states(events, rules).drop("gone").orderBy("key").collect()

    assert [row.asDict() for row in result] == [
        {"key": "a", "last_event_id": 2, "x": None, "y": None, "deleted": True},
        {"key": "b", "last_event_id": 4, "x": None, "y": 7, "deleted": False},
        {"key": "c", "last_event_id": 6, "x": None, "y": 2, "deleted": False},
    ]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (StateRules(key=("kex",)), "key is 'kex', which is not a column: did you mean key?"),
        (StateRules(key=("key",), order="event_ix"), "order is 'event_ix'; Spark says: .*event_ix"),
        (
            StateRules(key=("key",), deleted="x"),
            "deleted is 'x', a value of type long; it must be a condition",
        ),
    ],
)
def test_rules_that_do_not_fit_the_columns_are_named(
    spark: SparkSession, rules: StateRules, said: str
) -> None:
    events = spark.createDataFrame([], "event_id bigint, key string, x int")

    with pytest.raises(InvalidArgument, match=said):
        states(events, rules)
