"""Events that leave before a query has read them end it, with the reason, or it is told not to."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import penstock
from packages.spark.tests.reading import Row, rows_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import DataLost, IllegalState, InvalidArgument
from penstock_spark.reading.reading import ChannelStreamReader
from penstock_spark.source import PenstockSource

pytestmark = pytest.mark.slow

EVERYTHING = ReadAllAvailable()


def filled(session: Session, name: str = "orders", count: int = 100, **attributes: Any) -> Channel:
    channel = session.channels.create(name, **attributes)
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(count)])
    return channel


def source(url: str, channel: str = "orders", **options: str) -> PenstockSource:
    return PenstockSource({"url": url, "channel": channel, **options})


def stream(url: str, channel: str = "orders", **options: str) -> ChannelStreamReader:
    data_source = source(url, channel, **{"startingOffsets": "earliest"} | options)
    return data_source.streamReader(data_source.schema())


def batch_after(reader: ChannelStreamReader, start: dict[str, Any]) -> list[Row]:
    end = reader.latestOffset(start, EVERYTHING)
    return rows_of(reader, reader.partitions(start, end))


def test_a_loss_is_said_with_ids_causes_and_what_to_do(url: str, client: Session) -> None:
    orders = filled(client, capacity=100)
    reader = stream(url)
    start = reader.initialOffset()
    orders.purge(end=9)
    orders.publish_many([penstock.Event(properties={"n": 1})] * 20)

    with pytest.raises(DataLost) as loss:
        batch_after(reader, start)

    assert str(loss.value) == (
        "[PENSTOCK_DATA_LOST] channel orders: before this query read them, events 0-9 were "
        "purged, events 10-19 were evicted by the capacity. Set failOnDataLoss to false to "
        "continue without them; to prevent this, give the channel a larger capacity"
    )
    lenient = stream(url, failOnDataLoss="false")
    assert [row["event_id"] for row in batch_after(lenient, start)] == list(range(20, 120))


def test_what_a_durable_has_taken_away_is_lost_to_others(url: str, client: Session) -> None:
    orders = filled(client, count=5)
    durable = orders.durables.create("d")
    reader = stream(url)
    start = reader.initialOffset()
    for event in durable.fetch(3, 60):
        event.ack()
    durable.flush()

    with pytest.raises(DataLost, match=r"0-2 were acknowledged by all durables.*retain_consumed"):
        batch_after(reader, start)


@pytest.mark.parametrize(
    "attributes",
    [{"keys": {"same": 1}}, {"engine": "merge", "keys": {"same": 1}}],
    ids=["keys", "merge"],
)
def test_an_event_that_a_newer_one_has_replaced_is_no_loss(
    url: str, client: Session, attributes: dict[str, Any]
) -> None:
    rates = client.channels.create("rates", type="persistent", **attributes)
    rates.publish(properties={"same": 1, "n": 0})
    reader = stream(url, "rates")
    start = reader.initialOffset()
    rates.publish(properties={"same": 1, "n": 1})

    assert [row["n"] for row in batch_after(reader, start)] == [1]


def test_ids_that_never_had_an_event_are_no_loss(url: str, client: Session) -> None:
    orders = client.channels.create("orders")
    reader = stream(url)
    start = reader.initialOffset()
    orders.publish(b"passing", transient=True)
    orders.publish(properties={"n": 1})

    assert [row["event_id"] for row in batch_after(reader, start)] == [1]


def test_what_is_popped_off_a_queue_is_no_loss_and_what_is_purged_is(
    url: str, client: Session
) -> None:
    work = client.queues.create("work")
    work.push_many([penstock.Event(properties={"n": n}) for n in range(5)])
    reader = stream(url, "work")
    start = reader.initialOffset()
    work.pop()
    work.close()

    assert [row["n"] for row in batch_after(reader, start)] == [1, 2, 3, 4]
    work.purge(end=2)
    with pytest.raises(DataLost, match=r"queue work: .* events 1-2 were purged"):
        batch_after(reader, start)


def test_events_that_leave_between_plan_and_task_are_noticed(url: str, client: Session) -> None:
    orders = filled(client, count=10)
    reader = stream(url)
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, EVERYTHING))
    orders.purge(end=3)

    with pytest.raises(DataLost, match=r"events 0-3 were purged"):
        rows_of(reader, parts)
    assert len(rows_of(stream(url, failOnDataLoss="false"), parts)) == 6


def test_a_batch_fails_only_where_it_was_told_to(url: str, client: Session) -> None:
    orders = filled(client, count=10)
    orders.purge(end=3)

    def read(**options: str) -> list[int]:
        data_source = source(url, **options)
        reader = data_source.reader(data_source.schema())
        return [row["n"] for row in rows_of(reader, reader.partitions())]

    assert read(startingOffsets="2") == read(failOnDataLoss="true") == list(range(4, 10))
    with pytest.raises(DataLost, match=r"events 2-3 were purged"):
        read(startingOffsets="2", failOnDataLoss="true")


def test_channels_that_go_are_let_go_where_data_may_be_lost(url: str, client: Session) -> None:
    filled(client, "a", 5)
    filled(client, "b", 5)
    filled(client, "c", 5)
    start = stream(url, "a,b,c").initialOffset()
    for name in ("a", "b"):
        client.channels.delete(name)
    filled(client, "b", 2)

    with pytest.raises(IllegalState, match=r"channel a was deleted.*failOnDataLoss"):
        stream(url, "*").latestOffset(start, EVERYTHING)
    lenient = stream(url, "*", failOnDataLoss="false")
    rows = batch_after(lenient, start)
    assert [(row["channel"], row["n"]) for row in rows] == [
        ("b", 0),
        ("b", 1),
        *(("c", n) for n in range(5)),
    ]
    fewer = stream(url, "c", failOnDataLoss="false")
    assert len(batch_after(fewer, start)) == 5
    filled(client, "d", 1)
    other_stream = stream(url, "d", failOnDataLoss="false")
    with pytest.raises(InvalidArgument, match=r"is for channel a, b, c, the query reads d"):
        other_stream.latestOffset(start, EVERYTHING)
