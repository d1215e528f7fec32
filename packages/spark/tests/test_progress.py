"""The lag a query's progress shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import DoubleType, StructType

import penstock
from penstock.client.sync.sync import Session
from penstock_spark.reading.progress import Lag, lag, later_columns
from penstock_spark.source import PenstockSource


def source(end: dict[str, int], newest: dict[str, int], ms: dict[str, int]) -> dict[str, Any]:
    def offset(positions: dict[str, int], **more: Any) -> str:
        channels = {name: {"e": "r/1", "n": n} for name, n in positions.items()}
        return json.dumps({"c": channels, "v": 1, **more})

    behind = {name: {"events": 99, "ms": age} for name, age in ms.items()}
    return {"endOffset": offset(end), "latestOffset": offset(newest, lag=behind)}


def test_the_lag_is_from_the_end_of_the_micro_batch_to_the_newest_event() -> None:
    progress = {"sources": [source({"a": 5, "b": 7}, {"a": 12, "b": 7}, {"a": 340, "b": 20})]}

    assert lag(progress) == {"a": Lag(7, 340), "b": Lag(0, 0)}


def test_of_two_sources_of_one_channel_the_later_one_counts() -> None:
    sources = [source({"a": 5}, {"a": 6}, {"a": 3}), source({"a": 1}, {"a": 6}, {"a": 40})]

    assert lag({"sources": sources}) == {"a": Lag(5, 40)}


def test_other_sources_and_no_progress_have_no_lag() -> None:
    others = [
        {"endOffset": "5", "latestOffset": None},
        {"endOffset": "{}", "latestOffset": "{]"},
        {"endOffset": '{"orders":{"0":5}}', "latestOffset": '{"orders":{"0":9}}'},
    ]

    assert lag({"sources": others}) == {}
    assert lag(None) == {}


@pytest.mark.slow
def test_a_source_reports_how_far_behind_it_is(url: str, client: Session) -> None:
    orders = client.channels.create("orders")
    orders.publish_many([penstock.Event(b"x")] * 10)
    client.channels.create("quiet")
    data_source = PenstockSource(
        {"url": url, "channel": "orders,quiet", "startingOffsets": "earliest"}
    )
    reader = data_source.streamReader(data_source.schema())

    end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    newest = reader.reportLatestOffset()

    behind = lag({"sources": [{"endOffset": json.dumps(end), "latestOffset": json.dumps(newest)}]})
    assert (behind["orders"].events, behind["quiet"]) == (6, Lag(0, 0))
    assert newest["c"]["orders"]["n"] == 10
    assert 0 <= behind["orders"].ms < 60_000
    end = reader.latestOffset(end, ReadMaxRows(100))
    assert reader.reportLatestOffset()["lag"]["orders"] == {"events": 0, "ms": 0}


@pytest.mark.slow
def test_properties_that_a_running_query_leaves_out_are_said(url: str, client: Session) -> None:
    orders = client.channels.create("orders")
    orders.publish(properties={"price": 1})
    data_source = PenstockSource({"url": url, "channel": "orders", "startingOffsets": "earliest"})
    reader = data_source.streamReader(data_source.schema())

    def micro_batch(start: dict[str, Any]) -> dict[str, Any]:
        end = reader.latestOffset(start, ReadMaxRows(10))
        reader.partitions(start, end)
        return end

    def later() -> dict[str, list[str]]:
        newest = json.dumps(reader.reportLatestOffset())
        return later_columns({"sources": [{"endOffset": "{}", "latestOffset": newest}]})

    end = micro_batch(reader.initialOffset())
    assert later() == {}
    orders.publish(properties={"price": "two", "sku": "a"})
    end = micro_batch(end)
    assert later() == {"orders": ["price::string", "sku"]}
    orders.publish(properties={"price": 3})
    micro_batch(end)
    assert later() == {"orders": ["price::string", "sku"]}
    assert later_columns(None) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ({}, {"orders": ["price::float", "d.b"]}),
        ({"columns": "price,event_id"}, {"orders": ["price::float"]}),
        ({"columns": "d.a"}, {}),
    ],
)
def test_what_is_published_between_load_and_the_first_micro_batch_is_told(
    url: str, client: Session, choice: dict[str, str], later: dict[str, list[str]]
) -> None:
    orders = client.channels.create("orders")
    orders.publish(properties={"price": 1, "d": {"a": 1}})
    options = {"url": url, "channel": "orders", "startingOffsets": "earliest", **choice}
    data_source = PenstockSource(options)
    reader = data_source.streamReader(data_source.schema())
    orders.publish(properties={"price": 9.5, "d": {"b": 2}})

    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, ReadMaxRows(10)))

    newest = json.dumps(reader.reportLatestOffset())
    assert later_columns({"sources": [{"endOffset": "{}", "latestOffset": newest}]}) == later


@pytest.mark.slow
def test_what_a_schema_of_its_own_leaves_out_from_the_start_is_not_told(
    url: str, client: Session
) -> None:
    orders = client.channels.create("orders")
    orders.publish(properties={"price": 1, "sku": "a"})
    options = {"url": url, "channel": "orders", "startingOffsets": "earliest"}
    data_source = PenstockSource(options)
    reader = data_source.streamReader(StructType().add("price", DoubleType()))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    reader.partitions(start, end)
    assert "later" not in reader.reportLatestOffset()

    orders.publish(properties={"size": 2})
    reader.partitions(end, reader.latestOffset(end, ReadMaxRows(10)))

    assert reader.reportLatestOffset()["later"] == {"orders": ["size"]}


@pytest.mark.slow
@pytest.mark.spec("E10")
@pytest.mark.parametrize(
    ("first", "then", "later"), [(3, 9.5, {"orders": ["price::float"]}), (9.5, 3, {})]
)
def test_a_query_of_integers_tells_of_floats_and_one_of_floats_shows_integers(
    url: str, client: Session, first: float, then: float, later: dict[str, list[str]]
) -> None:
    orders = client.channels.create("orders")
    orders.publish(properties={"price": first})
    data_source = PenstockSource({"url": url, "channel": "orders", "startingOffsets": "earliest"})
    reader = data_source.streamReader(data_source.schema())
    start = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    reader.partitions(reader.initialOffset(), start)
    orders.publish(properties={"price": then})

    end = reader.latestOffset(start, ReadMaxRows(10))
    batches = [b for part in reader.partitions(start, end) for b in reader.read(part)]
    newest = json.dumps(reader.reportLatestOffset())

    assert later_columns({"sources": [{"endOffset": "{}", "latestOffset": newest}]}) == later
    [row] = [row for batch in batches for row in batch.to_pylist()]
    assert row["price"] == (None if later else 3.0)
    assert data_source.schema()["price"].dataType == DoubleType()


@pytest.mark.slow
@pytest.mark.spec("E10")
def test_a_property_with_an_integer_beyond_doubles_has_typed_columns(
    url: str, client: Session
) -> None:
    orders = client.channels.create("orders")
    orders.publish_many([penstock.Event(properties={"n": n, "m": n}) for n in (1.5, 1e300, 7)])
    data_source = PenstockSource({"url": url, "channel": "orders"})
    assert data_source.schema().names[4:] == ["n", "m"], "floats beyond 2**53 are exact"

    orders.publish(properties={"n": (1 << 53) + 1})

    assert data_source.schema().names[4:] == ["n::float", "n::int", "m"]
    reader = data_source.reader(data_source.schema())
    rows = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    assert [row["n::int"] for row in rows] == [None, None, 7, (1 << 53) + 1]
    assert [row["m"] for row in rows] == [1.5, 1e300, 7.0, None]
