"""A whole channel or queue goes to another realm through a folder (SEM C7)."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from packages.server.tests.transfers.moving import (
    Start,
    ask,
    events,
    files_in,
    halfway,
    read_whole,
    refusal,
)
from penstock.client.sync.sync import Session
from penstock_core.api.transfers import BeginExport, EndExport, ExportBegun, ReadExport
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.wire.native import messages as wire
from penstock_testing.peers import RawPeer
from tests.patience import until

pytestmark = [pytest.mark.spec("C7"), pytest.mark.slow]


TYPES = ("persistent", "mixed", "reliable", "simple", "off_heap", "paged")


@pytest.mark.parametrize(
    ("type_", "storage"),
    [
        *((type_, {}) for type_ in TYPES),
        *(("mixed", {"events_per_spindle": rows}) for rows in (40, 0)),
        *(("persistent", {"events_per_spindle": rows}) for rows in (40, 0)),
        ("persistent", {"events_per_spindle": 40, "compression": "zstd"}),
        ("mixed", {"events_per_spindle": 0, "compression": "lz4"}),
    ],
)
def test_an_imported_channel_equals_the_exported_one(
    source_session: Session,
    target_session: Session,
    folder: Path,
    type_: penstock.ChannelType,
    storage: Any,
) -> None:
    orders = source_session.channels.create("eu/orders", type=type_, storage=storage)
    for more in ({}, {"late": 1.5}, {"late": "text"}):
        orders.publish_many(events(50, **more))
    halfway(orders)
    source_session.channels.export("eu/orders", folder)
    moved = target_session.channels.import_from(folder, "moved")

    assert moved.read().equals(orders.read())
    assert moved.columns().equals(orders.columns())
    there_info, here_info = moved.info(), orders.info()
    assert there_info.definition == here_info.definition
    assert there_info.counters == here_info.counters
    assert (there_info.events, there_info.last_event_id) == (here_info.events, 149)
    before, after = (channel.durables.get("billing").info() for channel in (orders, moved))
    assert (after.outstanding, after.redelivered) == (before.outstanding, before.redelivered)
    assert after.position == before.position


@pytest.mark.parametrize("type_", ["persistent", "mixed", "paged"])
def test_the_imported_channel_lives_on_and_survives_a_restart(
    source_session: Session, start: Start, tmp_path: Path, folder: Path, type_: penstock.ChannelType
) -> None:
    orders = source_session.channels.create("orders", type=type_)
    orders.publish_many(events(100))
    halfway(orders)
    source_session.channels.export("orders", folder)
    with penstock.Realm(tmp_path / "there") as realm, realm.connect() as importing:
        moved = importing.channels.import_from(folder)
        assert moved.publish_many(events(60)) == range(100, 160)
        with moved.durables.get("billing").subscribe(window=1, timeout=30.0) as held:
            first = next(iter(held))
            first.ack()
            assert (first.event_id, first.redelivery_count) == (0, 1)
        rows = moved.read().num_rows
        lasting = moved.read(selector="JMSDeliveryMode = 'PERSISTENT'").num_rows
        outstanding = moved.durables.get("billing").info().outstanding
    assert rows == outstanding
    again = start("there").connect()
    moved = again.channels.get("orders")
    table, info = moved.read(), moved.info()

    expected = lasting if type_ == "mixed" else rows
    assert table.num_rows == info.events == expected
    assert info.counters.published == info.events + info.counters.departed_count
    assert moved.durables.get("billing").info().outstanding == expected
    assert moved.publish(b"next") == 160
    again.close()


def test_an_exported_queue_keeps_its_rolled_back_events(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    work = source_session.queues.create("work", type="persistent")
    for n in range(5):
        work.push(b"%d" % n)
    with work.reader(transactional=True) as reader:
        (event,) = reader.fetch(1, timeout=30.0)
        reader.rollback()
    source_session.queues.export("work", folder)
    moved = target_session.queues.import_from(folder)
    with moved.reader(transactional=True) as reader:
        (again,) = reader.fetch(1, timeout=30.0)

    assert (again.event_id, again.data) == (event.event_id, event.data) == (0, b"0")
    assert again.redelivery_count == event.redelivery_count + 1
    assert moved.info().counters.published == 5


def test_publishers_own_ttls_and_publish_keys_are_kept(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    prices = source_session.channels.create("prices", type="mixed", keys={"n": 1})
    prices.publish_many(events(30))
    prices.publish(b"lasting", properties={"n": 7}, ttl=3_600_000)
    source_session.channels.export("prices", folder)
    moved = target_session.channels.import_from(folder)
    moved.publish_many(events(10))

    events_by_id = {event.event_id: event for event in moved.browse()}
    assert len(events_by_id) == 30
    assert sorted(event.properties["n"] for event in events_by_id.values()) == list(range(30))
    assert events_by_id[31].data == b"0"  # it has replaced the one from before
    stamps = [event.headers for event in prices.browse()]
    assert events_by_id[31].headers == stamps[0] != {}
    publisher = stamps[0]["publisher"]  # another realm's word (SEM E3)
    assert events_by_id[11].headers == {**stamps[0], "publisher": f"imported:{publisher}"}


def test_a_publish_repeated_after_the_move_is_stored_once(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    orders = source_session.channels.create("orders", type="persistent")
    table = pa.table({"n": [1, 2, 3]})
    stored = orders.commit_stages(orders.stage(table), producer="job", sequence=7)
    source_session.channels.export("orders", folder)
    moved = target_session.channels.import_from(folder)

    assert moved.commit_stages([], producer="job", sequence=7) == stored
    assert moved.read().num_rows == 3


def test_the_events_are_plain_arrow_files(source_session: Session, folder: Path) -> None:
    orders = source_session.channels.create("orders", type="persistent")
    orders.publish_many(events(100))
    source_session.channels.export("orders", folder)
    (path,) = (folder / "events").iterdir()
    table = pa.ipc.open_file(path).read_all()

    assert path.name == f"{0:020d}-{99:020d}.arrow"
    assert table.column("event_id").to_pylist() == list(range(100))
    assert table.column("properties").combine_chunks().field("n").to_pylist() == list(range(100))


def test_an_empty_channel_can_be_exported(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    orders = source_session.channels.create("orders", start_event_id=40)
    orders.publish_many(events(2))
    orders.purge()
    source_session.channels.export("orders", folder)
    moved = target_session.channels.import_from(folder)

    assert (moved.info().events, moved.info().counters.purged) == (0, 2)
    assert moved.publish(b"") == 42


# --- with concurrent traffic ---------------------------------------------------------------


def test_an_export_under_traffic_is_the_channel_at_one_instant(
    source_session: Session, target_session: Session, folder: Path
) -> None:
    orders = source_session.channels.create(
        "orders", type="mixed", storage={"events_per_spindle": 200}
    )
    durable = orders.durables.create("billing", type="shared", start="earliest")
    ended, acknowledged = threading.Event(), threading.Event()

    def publish() -> None:
        while not ended.is_set():
            orders.publish_many(events(37))

    def consume() -> None:
        with durable.subscribe(window=10_000, timeout=5.0) as held:
            for number, event in enumerate(held):
                if number % 5:
                    event.ack()
                if number == 2_000:
                    acknowledged.set()
                if ended.is_set():
                    return

    threads = [threading.Thread(target=action) for action in (publish, consume)]
    for thread in threads:
        thread.start()
    try:
        assert acknowledged.wait(120)
        written = source_session.channels.export("orders", folder)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    moved = target_session.channels.import_from(folder)
    info, table = moved.info(), moved.read()

    assert written.events == info.events == table.num_rows
    assert info.counters.published == info.last_event_id + 1 == info.events + info.counters.consumed
    assert info.counters.published % 37 == 0  # whole publishes only
    ids = table.column("event_id").to_pylist()
    assert ids == sorted(set(ids))
    again = moved.durables.get("billing")
    assert again.info().outstanding == len(ids)
    with again.subscribe(window=1_000, timeout=30.0) as held:
        assert sorted(event.event_id or 0 for _, event in zip(ids, held, strict=False)) == ids


def test_captured_events_stay_readable_after_their_removal(
    realm: penstock.Realm, source_session: Session, tmp_path: Path
) -> None:
    orders = source_session.channels.create(
        "orders", type="persistent", storage={"events_per_spindle": 50}
    )
    orders.publish_many(events(120))
    until(lambda: orders.info().storage.sealed_files == 2)
    with RawPeer(realm.listen()) as peer:
        peer.greet()
        begun = ask(peer, BeginExport("orders"), ExportBegun)
        orders.purge()
        source_session.channels.delete("orders")
        assert files_in(tmp_path / "here") == []

        columns = [
            read_whole(peer, ReadExport(begun.export, number, 0)) for number in range(begun.files)
        ]
    ids = [pa.ipc.open_file(content).read_all().column("event_id") for content in columns]
    assert pa.chunked_array([chunk for array in ids for chunk in array.chunks]).to_pylist() == list(
        range(120)
    )


def test_an_export_belongs_to_its_connection(
    realm: penstock.Realm, source_session: Session
) -> None:
    source_session.channels.create("orders").publish(b"")
    url = realm.listen()
    with RawPeer(url) as peer, RawPeer(url) as second_peer:
        peer.greet("one")
        second_peer.greet("other")
        begun = ask(peer, BeginExport("orders"), ExportBegun)
        read = ReadExport(begun.export, 0, 0)

        assert refusal(second_peer, read).code == IllegalState.code
        assert refusal(second_peer, EndExport(begun.export)).code == IllegalState.code
        peer.say(wire.Asked(2, EndExport(begun.export)))
        peer.hear(wire.Done)
        assert "is not running" in refusal(peer, read).text


def test_an_export_is_read_in_order_and_within_its_files(
    realm: penstock.Realm, source_session: Session
) -> None:
    source_session.channels.create("orders").publish(b"")
    with RawPeer(realm.listen()) as peer:
        peer.greet()
        begun = ask(peer, BeginExport("orders"), ExportBegun)

        assert "read last" in refusal(peer, ReadExport(begun.export, 1, 0)).text
        assert "has files 0 to 1" in refusal(peer, ReadExport(begun.export, 2, 0)).text
        assert "no byte" in refusal(peer, ReadExport(begun.export, 0, 1 << 40)).text
