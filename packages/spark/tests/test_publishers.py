"""The headers have the publisher of an event, in every kind of read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock
from packages.spark.tests.reading import Row, rows_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.publishers import with_publishers
from penstock_core.ids.ids import Span
from penstock_spark.source import PenstockSource

KIND = pa.struct([("type", pa.string()), ("publisher", pa.string()), ("host", pa.string())])


def filled(rows: list[dict[str, Any] | None], *publishers: Any) -> list[Any]:
    ids = pa.array(range(10, 10 + len(rows)), pa.int64())
    result = with_publishers(pa.array(rows, KIND), ids, publishers)
    result.validate(full=True)
    return [item and tuple(item.values()) for item in result.to_pylist()]


def test_the_realm_knows_better_than_the_event_says() -> None:
    headers = {"type": "t", "publisher": "liar", "host": None}
    rows = [headers, None, headers, None]

    assert filled(rows) == [("t", "liar", None), None, ("t", "liar", None), None]
    assert filled(rows, ("ann@one", (Span(10, 11), Span(11, 12))), ("@two", (Span(12, 13),))) == [
        ("t", "ann", "one"),
        (None, "ann", "one"),
        ("t", "liar", "two"),
        None,
    ]
    assert filled(rows, ("ann@one", ())) == [
        ("t", "ann", "one"),
        (None, "ann", "one"),
        ("t", "ann", "one"),
        (None, "ann", "one"),
    ]


def test_headers_that_were_not_asked_for_whole_stay() -> None:
    short = pa.array([{"type": "t"}])

    assert with_publishers(short, pa.array([1]), (("ann@one", ()),)) is short


@pytest.mark.slow
def test_files_and_tail_say_who_published(
    url: str, client: Session, sealed: Callable[[Channel, int], None]
) -> None:
    orders = client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )
    orders.publish_many([penstock.Event(b"x")] * 1_500)
    sealed(orders, 1)
    (publisher_name,) = {
        (event.headers.get("publisher"), event.headers["host"])
        for event in orders.browse(start=1_499)
    }

    for access in ("auto", "remote"):
        rows = read(url, includeHeaders="true", access=access, columns="event_id,headers")
        assert len(rows) == 1_500
        assert {(row["headers"]["publisher"], row["headers"]["host"]) for row in rows} == {
            publisher_name
        }


@pytest.mark.slow
def test_the_origin_of_an_event_is_a_column(url: str, client: Session) -> None:
    client.channels.create("dead", type="persistent")
    orders = client.channels.create("orders", type="persistent", ttl=1, dead_event_store="dead")
    orders.publish(b"late")
    dead = client.channels.get("dead")
    while not dead.info().events:
        pass  # each look is a request

    (row,) = read(url, channel="dead", includeOrigin="true")

    assert (row["origin"]["store"], row["origin"]["event_id"]) == ("orders", 0)
    assert (row["origin"]["cause"], row["data"]) == ("expired", b"late")
    orders.edit(ttl=0)
    orders.publish(b"here")
    assert read(url, includeOrigin="true")[0]["origin"] is None


def read(url: str, channel: str = "orders", **options: str) -> list[Row]:
    data_source = PenstockSource({"url": url, "channel": channel, **options})
    reader = data_source.reader(data_source.schema())
    return rows_of(reader, reader.partitions())
