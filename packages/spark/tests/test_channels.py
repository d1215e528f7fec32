"""Several channels, patterns and queues, as Spark drives their readers, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import penstock
from packages.spark.tests.reading import Row, rows_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, NameDoesNotExist
from penstock_spark.reading.reading import ChannelReader, ChannelStreamReader
from penstock_spark.source import PenstockSource

pytestmark = pytest.mark.slow

EVERYTHING = ReadAllAvailable()


def published(session: Session, name: str, first: int, end: int) -> Channel:
    channels = session.channels
    channel = channels.get(name) if name in channels.list() else channels.create(name)
    channel.publish_many(
        [penstock.Event(b"%d" % n, properties={"n": n}) for n in range(first, end)]
    )
    return channel


def source(url: str, channel: str, **options: str) -> PenstockSource:
    return PenstockSource({"url": url, "channel": channel, **options})


def batch(url: str, channel: str, **options: str) -> ChannelReader:
    data_source = source(url, channel, **options)
    return data_source.reader(data_source.schema())


def read(url: str, channel: str, **options: str) -> list[Row]:
    reader = batch(url, channel, **options)
    return rows_of(reader, reader.partitions())


def stream(url: str, channel: str, **options: str) -> ChannelStreamReader:
    data_source = source(url, channel, **{"startingOffsets": "earliest"} | options)
    return data_source.streamReader(data_source.schema())


def ends(offset: dict[str, Any]) -> dict[str, int]:
    return {name: position["n"] for name, position in offset["c"].items()}


def seen(rows: list[Row]) -> dict[str, list[int]]:
    ids_by_channel: dict[str, list[int]] = {}
    for row in rows:
        ids_by_channel.setdefault(row["channel"], []).append(row["n"])
    return ids_by_channel


# --- which channels -----------------------------------------------------------------------


@pytest.mark.spec("C2")
def test_names_with_signs_of_lists_are_read_escaped(url: str, client: Session) -> None:
    published(client, "a,b", 0, end=2)
    published(client, "a*", 2, end=4)
    published(client, "größe/100%", 4, end=5)
    published(client, "größe", 5, end=6)

    assert seen(read(url, "a%2Cb, größe/*, a%2A")) == {
        "a,b": [0, 1],
        "a*": [2, 3],
        "größe/100%": [4],
    }
    assert [row["n"] for row in read(url, "größe/100%25")] == [4]
    reader = stream(url, "a%2A,a%2Cb", startingOffsets='{"a*": 1, "a,b": "latest"}')
    assert ends(reader.initialOffset()) == {"a*": 1, "a,b": 2}


def test_a_list_and_a_pattern_are_read_with_the_name_of_the_channel(
    url: str, client: Session
) -> None:
    published(client, "orders/eu", 0, end=3)
    published(client, "orders/us", 3, end=5)
    published(client, "trades", 5, end=6)

    assert seen(read(url, "trades, orders/eu")) == {"orders/eu": [0, 1, 2], "trades": [5]}
    assert seen(read(url, "orders/*")) == {"orders/eu": [0, 1, 2], "orders/us": [3, 4]}
    assert [row["event_id"] for row in read(url, "orders/*")] == [0, 1, 2, 0, 1]


def test_the_column_channel_comes_where_it_is_asked_for(url: str, client: Session) -> None:
    published(client, "orders", 0, end=1)

    assert "channel" not in source(url, "orders").schema().names
    assert read(url, "orders", includeChannel="true")[0]["channel"] == "orders"
    assert "channel" not in source(url, "orders*", includeChannel="false").schema().names
    assert read(url, "orders*", columns="channel")[0] == {"channel": "orders"}


def test_a_property_called_channel_keeps_a_name(url: str, client: Session) -> None:
    orders = client.channels.create("orders")
    orders.publish(properties={"channel": "web"})

    assert read(url, "orders")[0]["channel"] == "web"
    row = read(url, "orders", includeChannel="true")[0]
    assert (row["channel"], row["properties.channel"]) == ("orders", "web")


def test_no_channel_that_fits_is_said_with_those_there_are(url: str, client: Session) -> None:
    published(client, "trades", 0, end=1)

    with pytest.raises(
        NameDoesNotExist, match=r"no channel matches orders/\*; the realm has trades"
    ):
        source(url, "orders/*").schema()
    with pytest.raises(NameDoesNotExist, match="no channel 'orders'"):
        source(url, "trades,orders").schema()


# --- columns of several channels ----------------------------------------------------------


def test_columns_of_one_name_and_type_are_one_and_others_are_named(
    url: str, client: Session
) -> None:
    client.channels.create("a").publish(properties={"price": 1, "only_a": True})
    client.channels.create("b").publish(properties={"price": "two"})
    client.channels.create("c").publish(properties={"price": 3, "lines": [{"sku": "x"}]})

    schema = source(url, "a,b,c").schema()
    assert schema.names[5:] == ["price", "only_a", "price::string", "lines"]
    rows = read(url, "a,b,c")
    assert [(row["price"], row["price::string"]) for row in rows] == [
        (1, None),
        (None, "two"),
        (3, None),
    ]
    assert [row["only_a"] for row in rows] == [True, None, None]
    assert rows[2]["lines"] == [{"sku": "x"}]


def test_a_type_of_a_query_stays_what_it_is_whoever_publishes_another(
    url: str, client: Session
) -> None:
    first = client.channels.create("a")
    first.publish(properties={"other": 1})
    client.channels.create("b").publish(properties={"price": "two"})
    reader = stream(url, "a,b")
    start = reader.initialOffset()
    first.publish(properties={"price": 7})  # in a the plain name is a number

    rows = rows_of(reader, reader.partitions(start, reader.latestOffset(start, EVERYTHING)))

    assert [(row["channel"], row["price"]) for row in rows] == [
        ("a", None),
        ("a", "7"),
        ("b", "two"),
    ]
    assert source(url, "a,b").schema().names[-2:] == ["price", "price::string"]


def test_types_of_ones_own_hold_for_every_channel(url: str, client: Session) -> None:
    from pyspark.sql.types import DoubleType, StructType

    client.channels.create("a").publish(properties={"price": 1})
    client.channels.create("b").publish(properties={"price": 2.5})
    reader = source(url, "a,b").reader(StructType().add("price", DoubleType()))

    assert [row["price"] for row in rows_of(reader, reader.partitions())] == [1.0, 2.5]


# --- streams ------------------------------------------------------------------------------


def test_a_micro_batch_is_shared_fairly(url: str, client: Session) -> None:
    published(client, "big", 0, end=1_000)
    published(client, "small", 0, end=5)
    reader = stream(url, "big,small", maxEventsPerTrigger="100")
    start = reader.initialOffset()

    end = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert ends(end) == {"big": 95, "small": 5}
    rows = seen(rows_of(reader, reader.partitions(start, end)))
    assert rows == {"big": list(range(95)), "small": list(range(5))}


def test_a_channel_that_comes_later_is_read_from_its_first_event(url: str, client: Session) -> None:
    published(client, "day/1", 0, end=3)
    reader = stream(url, "day/*", startingOffsets="latest")
    start = reader.initialOffset()
    assert ends(start) == {"day/1": 3}
    client.channels.create("day/2")
    assert reader.latestOffset(start, EVERYTHING) == start  # without events it changes nothing
    published(client, "day/2", 0, end=2)

    end = reader.latestOffset(start, EVERYTHING)

    assert ends(end) == {"day/1": 3, "day/2": 2}
    assert seen(rows_of(reader, reader.partitions(start, end))) == {"day/2": [0, 1]}
    assert reader.latestOffset(end, EVERYTHING) == end


def test_what_is_there_is_fixed_for_all_channels_at_once(url: str, client: Session) -> None:
    published(client, "a", 0, end=3)
    published(client, "b", 0, end=3)
    reader = stream(url, "*", maxEventsPerTrigger="4")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    for name in ("a", "b", "c"):
        published(client, name, 3, end=6)

    first = reader.latestOffset(start, reader.getDefaultReadLimit())
    last = reader.latestOffset(first, reader.getDefaultReadLimit())

    assert (ends(first), ends(last)) == ({"a": 2, "b": 2}, {"a": 3, "b": 3})
    assert reader.latestOffset(last, reader.getDefaultReadLimit()) == last


def test_a_query_waits_for_all_its_channels_at_once(url: str, client: Session) -> None:
    a, b = published(client, "a", 0, end=1), published(client, "b", 0, end=1)
    queue = client.queues.create("work")

    assert not client.wait_for_events({a: 1, b: 1, queue: 0}, 0.01)
    assert not client.wait_for_events({}, 0.01)
    b.publish(b"x")
    assert client.wait_for_events({a: 1, b: 1, queue: 0}, 60)
    queue.push(b"x")
    assert client.wait_for_events({a: 1, b: 2, queue: 0}, 60)


def test_starts_are_given_by_channel(url: str, client: Session) -> None:
    published(client, "a", 0, end=5)
    published(client, "b", 0, end=5)
    published(client, "c", 0, end=5)
    published(client, "a", 5, end=9)
    fifth = client.channels.get("a").read().column("published")[5].as_py()

    offsets = json.dumps({"a": 2, "b": "earliest"})
    assert ends(stream(url, "a,b,c", startingOffsets=offsets).initialOffset()) == {
        "a": 2,
        "b": 0,
        "c": 5,
    }
    ending = json.dumps({"b": 1})
    assert seen(read(url, "a,b,c", startingOffsets=offsets, endingOffsets=ending)) == {
        "a": list(range(2, 9)),
        "b": [0],
        "c": list(range(5)),
    }
    times = json.dumps({"a": fifth.isoformat()})
    assert seen(read(url, "a,b", startingTimestamp=times)) == {
        "a": [5, 6, 7, 8],
        "b": list(range(5)),
    }
    assert seen(read(url, "a,b", endingTimestamp=times)) == {
        "a": list(range(5)),
        "b": list(range(5)),
    }


def test_a_stream_has_no_end_of_its_own(url: str, client: Session) -> None:
    published(client, "orders", 0, end=1)

    for option in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(InvalidArgument, match="are for a batch; for a stream that ends"):
            stream(url, "orders", **{option: "5"})


def test_positions_of_equal_meaning_are_equal_text(url: str, client: Session) -> None:
    published(client, "b", 0, end=1)
    published(client, "a", 0, end=1)

    one, two = stream(url, "b,a").initialOffset(), stream(url, "*").initialOffset()

    assert json.dumps(one) == json.dumps(two)
    assert list(one["c"]) == ["a", "b"]


def test_a_channel_that_is_no_more_is_said(url: str, client: Session) -> None:
    published(client, "day/1", 0, end=3)
    published(client, "day/2", 0, end=3)
    reader = stream(url, "day/*")
    start = reader.initialOffset()
    client.channels.delete("day/1")

    with pytest.raises(IllegalState, match="channel day/1 was deleted"):
        reader.latestOffset(start, ReadMaxRows(10))


def test_a_checkpoint_of_other_channels_is_refused(url: str, client: Session) -> None:
    published(client, "a", 0, end=3)
    published(client, "b", 0, end=3)
    start = stream(url, "a,b").initialOffset()

    with pytest.raises(InvalidArgument, match="is for channel a, b, the query reads b"):
        stream(url, "b").latestOffset(start, ReadMaxRows(10))


# --- queues -------------------------------------------------------------------------------


def test_a_queue_is_read_and_nothing_is_taken_off_it(url: str, client: Session) -> None:
    work = client.queues.create("work")
    work.push_many([penstock.Event(properties={"n": n}) for n in range(10)])
    work.pop()
    work.pop()

    for rows in (read(url, "work"), _queue(url, "work"), _queue(url, "w*")):
        assert [row["n"] for row in rows] == list(range(2, 10))
    work.close()
    assert work.info().events == 8


def test_a_stream_of_a_queue_goes_on_with_what_is_pushed(url: str, client: Session) -> None:
    work = client.queues.create("work")
    work.push_many([penstock.Event(properties={"n": n}) for n in range(3)])
    reader = stream(url, "work")
    start = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    work.push(properties={"n": 3})

    end = reader.latestOffset(start, EVERYTHING)

    assert [row["n"] for row in rows_of(reader, reader.partitions(start, end))] == [3]


def test_a_queue_is_not_a_channel_and_a_channel_no_queue(url: str, client: Session) -> None:
    published(client, "orders", 0, end=1)

    with pytest.raises(NameDoesNotExist, match="no queue 'orders'"):
        _queue(url, "orders")
    with pytest.raises(InvalidArgument, match="the option channel or the option queue"):
        source(url, "orders", queue="work").schema()


def _queue(url: str, name: str) -> list[Row]:
    data_source = PenstockSource({"url": url, "queue": name})
    reader = data_source.reader(data_source.schema())
    return rows_of(reader, reader.partitions())


# --- limits -------------------------------------------------------------------------------


def test_a_micro_batch_may_be_limited_by_bytes(url: str, client: Session) -> None:
    for name, size in (("big", 10_000), ("small", 100)):
        channel = client.channels.create(name)
        channel.publish_many([penstock.Event(b"x" * size, properties={"n": 1})] * 100)
    reader = stream(url, "big,small", maxBytesPerTrigger="100000")
    start = reader.initialOffset()

    first = reader.latestOffset(start, reader.getDefaultReadLimit())

    assert ends(first)["small"] == 100  # of its half it needs a part only
    assert 7 <= ends(first)["big"] <= 10
    tiny = stream(url, "big,small", maxBytesPerTrigger="1")
    assert ends(tiny.latestOffset(start, EVERYTHING)) == {"big": 1, "small": 1}
    seen_ends = [first]
    while (after := reader.latestOffset(seen_ends[-1], EVERYTHING)) != seen_ends[-1]:
        seen_ends.append(after)
    assert ends(seen_ends[-1]) == {"big": 100, "small": 100}
    assert 10 <= len(seen_ends) <= 12
