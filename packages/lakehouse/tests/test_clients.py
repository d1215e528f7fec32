"""Channels and queues as tables of pyiceberg, DuckDB and Polars, against what ``read`` returns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import penstock
from packages.core.tests.columns.strategies import PROPERTIES
from packages.lakehouse.tests.clients import (
    by_duckdb,
    by_polars,
    by_pyiceberg,
    catalog,
    connected_duckdb,
    table,
)
from tests.thorough import examples

pytestmark = [pytest.mark.spec("B1", "B3"), pytest.mark.slow]


def ids(rows: Any) -> list[int]:
    return sorted(
        rows["event_id"].to_list()
        if hasattr(rows, "to_series")
        else rows.column("event_id").to_pylist()
    )


def each_client(url: str, name: str, namespace: str = "channels") -> list[list[int]]:
    """The ids of a table's events, as every client has them."""
    return [ids(read(url, name, namespace)) for read in (by_pyiceberg, by_duckdb, by_polars)]


def test_a_channel_is_a_table_with_a_column_for_each_property(
    session: penstock.Session, url: str
) -> None:
    orders = session.channels.create("eu/orders")
    day = datetime(2026, 5, 4, 12, tzinfo=UTC)
    orders.publish(b"one", tag="new", properties={"sku": "a1", "price": 3, "at": day})
    orders.publish(b"two", properties={"sku": "b2", "price": 9.5, "lines": [{"n": 1}, {"n": 2}]})

    rows = by_pyiceberg(url, "eu/orders").sort_by("event_id")

    assert rows.column("data").to_pylist() == [b"one", b"two"]
    assert rows.column("tag").to_pylist() == ["new", None]
    assert rows.column("sku").to_pylist() == ["a1", "b2"]
    assert rows.column("price").to_pylist() == [3.0, 9.5]
    assert rows.column("price::int").to_pylist() == [3, None]
    assert rows.column("at").to_pylist() == [day, None]
    lines = by_duckdb(url, "eu/orders").sort_by("event_id").column("lines")
    assert lines.to_pylist() == [None, [{"n": 1}, {"n": 2}]]
    assert by_duckdb(url, "eu/orders").sort_by("event_id").column("price").to_pylist() == [3.0, 9.5]
    assert by_polars(url, "eu/orders").sort("event_id")["price"].to_list() == [3.0, 9.5]


@pytest.mark.spec("B2")
def test_an_acknowledged_event_is_in_the_next_query_and_a_removed_one_is_not(
    session: penstock.Session, url: str
) -> None:
    orders = session.channels.create("orders")
    duck = connected_duckdb(url)

    def counted() -> int:
        [(count,)] = duck.sql("SELECT count(*) FROM realm.channels.orders").fetchall()
        return int(count)

    for number in range(5):
        orders.publish(b"", properties={"n": number})
        assert counted() == number + 1
    orders.purge(start=1, end=2)
    assert counted() == 3
    assert each_client(url, "orders") == [[0, 3, 4]] * 3
    duck.close()


def test_reading_a_queue_as_a_table_removes_nothing(session: penstock.Session, url: str) -> None:
    jobs = session.queues.create("jobs")
    for number in range(4):
        jobs.push(b"", properties={"n": number})
    assert jobs.pop(timeout=1) is not None

    assert each_client(url, "jobs", "queues") == [[1, 2, 3]] * 3
    assert each_client(url, "jobs", "queues") == [[1, 2, 3]] * 3
    following = jobs.pop(timeout=1)
    assert following is not None
    assert following.event_id == 1


def test_a_merge_channel_shows_its_states(session: penstock.Session, url: str) -> None:
    prices = session.channels.create("prices", keys={"sku": 1}, engine="merge")
    for sku, price in (("a", 1), ("b", 2), ("a", 3)):
        prices.publish(b"", properties={"sku": sku, "price": price})
    assert sorted(by_pyiceberg(url, "prices").column("price").to_pylist()) == [2, 3]

    prices.publish(b"", properties={"sku": "b", "price": 5})
    assert sorted(by_duckdb(url, "prices").column("price").to_pylist()) == [3, 5]


@pytest.mark.parametrize("kind", ["simple", "reliable", "mixed", "persistent", "transient"])
def test_every_channel_type_is_a_table(session: penstock.Session, url: str, kind: Any) -> None:
    channel = session.channels.create("c", type=kind)
    channel.publish_many([penstock.Event(b"x", properties={"n": n}) for n in range(10)])
    stored = sorted(channel.read().column("event_id").to_pylist())

    assert each_client(url, "c") == [stored] * 3


def test_an_empty_channel_is_an_empty_table(session: penstock.Session, url: str) -> None:
    session.channels.create("none")

    assert each_client(url, "none") == [[], [], []]
    assert by_pyiceberg(url, "none").column_names[:4] == ["event_id", "published", "tag", "data"]


