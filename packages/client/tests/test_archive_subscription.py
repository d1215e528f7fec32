"""Reading back into an archive: the same events under the same ids, no gap and no duplicate."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import penstock
import penstock.aio
from packages.client.tests.patience import eventually
from penstock.client.reading.archive import Archive
from penstock.client.sync.sync import Channel, Session, Subscription
from penstock.tables import Format
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    InvalidSelector,
    NameDoesNotExist,
)
from penstock_testing.relay import Relay
from tests.patience import PATIENCE_S

from .archiving import Archiver


@pytest.fixture
def session(realm: penstock.Realm) -> Session:
    return realm.connect()


def publish(channel: Channel, count: int, first: int = 0) -> None:
    channel.publish_many(
        [
            Event(
                f"d{n}".encode(),
                tag="even" if n % 2 == 0 else None,
                properties={"n": n, "note": f"x{n}"} if n % 3 else {"n": n, "gone": None},
                headers={"correlation_id": str(n)},
            )
            for n in range(first, first + count)
        ]
    )


@pytest.fixture(params=["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def archived(
    request: pytest.FixtureRequest, session: Session, orders: Channel, tmp_path: Path
) -> Archiver:
    """A channel with events 0 to 99: 60 are archived, the first 50 are there no more."""
    format: Format = request.param
    publish(orders, 100)
    archiver = Archiver(session, orders, tmp_path / "lake", format=format)
    archiver.move(30)
    archiver.move(50)
    archiver.take(60)
    orders.edit(archive=archiver.uri)
    return archiver


def ids(channel: Channel, count: int, **options: object) -> list[int]:
    event_ids: list[int] = []
    with channel.subscribe(**options) as reading:  # type: ignore[arg-type]  # as they are given
        while len(event_ids) < count and (batch := reading.next_batch(5)) is not None:
            event_ids += batch.event_ids.tolist()
        assert reading.next_batch(0) is None
    return event_ids


def test_a_subscription_begins_in_the_archive_and_goes_on_live(
    archived: Archiver, orders: Channel
) -> None:
    with orders.subscribe(start=0) as reading:
        events = iter(reading)
        first_events = [next(events) for _ in range(100)]
        publish(orders, 1, 100)
        first_events.append(next(events))

    assert [event.event_id for event in first_events] == list(range(101))
    for n, event in enumerate(first_events):
        assert event.data == f"d{n}".encode()
        assert event.tag == ("even" if n % 2 == 0 else None)
        assert event.properties == ({"n": n, "note": f"x{n}"} if n % 3 else {"n": n, "gone": None})
        assert event.headers.get("correlation_id") == str(n)
        assert event.headers == first_events[100].headers | {"correlation_id": str(n)}
    times = [event.published for event in first_events if event.published is not None]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("start", "first"), [(0, 0), (29, 29), (30, 30), (49, 49), (50, 50), (60, 60), (99, 99)]
)
def test_every_border_is_crossed_without_a_gap(
    archived: Archiver, orders: Channel, start: int, first: int
) -> None:
    assert ids(orders, 100 - first, start=start) == list(range(first, 100))


def test_earliest_is_the_archives_earliest(archived: Archiver, orders: Channel) -> None:
    assert ids(orders, 100, start="earliest") == list(range(100))
    assert ids(orders, 50, start="earliest", archive="") == list(range(50, 100))


def test_a_time_is_found_in_the_archive(session: Session, orders: Channel, tmp_path: Path) -> None:
    publish(orders, 10)
    publish(orders, 10, 10)
    archiver = Archiver(session, orders, tmp_path / "lake")
    archiver.move(20)
    publish(orders, 5, 20)
    orders.edit(archive=archiver.uri)
    with orders.subscribe(start=10) as reading:
        published = next(iter(reading)).published
    assert published is not None

    assert ids(orders, 15, start=published) == list(range(10, 25))
    assert ids(orders, 25, start=published - timedelta(days=400)) == list(range(25))
    assert ids(orders, 0, start=datetime.now(UTC) + timedelta(days=1)) == []


def test_a_selector_chooses_here_and_there(archived: Archiver, orders: Channel) -> None:
    expected = [n for n in range(100) if n % 2 == 0 and n > 20]
    assert ids(orders, len(expected), start=0, selector="tag = 'even' AND n > 20") == expected
    absent = [n for n in range(100) if n % 3 == 0]
    assert ids(orders, len(absent), start=0, selector="note IS NULL") == absent
    with pytest.raises(InvalidSelector):
        ids(orders, 1, start=0, selector="n >")


def test_a_table_of_both(archived: Archiver, orders: Channel) -> None:
    table = orders.read()
    assert table.column("event_id").to_pylist() == list(range(100))
    assert table.column("n").to_pylist() == list(range(100))
    assert table.column("note").null_count == 34
    assert orders.read(start=28, end=51).column("event_id").to_pylist() == list(range(28, 52))
    assert orders.read(start=3, end=5, columns=["data"]).to_pydict() == {
        "data": [b"d3", b"d4", b"d5"]
    }
    assert orders.read(start="earliest", archive="").num_rows == 50
    assert orders.read(start=70, end=99).num_rows == 30
    assert orders.read(start=1_000).num_rows == 0


def test_the_archive_is_named_and_shown(archived: Archiver, orders: Channel) -> None:
    assert orders.info().definition.archive == archived.uri
    orders.edit(archive="")
    assert ids(orders, 50, start=0) == list(range(50, 100))
    assert ids(orders, 100, start=0, archive=archived.uri) == list(range(100))
    with pytest.raises(InvalidArgument, match="it must be a path or URI of up to 2048"):
        orders.edit(archive="x" * 3_000)
    with pytest.raises(InvalidArgument, match="printable characters"):
        orders.edit(archive="a\nb")


def test_a_missing_archive_is_named_with_the_way_around(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 3)
    orders.edit(archive=str(tmp_path / "nowhere"))

    with pytest.raises(
        NameDoesNotExist, match="is not a table, neither Delta nor Parquet"
    ) as caught:
        ids(orders, 3, start=0)
    assert 'pass archive=""' in "".join(caught.value.__notes__)
    assert ids(orders, 0, start="latest") == [], "which no archive has"
    assert ids(orders, 3, start=0, archive="") == [0, 1, 2]


def test_another_channels_archive_is_refused_unless_it_is_named(
    archived: Archiver, session: Session, orders: Channel
) -> None:
    session.channels.delete("orders")
    again = session.channels.create("orders", archive=archived.uri)
    publish(again, 3)

    with pytest.raises(IllegalState, match="belongs to another channel than orders"):
        ids(again, 3, start=0)
    assert ids(again, 60, start=0, archive=archived.uri) == list(range(60))


def test_a_table_that_is_no_archive_is_refused(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    import pyarrow as pa

    from penstock.tables import Table

    Table.open(str(tmp_path), "parquet").append(pa.table({"event_id": [1]}), "app", 0)
    with pytest.raises(InvalidArgument, match="is not an archive of a channel"):
        ids(orders, 0, start=0, archive=str(tmp_path))


def test_what_neither_has_is_passed_over(archived: Archiver, orders: Channel) -> None:
    orders.purge(start=70, end=79)

    assert ids(orders, 90, start=0) == [*range(70), *range(80, 100)]


def test_events_that_move_while_they_are_read_are_found(
    archived: Archiver, orders: Channel
) -> None:
    with orders.subscribe(start=0) as reading:
        first = reading.next_batch()
        assert first is not None
        event_ids = first.event_ids.tolist()
        archived.move(95)  # behind the end of the archive as it was known
        while len(event_ids) < 100 and (batch := reading.next_batch(5)) is not None:
            event_ids += batch.event_ids.tolist()

    assert event_ids == list(range(100))


@pytest.mark.slow
def test_events_that_move_after_the_border_was_crossed_are_found(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    archiver = Archiver(session, orders, tmp_path / "lake")
    publish(orders, 20)
    archiver.move(20)
    for n in range(20, 20_020, 1_000):
        publish(orders, 1_000, n)
    orders.edit(archive=archiver.uri)
    event_ids: list[int] = []
    with orders.subscribe(start=0) as reading:
        while len(event_ids) < 20_020 and (batch := reading.next_batch(5)) is not None:
            event_ids += batch.event_ids.tolist()
            if 20 < len(event_ids) < 5_000:  # more than it may take at once is still there
                archiver.move(20_000)

    assert event_ids == list(range(20_020))


def test_reading_goes_on_when_files_are_compacted_away(archived: Archiver, orders: Channel) -> None:
    event_ids: list[int] = []
    with orders.subscribe(start=0) as reading:
        while len(event_ids) < 100 and (batch := reading.next_batch(5)) is not None:
            if not event_ids:
                archived.table.compact(keep_hours=0)
                archived.table.compact(keep_hours=0)
            event_ids += batch.event_ids.tolist()

    assert event_ids == list(range(100))


def test_a_loop_that_stops_leaves_the_rest_to_the_next(archived: Archiver, orders: Channel) -> None:
    event_ids: list[int] = []
    with orders.subscribe(start=0) as reading:
        for stop in (3, 33, 61, 100):
            for event in reading:
                assert event.event_id is not None
                event_ids.append(event.event_id)
                if len(event_ids) == stop:
                    break
    assert event_ids == list(range(100))


def test_a_subscription_that_is_opened_again_goes_on_where_it_was(
    archived: Archiver, orders: Channel
) -> None:
    reading = orders.subscribe(start=0)
    event_ids: list[int] = []
    for stop in (10, 45, 55, 80, 100):
        for event in reading:
            assert event.event_id is not None
            event_ids.append(event.event_id)
            if len(event_ids) == stop:
                break
        reading.close()
    assert event_ids == list(range(100))


def test_a_read_is_gone_through_again(archived: Archiver, orders: Channel) -> None:
    assert orders.read(start=10).num_rows == orders.read(start=10).num_rows == 90


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 12))]
)
def test_whatever_moves_meanwhile_each_event_comes_once(
    session: Session, orders: Channel, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    archiver = Archiver(session, orders, tmp_path / "lake")
    published, removed, event_ids = 30, 0, []
    publish(orders, 30)
    archiver.take(dice.randrange(1, 30))
    orders.edit(archive=archiver.uri)
    start = dice.randrange(30)
    with orders.subscribe(start=start) as reading:
        for _ in range(40):
            match dice.randrange(5):
                case 0:
                    count = dice.randrange(1, 50)
                    publish(orders, count, published)
                    published += count
                case 1:
                    archiver.take(dice.randrange(archiver.end, published + 1))
                case 2:
                    # The durable of the archive's pipeline allows only archived events to be
                    # removed.
                    removed = dice.randrange(removed, archiver.end + 1)
                    if removed:
                        orders.purge(end=removed - 1)
                case _:
                    if (batch := reading.next_batch(0)) is not None:
                        event_ids += batch.event_ids.tolist()
        while len(event_ids) < published - start and (batch := reading.next_batch(5)) is not None:
            event_ids += batch.event_ids.tolist()

    assert event_ids == list(range(start, published))


def test_a_browse_goes_back_when_it_is_told_to(archived: Archiver, orders: Channel) -> None:
    def event_ids(**options: object) -> list[int]:
        reading = orders.browse(**options)  # type: ignore[arg-type]  # as they are given
        return [event.event_id for event in reading if event.event_id is not None]

    assert event_ids(start=40, end=60) == list(range(50, 61))
    assert event_ids(start=40, end=60, archive=None) == list(range(40, 61))
    assert event_ids(start=40, end=44, archive=None) == list(range(40, 45))
    assert event_ids(start="earliest", archive=archived.uri) == list(range(100))


@pytest.mark.slow
@pytest.mark.spec("K5")
def test_the_state_of_a_key_comes_from_the_archives_history(
    session: Session, tmp_path: Path
) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"ccy": 1})
    archiver = Archiver(session, rates, tmp_path / "lake")
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    for n in range(1, 6):
        archiver.take(rates.info().last_event_id + 1)
        eur.update(bid=1.0 + n)
        if n == 3:
            rates.register("USD", bid=9.0)
    with pytest.raises(InvalidArgument, match="name an archive: a table, or a channel"):
        rates.state("EUR", as_of=2)
    rates.edit(archive=archiver.uri)

    assert [rates.state("EUR", as_of=n).properties["bid"] for n in range(4)] == [1.0, 2.0, 3.0, 4.0]
    then = rates.state("EUR", as_of=2)
    assert (then.event_id, then.found_in) == (2, archiver.uri)
    assert then.properties == {"ccy": "EUR", "bid": 3.0, "ask": 2.0}
    assert rates.state("EUR", as_of=4, archive=archiver.uri).event_id == 3
    assert rates.state("EUR").found_in == "rates"
    with pytest.raises(InvalidArgument, match="its states are newer, or were removed"):
        rates.state("USD", as_of=3)
    with pytest.raises(InvalidArgument, match="its states are newer"):
        rates.state(7, as_of=3)


def test_the_archive_of_a_merge_channel_is_its_history(session: Session, tmp_path: Path) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"ccy": 1})
    archiver = Archiver(session, rates, tmp_path / "lake")
    eur = rates.register("EUR", bid=1.0, ask=2.0)
    for n in range(1, 4):
        archiver.take(rates.info().last_event_id + 1)
        eur.update(bid=1.0 + n)
    rates.edit(archive=archiver.uri)

    with rates.subscribe(start=0, merged=True) as reading:
        events = iter(reading)
        event_ids = [next(events).properties for _ in range(4)]
        eur.update(ask=7.0)
        event_ids.append(next(events).properties)
    assert [row["bid"] for row in event_ids] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert event_ids[4] == {"ccy": "EUR", "bid": 4.0, "ask": 7.0}


def test_the_async_client_reads_back_too(tmp_path: Path) -> None:
    async def read(url: str) -> None:
        async with penstock.aio.connect(url) as session:
            channel = await session.channels.get("orders")
            table = await channel.read(start=2, end=8)
            assert table.column("event_id").to_pylist() == list(range(2, 9))
            event_ids = []
            async with channel.subscribe(start=0) as reading:
                async for event in reading:
                    event_ids.append(event.event_id)
                    if len(event_ids) == 10:
                        break
            assert event_ids == list(range(10))

    with penstock.Realm() as realm:
        with realm.connect() as writing:
            orders = writing.channels.create("orders")
            publish(orders, 10)
            archiver = Archiver(writing, orders, tmp_path / "lake")
            archiver.move(6)
            orders.edit(archive=archiver.uri)
        asyncio.run(read(realm.listen()))


def test_what_is_older_than_the_archive_comes_from_the_channel(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 100)
    archiver = Archiver(session, orders, tmp_path / "lake")
    archiver.end = 40  # it began late
    archiver.take(60)
    orders.purge(start=20, end=24)
    orders.purge(start=44, end=49)
    orders.edit(archive=archiver.uri)
    stored_numbers = [n for n in range(100) if not 20 <= n < 25]

    assert ids(orders, 95, start=0) == stored_numbers
    assert ids(orders, 95, start="earliest") == stored_numbers
    assert ids(orders, 85, start=10) == stored_numbers[10:]
    assert orders.read(start=0)["event_id"].to_pylist() == stored_numbers
    assert orders.read(start=0, end=22)["event_id"].to_pylist() == list(range(20))
    assert orders.read(start=0, end=42)["event_id"].to_pylist() == [
        n for n in stored_numbers if n <= 42
    ]
    assert orders.read(start=5, end=30)["event_id"].to_pylist() == [
        n for n in stored_numbers if 5 <= n <= 30
    ]
    archiver.table.compact()
    assert ids(orders, 95, start=datetime.fromtimestamp(0, UTC)) == stored_numbers


@pytest.mark.slow
def test_an_archive_that_is_named_is_read_whatever_the_channel_has(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 100)
    archiver = Archiver(session, orders, tmp_path / "lake")
    archiver.end = 40
    archiver.take(60)
    other_channel = session.channels.create("other", type="persistent")

    def read() -> list[int]:
        event_ids: list[int] = other_channel.read(start=0, archive=archiver.uri)[
            "event_id"
        ].to_pylist()
        return event_ids

    assert read() == list(range(40, 60))
    publish(other_channel, 10)
    assert read() == [*range(10), *range(40, 60)]
    assert ids(other_channel, 30, start=0, archive=archiver.uri) == [*range(10), *range(40, 60)]


def test_the_newest_first_goes_on_when_files_are_compacted_away(
    session: Session, orders: Channel, tmp_path: Path
) -> None:
    publish(orders, 30)
    archiver = Archiver(session, orders, tmp_path / "lake")
    for end in (10, 20, 30):
        archiver.take(end)

    newest = Archive.open(archiver.uri, "orders").newest(25)
    event_ids = [next(newest).event_ids.tolist()]
    archiver.table.compact(keep_hours=0)
    event_ids += [batch.event_ids.tolist() for batch in newest]

    assert [sorted(ids) for ids in event_ids] == event_ids
    assert sorted(n for ids in event_ids for n in ids) == list(range(25))
    assert event_ids[0] == list(range(20, 25))


def test_a_connection_that_is_lost_while_the_channel_is_asked_for_is_asked_once_on_the_next(
    relay: Relay, archived: Archiver
) -> None:
    with penstock.connect(relay.url) as session, ThreadPoolExecutor(1) as pool:
        orders = session.channels.get("orders")
        with orders.subscribe(start=0) as reading:
            event_ids: list[int] = []
            while len(event_ids) < 60:
                event_ids += _read_ids(reading)
            relay.hold_answers()
            request_bytes = relay.request_bytes
            waiting = pool.submit(_read_ids, reading)
            eventually(lambda: relay.request_bytes > request_bytes)
            relay.cut()
            relay.release_answers()
            event_ids += waiting.result(PATIENCE_S)
            while len(event_ids) < 100:
                event_ids += _read_ids(reading)

    assert event_ids == list(range(100))


def _read_ids(reading: Subscription) -> list[int]:
    batch = reading.next_batch(PATIENCE_S)
    assert batch is not None
    ids: list[int] = batch.event_ids.tolist()
    return ids
