"""Reads bound to a durable, as Spark drives them, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql.streaming.datasource import ReadMaxRows

import penstock
from packages.spark.tests.reading import rows_of
from penstock.client.sync.sync import Channel, Durable, Session
from penstock_core.vocabulary.errors import (
    DataLost,
    DurableInUse,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
)
from penstock_spark.connections import ChannelLink, disconnect
from penstock_spark.options import source_options
from penstock_spark.reading import binding
from penstock_spark.reading.plan import EventRange, FileRows, WireRows
from penstock_spark.reading.reading import ChannelStreamReader
from penstock_spark.source import PenstockSource

Sealed = Callable[[Channel, int], None]


@pytest.fixture
def orders(client: Session) -> Channel:
    client.channels.create("dead")
    return client.channels.create(
        "orders",
        type="persistent",
        dead_event_store="dead",
        storage={"events_per_spindle": 1_000},
    )


@pytest.fixture
def lake(orders: Channel) -> Durable:
    return orders.durables.create("lake", type="serial")


def publish(channel: Channel, first: int, end: int) -> None:
    channel.publish_many(
        [penstock.Event(properties={"n": n, "third": n % 3}) for n in range(first, end)]
    )


def source(url: str, **options: str) -> PenstockSource:
    return PenstockSource({"url": url, "channel": "orders", "durable": "lake", **options})


def stream(url: str, **options: str) -> ChannelStreamReader:
    """Return a stream that soon gives up waiting for a durable or for events."""
    data_source = source(url, **options)
    patient = source_options(data_source.options)
    impatient = replace(patient, durable_attempts=1, long_poll_s=0.05)
    return ChannelStreamReader(impatient, data_source.schema())


def read(url: str, **options: str) -> list[int]:
    data_source = source(url, **options)
    reader = data_source.reader(data_source.schema())
    return [row["n"] for row in rows_of(reader, reader.partitions())]


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    """Return a position as Spark stores it."""
    kept: dict[str, Any] = json.loads(json.dumps(offset))
    return kept


class Query:
    """Calls a stream like Spark, step by step; a restart keeps only the checkpoint."""

    def __init__(self, url: str, **options: str) -> None:
        self.url = url
        self.options = options
        self.reader = stream(url, **options)
        self.committed: dict[str, Any] | None = None
        """Position in the commit log."""
        self.begun: dict[str, Any] | None = None
        """Position in the offset log that is not in the commit log."""

    def begin(self, most: int = 1_000_000) -> None:
        """Decide where the next micro-batch ends, and write it down."""
        if self.committed is None:
            self.committed = stored(self.reader.initialOffset())
        self.begun = stored(self.reader.latestOffset(self.committed, ReadMaxRows(most)))

    def run(self) -> list[int]:
        """Have tasks read the micro-batch."""
        assert self.committed is not None
        assert self.begun is not None
        parts = self.reader.partitions(self.committed, self.begun)
        tasks: ChannelStreamReader = pickle.loads(pickle.dumps(self.reader))
        return [row["n"] for row in rows_of(tasks, parts)]

    def finish(self) -> None:
        """Put it in the commit log."""
        self.committed, self.begun = self.begun, None

    def batch(self, most: int = 1_000_000) -> list[int]:
        self.begin(most)
        planned_batch = self.run()
        self.finish()
        return planned_batch

    def die(self) -> None:
        """End the process; Spark starts another one."""
        disconnect()
        self.reader = stream(self.url, **self.options)


def outstanding(durable: Durable) -> list[int]:
    return list(durable.outstanding().id_set)


def test_a_stream_begins_with_the_first_event_the_durable_owes(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.ack(3)
    query = Query(url)

    assert query.batch() == [4, 5, 6, 7, 8, 9]


@pytest.mark.slow
def test_a_durable_that_owes_nothing_begins_with_what_comes(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.ack(9)
    query = Query(url)
    query.begin()
    publish(orders, 10, 12)
    query.begin()

    assert query.run() == [10, 11]


class Racing(ChannelLink):
    """Publishes an event at each request for the end."""

    @property
    def end(self) -> int:
        publish(self.channel, 10, 11)
        return super().end


def test_what_is_published_while_the_beginning_is_looked_up_is_not_passed_over(
    url: str, client: Session, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.ack(9)
    bound = binding.binding_of(source_options({"url": url, "channel": "orders", "durable": "lake"}))

    assert bound.first(client, Racing(orders)) == 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exclusive", "shared", "serial", "priority", "shared_queued"])
def test_what_is_in_the_checkpoint_is_acknowledged_and_nothing_else(
    url: str, orders: Channel, kind: penstock.DurableType
) -> None:
    lake = orders.durables.create("lake", type=kind)
    publish(orders, 0, 10)
    query = Query(url)
    query.begin(4)
    assert query.run() == [0, 1, 2, 3]
    info = lake.info()
    assert (info.in_flight, info.outstanding) == (4, 10)

    query.finish()
    assert len(outstanding(lake)) == 10
    query.begin(4)  # Spark asks for more once the last one is in the commit log
    assert outstanding(lake) == [4, 5, 6, 7, 8, 9]
    assert query.run() == [4, 5, 6, 7]
    query.finish()
    assert query.committed is not None
    query.reader.commit(query.committed)
    assert outstanding(lake) == [8, 9]
    query.reader.commit(query.committed)
    assert outstanding(lake) == [8, 9]


def test_the_realm_keeps_events_until_then_and_no_longer(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    query = Query(url)
    query.batch(4)
    assert orders.info().events == 10
    query.begin()
    assert orders.info().events == 6
    assert orders.info().counters.consumed == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exclusive", "serial"])
def test_a_failing_micro_batch_is_rolled_back_counted_and_repeated(
    url: str, orders: Channel, kind: penstock.DurableType
) -> None:
    lake = orders.durables.create("lake", type=kind)
    publish(orders, 0, 10)
    query = Query(url)
    query.batch(3)
    query.begin(4)
    for attempt in range(3):
        assert query.run() == [3, 4, 5, 6]
        assert lake.info().in_flight == 4
        assert lake.outstanding().redelivered.keys() == (
            {attempt} if attempt and kind == "serial" else set()
        )
        query.die()
    info = lake.info()
    assert (info.in_flight, info.outstanding) == (0, 7)
    assert info.redelivered == (4 if kind == "serial" else 0)
    assert orders.info().counters.redelivered == (12 if kind == "serial" else 0)
    assert query.run() == [3, 4, 5, 6]
    query.finish()

    assert query.batch() == [7, 8, 9]


@pytest.mark.slow
def test_the_same_micro_batch_planned_twice_by_one_query_is_no_failure(
    url: str, orders: Channel, lake: Durable
) -> None:
    """As in a ``foreachBatch`` that uses its table twice."""
    publish(orders, 0, 5)
    query = Query(url)
    query.begin()
    assert query.run() == query.run() == [0, 1, 2, 3, 4]
    assert lake.info().redelivered == 0


@pytest.mark.slow
def test_a_restart_acknowledges_what_the_checkpoint_is_ahead(
    url: str, orders: Channel, lake: Durable
) -> None:
    """Killed between the commit log and the acknowledgement."""
    publish(orders, 0, 10)
    query = Query(url)
    query.batch(4)
    query.die()
    assert len(outstanding(lake)) == 10
    assert query.batch(4) == [4, 5, 6, 7]
    query.die()
    query.begin()
    assert outstanding(lake) == [8, 9]

    query.die()
    assert query.run() == [8, 9]  # the first call after a restart is for the one begun
    assert outstanding(lake) == [8, 9]


@pytest.mark.slow
def test_what_others_have_acknowledged_is_not_read(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    """Partitions of files and of the wire, one or several."""
    lake = orders.durables.create("lake", type="shared")
    other_durable = orders.durables.create("other", type="shared")
    publish(orders, 0, 2_500)
    sealed(orders, 2)
    with lake.subscribe(window=5_000, timeout=1.0) as subscription:
        batches = 0
        while batches < 2_500 and (batch := subscription.next_batch()) is not None:
            batches += len(batch)
            subscription.ack([n for n in batch.event_ids.tolist() if n % 5])
    expected = list(range(0, 2_500, 5))

    assert outstanding(lake) == expected
    assert other_durable.info().outstanding == 2_500
    for access in ("auto", "remote"):
        assert read(url, access=access) == expected
    query = Query(url, minPartitions="4")
    assert query.batch() == expected


@pytest.mark.slow
def test_an_event_that_expired_or_was_purged_is_no_hindrance(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    query = Query(url)
    query.begin()
    orders.purge(start=2, end=4)
    assert query.run() == [0, 1, 5, 6, 7, 8, 9]
    query.finish()
    query.begin()
    assert outstanding(lake) == []


@pytest.mark.slow
def test_what_was_lost_to_the_query_ends_it_and_what_was_given_up_does_not(
    url: str, orders: Channel, lake: Durable
) -> None:
    """A durable keeps nothing from TTL, capacity and purge (SEM D7)."""
    publish(orders, 0, 10)
    query = Query(url)
    query.begin(4)
    query.die()
    orders.purge(start=0, end=1)
    with pytest.raises(DataLost, match=r"events 0-1 were purged.*failOnDataLoss to false"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.die()
    assert query.run() == [2, 3]

    query.options["failOnDataLoss"] = "true"
    query.die()
    query.finish()
    query.begin()
    query.die()
    with lake.hold() as hold:
        hold.bury([4, 5], "no such airport")
    assert query.run() == [6, 7, 8, 9]


@pytest.mark.slow
def test_an_unbound_query_misses_what_was_buried_before_it_came(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.bury([0, 1], "no such airport")
    query = Query(url, durable="", startingOffsets="0")
    query.begin()
    with pytest.raises(DataLost, match="events 0-1 were rejected"):
        query.run()


@pytest.mark.slow
def test_a_selector_that_is_the_durables_is_what_is_read_and_acknowledged(
    url: str, orders: Channel
) -> None:
    lake = orders.durables.create("lake", type="serial", selector="third = 1")
    publish(orders, 0, 10)
    query = Query(url)
    assert query.batch() == [1, 4, 7]
    query.begin()
    assert outstanding(lake) == []
    disconnect()
    assert Query(url, selector="third = 1").batch() == []
    with pytest.raises(IllegalState, match=r"has selector 'third = 1', which decides.*third = 2"):
        Query(url, selector="third = 2").batch()
    with pytest.raises(IllegalState, match="leave the option out"):
        read(url, selector="third = 2")


def test_an_exclusive_durable_takes_the_querys_selector(url: str, orders: Channel) -> None:
    lake = orders.durables.create("lake", type="exclusive")
    publish(orders, 0, 10)
    query = Query(url, selector="third = 1")
    assert query.batch() == [1, 4, 7]
    query.begin()
    assert outstanding(lake) == []


def test_a_batch_reads_what_is_outstanding_and_acknowledges_nothing(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 10)
    with lake.hold() as hold:
        hold.ack(2)
        assert read(url) == [3, 4, 5, 6, 7, 8, 9]  # also while somebody holds it
    assert read(url, startingOffsets="2", endingOffsets="6") == [3, 4, 5]
    assert len(outstanding(lake)) == 7
    assert lake.info().redelivered == 0


@pytest.mark.slow
def test_several_channels_have_a_durable_of_that_name_each(
    url: str, client: Session, orders: Channel, lake: Durable
) -> None:
    more = client.channels.create("more", type="persistent")
    theirs = more.durables.create("lake", type="shared")
    publish(orders, 0, 5)
    publish(more, 100, 105)
    with lake.hold() as hold:
        hold.ack(1)
    query = Query(url, channel="orders, more")
    assert sorted(query.batch(4)) == [2, 3, 100, 101]
    assert sorted(query.batch()) == [4, 102, 103, 104]
    query.begin()
    assert (outstanding(lake), outstanding(theirs)) == ([], [])

    third = client.channels.create("third", type="persistent")
    publish(third, 0, 1)
    disconnect()
    with pytest.raises(NameDoesNotExist, match="penstock durable create third lake --type serial"):
        Query(url, channel="orders, third").batch()


def test_a_second_query_is_refused(url: str, orders: Channel, lake: Durable) -> None:
    publish(orders, 0, 5)
    query = Query(url)
    query.batch(2)
    with pytest.raises(DurableInUse, match="give this one another durable"):
        Query(url).begin()
    with pytest.raises(DurableInUse, match="held as a whole"):
        lake.fetch(1)

    assert query.batch() == [2, 3, 4]


def test_a_durable_that_was_deleted_ends_the_query(
    url: str, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 5)
    query = Query(url)
    query.batch(2)
    orders.durables.delete("lake")
    query.reader.commit(query.committed or {})  # which would end it with another error
    with pytest.raises(NameDoesNotExist, match="durable lake was deleted"):
        query.begin()
    query.die()
    with pytest.raises(NameDoesNotExist, match="channel orders has no durable 'lake'"):
        query.begin()


@pytest.mark.slow
def test_a_channel_that_was_exchanged_is_not_acknowledged(
    url: str, client: Session, orders: Channel, lake: Durable
) -> None:
    publish(orders, 0, 5)
    query = Query(url)
    query.batch()
    query.die()
    client.channels.delete("orders")
    again = client.channels.create("orders", type="persistent")
    durable = again.durables.create("lake", type="serial")
    publish(again, 0, 9)
    assert query.committed is not None
    query.reader.commit(query.committed)
    with pytest.raises(IllegalState, match="was deleted and created again"):
        query.begin()
    assert len(outstanding(durable)) == 9


@pytest.mark.slow
def test_max_deliveries_counts_micro_batches(url: str, orders: Channel, client: Session) -> None:
    lake = orders.durables.create("lake", type="serial", max_deliveries=2)
    publish(orders, 0, 5)
    query = Query(url)
    query.begin(3)
    assert query.run() == [0, 1, 2]
    query.die()
    assert query.run() == [0, 1, 2]
    query.die()

    assert query.run() == []
    assert client.channels.get("dead").info().events == 3
    query.finish()
    assert query.batch() == [3, 4]
    assert lake.info().outstanding == 2


@pytest.mark.slow
@pytest.mark.parametrize("option", ["startingOffsets", "startingTimestamp"])
def test_the_durable_says_where_a_stream_begins(
    url: str, orders: Channel, lake: Durable, option: str
) -> None:
    publish(orders, 0, 1)
    with pytest.raises(InvalidArgument, match="decides where the stream begins"):
        stream(url, **{option: "5"})


def test_a_durable_with_lanes_is_refused(url: str, orders: Channel) -> None:
    publish(orders, 0, 1)
    orders.durables.create("lake", type="serial", order_by="third")
    with pytest.raises(InvalidArgument, match="has order_by"):
        Query(url).begin()


@pytest.mark.slow
def test_a_queue_has_no_durable(url: str, client: Session) -> None:
    client.queues.create("work").push(b"x")
    with pytest.raises(InvalidArgument, match="queues have no durables"):
        PenstockSource({"url": url, "queue": "work", "durable": "lake"}).schema()
    with pytest.raises(IllegalState, match="work is a queue"):
        read(url, channel="work")


@pytest.mark.slow
def test_partitions_name_what_is_owed_only_where_something_is_not(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.durables.create("other", type="shared")
    lake = orders.durables.create("lake", type="shared")
    publish(orders, 0, 2_500)
    sealed(orders, 2)
    with lake.hold() as hold:
        hold.ack(999)
    reader = source(url).reader(source(url).schema())
    parts = [part for part in reader.partitions() if isinstance(part, EventRange)]
    kinds = [type(part) for planned in parts for part in planned.parts]

    assert kinds == [FileRows, WireRows]
    assert [part.outstanding_ids for part in parts] == [None] * len(parts)