def test_filters_prune_nothing_that_matches(session: penstock.Session, url: str) -> None:
    channel = session.channels.create("c")
    values = [1.5, float("nan"), -3.0, float("inf"), 0.0]
    for number, value in enumerate(values):
        channel.publish(b"", properties={"v": value, "s": "x" * (number * 40), "n": number})
    duck = connected_duckdb(url)
    for condition, wanted in {
        "v > 100": [1, 3],  # NaN is the largest number of DuckDB
        "v < 0": [2],
        "s > 'xx'": [1, 2, 3, 4],
        "n = 3": [3],
        "v = 'nan'::DOUBLE": [1],
        "event_id >= 4": [4],
    }.items():
        rows = duck.sql(f"SELECT n FROM realm.channels.c WHERE {condition} ORDER BY n").fetchall()
        assert [n for (n,) in rows] == wanted, condition
    duck.close()
    everything = table(url, "c")
    assert everything.scan(row_filter="v > 100").to_arrow().column("n").to_pylist() == [3]
    assert everything.scan(row_filter="n = 2").to_arrow().column("v").to_pylist() == [-3.0]


@pytest.mark.spec("B4")
def test_a_column_gets_doubles_when_floats_come_after_integers(
    session: penstock.Session, url: str
) -> None:
    channel = session.channels.create("c")
    channel.publish(b"", properties={"price": 3})
    assert str(by_pyiceberg(url, "c").schema.field("price").type) == "int64"

    channel.publish(b"", properties={"price": 0.5})
    assert sorted(by_duckdb(url, "c").column("price").to_pylist()) == [0.5, 3.0]

    channel.publish(b"", properties={"price": 2**53 + 1})
    rows = by_pyiceberg(url, "c")
    assert "price" not in rows.column_names
    assert sorted(filter(None, rows.column("price::int").to_pylist())) == [3, 2**53 + 1]
    assert list(filter(None, rows.column("price::float").to_pylist())) == [0.5]


@pytest.mark.spec("B2")
def test_a_table_that_was_loaded_before_a_purge_can_still_be_read(
    session: penstock.Session, url: str
) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"x") for _ in range(10)])
    before = table(url, "orders")
    orders.purge()
    orders.publish(b"new")

    assert ids(before.scan().to_arrow()) == list(range(10))
    now = table(url, "orders")
    assert ids(now.scan().to_arrow()) == [10]
    first = now.metadata.snapshots[0].snapshot_id
    assert ids(now.scan(snapshot_id=first).to_arrow()) == list(range(10))


def test_names_are_listed_page_by_page(session: penstock.Session, url: str) -> None:
    names = ["a", "b/ü", "c d", "日"]
    for name in names:
        session.channels.create(name)
    session.queues.create("q")
    realm = catalog(url, **{"page-size": "3"})

    assert realm.list_namespaces() == [("channels",), ("queues",)]
    assert realm.list_tables("channels") == [("channels", name) for name in sorted(names)]
    assert realm.list_tables("queues") == [("queues", "q")]
    assert realm.table_exists(("channels", "b/ü"))
    assert not realm.table_exists(("channels", "q"))
    for name in names:
        assert by_pyiceberg(url, name).num_rows == 0


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(PROPERTIES, min_size=1, max_size=6), st.sets(st.integers(0, 5)))
@example([{"a": {"b": 1}, "a.b": 2}, {"A": 1}, {"tag": 1, "published_day": 2}], {1})
@example([{"a": 1}, {"a": 0.5}, {"a": 2**53 + 1}, {"a": [1]}, {"a": [0.5]}], set())
@pytest.mark.filterwarnings("ignore:.*integers are beyond:UserWarning")
def test_every_event_has_its_values_in_every_client(
    rows: list[dict[str, Any]], purged: set[int]
) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        url = realm.listen_http()
        channel = session.channels.create("c")
        for properties in rows:
            channel.publish(b"", properties=properties)
        for event_id in purged:
            channel.purge(start=event_id, end=event_id)
        stored = sorted(channel.read().column("event_id").to_pylist())

        first = by_pyiceberg(url, "c").sort_by("event_id")
        second = by_duckdb(url, "c").sort_by("event_id")

        assert ids(first) == ids(second) == ids(by_polars(url, "c")) == stored
        assert first.column_names == second.column_names
        for name in first.column_names:
            assert same(first.column(name), second.column(name)), name


def same(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether two columns have the same values.

    pyiceberg 0.12 reads a null list of structs as an empty list, and DuckDB a null struct as one
    whose fields are null.
    """
    return all(alike(a, b) for a, b in zip(one.to_pylist(), other.to_pylist(), strict=True))


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, dict) or isinstance(other, dict):
        names = {*(one or {}), *(other or {})}
        return all(alike((one or {}).get(name), (other or {}).get(name)) for name in names)
    if (one, other) in (([], None), (None, [])):
        return True
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float) and np.isnan(one):
        return bool(np.isnan(other))
    return bool(one == other)
