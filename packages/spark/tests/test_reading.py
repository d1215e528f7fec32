"""Readers against a realm, as Spark drives them, without Spark."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import penstock
from packages.spark.tests.reading import Row, rows_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import Damaged, IllegalState, InvalidArgument, NameDoesNotExist
from penstock_spark.connections import ask, disconnect, sessions
from penstock_spark.options import source_options
from penstock_spark.reading.plan import EventRange, FileRows, WireRows
from penstock_spark.reading.reading import ChannelStreamReader
from penstock_spark.source import PenstockSource

pytestmark = pytest.mark.slow

Sealed = Callable[[Channel, int], None]


def events(first: int, end: int) -> list[penstock.Event]:
    """Event ``i`` has ``n`` = i, so that a selector can tell it, and a third of them apart."""
    return [
        penstock.Event(b"%d" % i, properties={"n": i, "third": i % 3}) for i in range(first, end)
    ]


@pytest.fixture
def orders(client: Session) -> Channel:
    return client.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 1_000}
    )


def source(url: str, **options: str) -> PenstockSource:
    return PenstockSource({"url": url, "channel": "orders", **options})


def read(url: str, **options: str) -> list[Row]:
    data_source = source(url, **options)
    reader = data_source.reader(data_source.schema())
    return rows_of(reader, reader.partitions())


def numbers(rows: list[Row]) -> list[int]:
    return [row["n"] for row in rows]


# --- batch --------------------------------------------------------------------------------


def test_files_and_tail_are_read_with_no_gap_and_no_duplicate(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 2_500))
    sealed(orders, 2)
    data_source = source(url)
    reader = data_source.reader(data_source.schema())
    parts = reader.partitions()

    kinds = [
        type(part) for planned in parts if isinstance(planned, EventRange) for part in planned.parts
    ]
    assert kinds == [FileRows, FileRows, WireRows]
    rows = rows_of(reader, parts)
    assert [row["event_id"] for row in rows] == list(range(2_500))
    assert numbers(rows) == list(range(2_500))
    assert rows[7]["data"] == b"7"


@pytest.mark.parametrize("access", ["remote", "local"])
def test_the_way_of_access_changes_no_row(
    url: str, orders: Channel, sealed: Sealed, access: str
) -> None:
    headers = {"correlation_id": "c-1", "application_id": "shop"}
    orders.publish(tag="t", properties={"n": 0}, headers=headers, priority=7, ttl=3_600_000)
    orders.publish_many(events(1, 2_500))
    sealed(orders, 2)

    rows = read(url, access=access, includeHeaders="true")
    assert rows == read(url, includeHeaders="true")
    assert numbers(rows) == list(range(2_500))
    assert rows[0]["headers"]["application_id"] == "shop"
    assert (rows[0]["tag"], rows[0]["priority"], rows[0]["ttl"]) == ("t", 7, 3_600_000)


def test_partitions_cut_the_ids_and_keep_the_order(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 2_500))
    sealed(orders, 2)
    data_source = source(url, minPartitions="7")
    reader = data_source.reader(data_source.schema())
    parts = reader.partitions()

    assert len(parts) == 7
    assert numbers(rows_of(reader, parts)) == list(range(2_500))


def test_removed_events_are_read_neither_from_files_nor_from_the_tail(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 2_500))
    sealed(orders, 2)
    orders.purge(selector="third = 0 AND n > 500")
    orders.purge(start=10, end=19)
    remaining = [n for n in range(2_500) if not (n % 3 == 0 and n > 500) and not 10 <= n <= 19]

    assert numbers(read(url)) == remaining
    assert numbers(read(url, minPartitions="5")) == remaining


def test_a_selector_selects_in_files_and_over_the_wire(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 2_500))
    sealed(orders, 2)
    orders.purge(selector="n = 300 OR n = 2400")

    rows = read(url, selector="third = 0 AND n > 30")

    assert numbers(rows) == [n for n in range(33, 2_500, 3) if n not in (300, 2_400)]


def test_a_range_is_read_from_its_first_id_to_before_its_end(url: str, orders: Channel) -> None:
    orders.publish_many(events(0, 100))

    assert numbers(read(url, startingOffsets="10", endingOffsets="13")) == [10, 11, 12]
    assert numbers(read(url, startingOffsets="98", endingOffsets="1000")) == [98, 99]
    assert read(url, startingOffsets="latest") == []
    assert read(url, startingOffsets="50", endingOffsets="20") == []


def test_a_time_begins_where_the_first_event_of_that_time_is(url: str, orders: Channel) -> None:
    orders.publish_many(events(0, 10))
    between = orders.read().column("published")[-1].as_py()
    orders.publish_many(events(10, 20))

    rows = read(url, startingTimestamp=between.isoformat())
    assert numbers(rows)[-10:] == list(range(10, 20))
    assert all(row["published"] >= between for row in rows)
    assert read(url, startingTimestamp=datetime(2999, 1, 1, tzinfo=UTC).isoformat()) == []


def test_events_kept_in_memory_are_read_in_their_place(
    url: str, client: Session, sealed: Sealed
) -> None:
    mixed = client.channels.create("orders", type="mixed", storage={"events_per_spindle": 1_000})
    mixed.publish_many(
        [penstock.Event(properties={"n": n}, persistent=n != 500) for n in range(1_500)]
    )
    sealed(mixed, 1)

    assert numbers(read(url)) == list(range(1_500))


def test_a_file_that_is_not_here_is_asked_for(url: str, orders: Channel, sealed: Sealed) -> None:
    orders.publish_many(events(0, 1_000))
    sealed(orders, 1)
    data_source = source(url)
    reader = data_source.reader(data_source.schema())
    (part,) = reader.partitions()
    assert isinstance(part, EventRange)
    (file,) = part.parts
    assert isinstance(file, FileRows)
    other_path = msgspec.structs.replace(file, path=f"{file.path}.elsewhere")
    other_size = msgspec.structs.replace(file, size=file.size + 1)

    for moved in (other_path, other_size):
        rows = rows_of(reader, [dataclasses.replace(part, parts=(moved,))])
        assert numbers(rows) == list(range(1_000))


def test_a_file_that_is_not_here_is_an_error_where_nothing_else_is_allowed(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 1_000))
    sealed(orders, 1)
    data_source = source(url, access="local")
    reader = data_source.reader(data_source.schema())
    (part,) = reader.partitions()
    assert isinstance(part, EventRange)
    (file,) = part.parts
    assert isinstance(file, FileRows)
    missing_file = msgspec.structs.replace(file, path=f"{file.path}.elsewhere")

    with pytest.raises(InvalidArgument, match='access is "local"'):
        list(reader.read(dataclasses.replace(part, parts=(missing_file,))))


def test_a_damaged_file_is_noticed(url: str, orders: Channel, sealed: Sealed) -> None:
    orders.publish_many(events(0, 1_000))
    sealed(orders, 1)
    data_source = source(url, access="local")
    reader = data_source.reader(data_source.schema())
    parts = reader.partitions()
    (file,) = [f for p in parts if isinstance(p, EventRange) for f in p.parts]
    assert isinstance(file, FileRows)
    with Path(file.path).open("r+b") as damaged:
        damaged.seek(file.batches[0].offset + file.batches[0].length // 2)
        damaged.write(b"\xff\xff\xff\xff\xff\xff\xff\xff")

    with pytest.raises(Damaged, match=r"events 0-999: bytes .* fail their checksum"):
        list(reader.read(parts[0]))


def test_a_file_put_in_the_place_of_one_that_was_sound_is_looked_at_again(
    url: str, orders: Channel, sealed: Sealed, tmp_path: Path
) -> None:
    orders.publish_many(events(0, 1_000))
    sealed(orders, 1)
    data_source = source(url, access="local")
    reader = data_source.reader(data_source.schema())
    parts = reader.partitions()
    (file,) = [f for p in parts if isinstance(p, EventRange) for f in p.parts]
    assert isinstance(file, FileRows)
    assert sum(batch.num_rows for batch in reader.read(parts[0])) == 1_000

    rotten = bytearray(Path(file.path).read_bytes())
    rotten[file.batches[0].offset + file.batches[0].length // 2] ^= 0xFF
    (tmp_path / "rotten").write_bytes(rotten)
    (tmp_path / "rotten").replace(file.path)
    with pytest.raises(Damaged, match="fail their checksum"):
        list(reader.read(parts[0]))


def test_a_missing_channel_is_named(url: str) -> None:
    with pytest.raises(NameDoesNotExist, match=r"no channel 'orders'; create it first"):
        source(url).schema()


def test_events_over_the_wire_are_of_the_channel_that_was_planned(
    url: str, client: Session, orders: Channel
) -> None:
    orders.publish_many(events(0, 10))
    data_source = source(url)
    reader = data_source.reader(data_source.schema())
    parts = reader.partitions()
    client.channels.delete("orders")
    client.channels.create("orders").publish_many(events(0, 10))

    with pytest.raises(IllegalState, match="deleted and created again"):
        rows_of(reader, parts)


# --- stream -------------------------------------------------------------------------------


def stream(url: str, **options: str) -> ChannelStreamReader:
    data_source = source(url, **options)
    return data_source.streamReader(data_source.schema())


def position(offset: dict[str, Any]) -> int:
    (channel,) = offset["c"].values()
    return int(channel["n"])


def drive(
    reader: ChannelStreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> list[tuple[int, list[int]]]:
    """Micro-batches until nothing is new: where each one ends, and what it has read."""
    reader.prepareForTriggerAvailableNow()
    batches = []
    limit = limit or reader.getDefaultReadLimit()
    while (end := reader.latestOffset(start, limit)) != start:
        rows = rows_of(reader, reader.partitions(start, end))
        batches.append((position(end), numbers(rows)))
        reader.commit(end)
        start = end
    return batches


def test_a_stream_reads_in_portions_and_stops_where_it_was_told(
    url: str, orders: Channel, sealed: Sealed
) -> None:
    orders.publish_many(events(0, 2_500))
    sealed(orders, 2)
    reader = stream(url, startingOffsets="earliest", maxEventsPerTrigger="1000")

    batches = drive(reader, reader.initialOffset())

    assert [end for end, _ in batches] == [1_000, 2_000, 2_500]
    assert [n for _, part in batches for n in part] == list(range(2_500))


def test_what_comes_after_the_stream_was_told_to_stop_waits_for_the_next_run(
    url: str, orders: Channel
) -> None:
    orders.publish_many(events(0, 10))
    reader = stream(url, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    orders.publish_many(events(10, 20))

    end = reader.latestOffset(start, ReadAllAvailable())
    assert position(end) == 10
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert position(reader.reportLatestOffset()) == 20


def test_a_stream_begins_at_the_end_unless_told_otherwise(url: str, orders: Channel) -> None:
    orders.publish_many(events(0, 10))

    assert position(stream(url).initialOffset()) == 10
    assert position(stream(url, startingOffsets="3").initialOffset()) == 3
    orders.purge(end=4)
    assert position(stream(url, startingOffsets="earliest").initialOffset()) == 5


def test_removed_events_at_the_front_cost_no_micro_batches(url: str, orders: Channel) -> None:
    orders.publish_many(events(0, 2_000))
    reader = stream(url, startingOffsets="0", maxEventsPerTrigger="100", failOnDataLoss="false")
    start = reader.initialOffset()
    orders.purge(end=1_899)

    assert drive(reader, start) == [(2_000, list(range(1_900, 2_000)))]


def test_a_stream_waits_for_events_and_wakes_when_there_are_some(
    url: str, realm: penstock.Realm, orders: Channel
) -> None:
    reader = stream(url)
    start = reader.initialOffset()

    assert reader.latestOffset(start, ReadMaxRows(10)) == start
    orders.publish_many(events(0, 3))
    assert position(reader.latestOffset(start, ReadMaxRows(10))) == 3


def test_a_position_is_text_that_does_not_change(url: str, orders: Channel) -> None:
    reader = stream(url)
    offset = reader.initialOffset()

    assert list(offset) == ["c", "v"]
    assert list(offset["c"]["orders"]) == ["e", "n"]
    assert reader.latestOffset(offset, ReadMaxRows(10)) == offset


def test_a_channel_created_again_is_refused(url: str, client: Session, orders: Channel) -> None:
    orders.publish_many(events(0, 10))
    reader = stream(url)
    start = reader.initialOffset()
    client.channels.delete("orders")
    client.channels.create("orders").publish_many(events(0, 20))

    with pytest.raises(IllegalState, match="not the channel of this checkpoint"):
        reader.latestOffset(start, ReadMaxRows(10))


@pytest.mark.spec("C1d")
def test_a_position_from_before_the_ids_began_again_is_refused(tmp_path: Path) -> None:
    def published(realm: penstock.Realm, kind: penstock.ChannelType) -> None:
        with realm.connect() as session:
            names = session.channels
            orders = names.get("orders") if names.list() else names.create("orders", type=kind)
            orders.publish_many(events(0, 10))

    kinds: tuple[tuple[penstock.ChannelType, bool], ...] = (("simple", True), ("reliable", False))
    for kind, begin_again in kinds:
        with penstock.Realm(tmp_path / kind) as realm:
            published(realm, kind)
            reader = stream(realm.listen(), startingOffsets="earliest")
            position = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
            assert reader.latestOffset(position, ReadAllAvailable()) == position
            disconnect()
        with penstock.Realm(tmp_path / kind) as realm:
            published(realm, kind)
            published(realm, kind)  # now its ids reach beyond the position
            url = realm.listen()
            if begin_again:
                with pytest.raises(IllegalState, match="ids restarted with the realm"):
                    stream(url).latestOffset(position, ReadAllAvailable())
            lenient = stream(url, failOnDataLoss="false")
            end = lenient.latestOffset(position, ReadAllAvailable())
            rows = rows_of(lenient, lenient.partitions(position, end))
            assert numbers(rows) == [*range(10), *range(10)]
            disconnect()


def test_a_position_of_another_channel_or_format_is_refused(url: str, orders: Channel) -> None:
    reader = stream(url)
    offset = reader.initialOffset()
    limit = ReadMaxRows(10)

    with pytest.raises(InvalidArgument, match="for channel trades, the query reads orders"):
        reader.latestOffset({"c": {"trades": offset["c"]["orders"]}, "v": 1}, limit)
    with pytest.raises(InvalidArgument, match="positions of format 2"):
        reader.latestOffset({**offset, "v": 2}, limit)


def test_a_position_ahead_of_the_channel_is_refused(url: str, orders: Channel) -> None:
    reader = stream(url)
    ahead = reader.initialOffset()
    ahead["c"]["orders"]["n"] = 100

    with pytest.raises(IllegalState, match=r"is at event 100, .* will be 0"):
        reader.latestOffset(ahead, ReadMaxRows(10))


def test_a_start_in_the_future_waits_for_its_event(url: str, orders: Channel) -> None:
    reader = stream(url, startingOffsets="5")
    start = reader.initialOffset()
    orders.publish_many(events(0, 8))

    end = reader.latestOffset(start, ReadMaxRows(10))
    rows = rows_of(reader, reader.partitions(start, end))
    assert [row["event_id"] for row in rows] == [5, 6, 7]


def test_a_property_that_comes_later_does_not_disturb_a_running_stream(
    url: str, orders: Channel
) -> None:
    orders.publish_many(events(0, 2))
    reader = stream(url, startingOffsets="earliest")
    start = reader.initialOffset()
    orders.publish(properties={"n": 2, "late": "x"})
    orders.publish(properties={"n": "three"})

    end = reader.latestOffset(start, ReadMaxRows(10))
    assert numbers(rows_of(reader, reader.partitions(start, end))) == [0, 1, 2, None]


def test_a_wider_number_fits_the_column_a_running_stream_has_or_ends_it(
    url: str, orders: Channel
) -> None:
    orders.publish(properties={"n": np.int32(1)})
    reader = stream(url, startingOffsets="earliest")
    start = reader.initialOffset()
    orders.publish(properties={"n": 2})
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert numbers(rows_of(reader, reader.partitions(start, end))) == [1, 2]
    orders.publish(properties={"n": 1 << 40})

    wide = reader.latestOffset(end, ReadMaxRows(10))
    with pytest.raises(InvalidArgument, match=r"column n .* start the query again"):
        rows_of(reader, reader.partitions(end, wide))
    again = stream(url)
    assert numbers(rows_of(again, again.partitions(end, wide))) == [1 << 40]


# --- the channel's columns ----------------------------------------------------------------


def test_the_columns_of_a_channel_survive_a_restart(tmp_path: Path, sealed: Sealed) -> None:
    def columns(session: Session) -> Any:
        return session.channels.get("orders").columns()

    with penstock.Realm(tmp_path / "two") as realm, realm.connect() as session:
        orders = session.channels.create(
            "orders", type="persistent", storage={"events_per_spindle": 1_000}
        )
        orders.publish_many(events(0, 1_000))
        sealed(orders, 1)
        orders.publish(properties={"n": "text", "late": 1.5})
        before = columns(session)
        assert before.field("properties").type.names == ["n", "third", "n::string", "late"]
    with penstock.Realm(tmp_path / "two") as realm, realm.connect() as session:
        assert columns(session).equals(before, check_metadata=True)


def test_a_session_that_was_closed_is_opened_again(url: str, orders: Channel) -> None:
    data_source = source(url)
    where = source_options(data_source.options, data_source.default_url).where
    ask(where, lambda link: link.channel.name)
    for session in sessions.values():
        session.close()

    assert ask(where, lambda link: link.channel.name) == "orders"
