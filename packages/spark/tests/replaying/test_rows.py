"""Tests for penstock_spark.replaying.rows."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from packages.spark.tests.replaying.histories import events
from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.events.event import Event
from penstock_core.columns.files.archives import ArchiveLayout
from penstock_spark.replaying.rows import (
    body_of_stored,
    effective_times,
    marked,
    stored_rows,
    with_property,
)


def published(channel: Channel, flat: pa.Table) -> list[Event]:
    for number, batch in enumerate(flat.combine_chunks().to_batches()):
        body = body_of_stored(stored_rows(batch, batch.schema))
        channel.publish_bodies([body], producer="txn:test", sequence=number + 1)
    return list(channel.browse())


def test_everything_an_event_says_comes_back(client: Session) -> None:
    channel = client.channels.create("a", type="persistent")
    when = datetime(2013, 1, 1, tzinfo=UTC)
    headers = pa.array(
        [{"correlation_id": "c", "expiration": when, "user": None}, None],
        pa.struct(
            [
                ("correlation_id", pa.string()),
                ("expiration", pa.timestamp("us", "UTC")),
                ("user", pa.string()),
            ]
        ),
    )
    flat = events(
        [1, 2],
        [0, 1],
        ttl=pa.array([60_000, None], pa.int64()),
        priority=pa.array([9, None], pa.int8()),
        persistent=pa.array([None, None], pa.bool_()),
        headers=headers,
        price=[1.5, None],
        **{
            "price::string": [None, "dear"],
            "properties.tag": ["mine", None],
            "lines": [[{"sku": "a", "n": 1}], []],
            "day": pa.array([0, 0], pa.date32()),
        },
    )
    first, second = published(channel, flat)

    assert (first.data, first.ttl, first.priority) == (b"e1", 60_000, 9)
    assert first.headers["correlation_id"] == "c"
    assert first.headers["expiration"] == when
    assert "user" not in first.headers
    assert first.properties == {"price": 1.5, "tag": "mine", "lines": [{"sku": "a", "n": 1}]}
    assert (second.ttl, second.priority, second.headers.get("expiration")) == (0, 4, None)
    assert second.properties == {"price": "dear", "lines": []}


@pytest.mark.slow
def test_an_archive_brings_back_what_no_other_table_can(client: Session) -> None:
    channel = client.channels.create("a", type="persistent")
    channel.publish(b"a", headers={"correlation_id": "c"}, properties={"x": None, "at": [1, "y"]})
    channel.publish(b"b", ttl=60_000)
    stored = [batch.to_arrow() for batch in channel.browse().batches()]
    layout = ArchiveLayout(channel.columns(), channel="a", epoch="1")
    rows = [layout.of(batch) for batch in stored]
    copy = client.channels.create("copy", type="persistent")
    bodies = [body_of_stored(stored_rows(row, row.schema)) for row in rows]
    copy.publish_bodies(bodies, producer="p", sequence=1)
    first, second = copy.browse()

    assert first.properties == {"x": None, "at": [1, "y"]}
    assert first.headers["correlation_id"] == "c"
    assert (second.data, second.ttl, second.properties) == (b"b", 60_000, {})
    assert copy.columns().field("headers").type.num_fields == 1, "only the one in use"


@pytest.mark.slow
def test_events_without_anything_are_events(client: Session) -> None:
    channel = client.channels.create("a", type="persistent")
    flat = events([1, 2], [0, 1]).drop_columns(["data", "tag"])
    result = published(channel, flat)

    assert [(event.data, event.tag, event.properties) for event in result] == [(b"", None, {})] * 2


@pytest.mark.slow
def test_a_mark_keeps_what_an_event_has(client: Session) -> None:
    channel = client.channels.create("a", type="persistent")
    (batch,) = events([5, 6], [0, 1], price=[1, None]).to_batches()
    stored = stored_rows(batch, batch.schema)
    ids, times = stored.column("event_id"), stored.column("published")
    body = marked(body_of_stored(stored), pa.array(["old", "old"]), ids, published=times)
    channel.publish_bodies([body], producer="p", sequence=1)
    first, second = channel.browse()

    assert first.properties["price"] == 1
    assert "price" not in second.properties
    assert second.properties["replay_of"]["event_id"] == 6


def test_a_property_given_again_takes_the_place_of_the_first(client: Session) -> None:
    channel = client.channels.create("a", type="persistent")
    body = pa.record_batch(
        {
            "properties": pa.array(
                [None, {"x": 1, "y": 2}], pa.struct([("x", pa.int64()), ("y", pa.int64())])
            )
        }
    )
    body = with_property(body, "x", pa.array([7, 8], pa.int64()))
    channel.publish_bodies([body], producer="p", sequence=1)

    assert [event.properties for event in channel.browse()] == [{"x": 7}, {"x": 8, "y": 2}]


def test_a_clock_set_back_does_not_turn_the_order_of_ids() -> None:
    times = events([1, 2, 3, 4], [5, 3, 9, 8])["published"].combine_chunks()
    low = times.cast(pa.int64())[1].as_py()

    assert (effective_times(times, 0) - low).tolist() == [2, 2, 6, 6]
    assert (effective_times(times, low + 7) - low).tolist() == [7, 7, 7, 7]
    assert effective_times(times.slice(0, 0), 0).tolist() == []
