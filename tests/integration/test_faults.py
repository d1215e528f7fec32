"""Ports and directories taken, directories from the future, full disks: said, and survived."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.client.sync.sync import Channel
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.storage.embedded.records import encode_record
from penstock_testing.process import ServerDidNotStart, ServerProcess

MIB = 1 << 20


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """What a full disk is to a realm in this process: no file gets more room than ``size``.

    More than the journal has reserved already, which a full disk would not take away either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_port_that_is_taken_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied, penstock.Realm() as realm:
        port = occupied.getsockname()[1]

        with pytest.raises(penstock.AddressInUse, match=f"port {port} .* another port"):
            realm.listen(port=port)

        with penstock.connect(realm.listen()) as session:
            assert session.channels.list() == []


@pytest.mark.process
def test_a_server_whose_port_is_taken_says_so_and_ends(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "first") as first:
        with pytest.raises(ServerDidNotStart, match=rf"exit status 1,[\s\S]*port {first.port} "):
            ServerProcess(tmp_path / "second", "--port", str(first.port)).start()

        assert first.is_running


@pytest.mark.process
def test_a_data_directory_in_use_is_refused_and_names_who_has_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "realm") as first:
        with pytest.raises(penstock.DataDirectoryInUse, match=f"process {first.pid}"):
            penstock.Realm(tmp_path / "realm")
        with pytest.raises(ServerDidNotStart, match=r"exit status 1,[\s\S]*in use|open"):
            ServerProcess(tmp_path / "realm").start()

        with penstock.connect(first.url) as session:
            assert session.channels.list() == []


def test_a_data_directory_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        session.channels.create("orders", type="persistent").publish(b"one")
    written = (tmp_path / "registry" / "format").read_bytes()
    newer = encode_record(VersionedRecord(7, b'{"format": 12}'))
    (tmp_path / "registry" / "format").write_bytes(newer)

    with pytest.raises(penstock.NewerFormat, match="format 12"):
        penstock.Realm(tmp_path)

    (tmp_path / "registry" / "format").write_bytes(written)
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        assert session.channels.get("orders").info().events == 1


def publish_on_and_on(channel: Channel, stored: list[int]) -> None:
    for _ in range(200):
        stored += channel.publish_many([penstock.Event(data=bytes(MIB))] * 2)


@pytest.mark.slow
@pytest.mark.spec("E4", "X1")
def test_a_full_disk_refuses_publishes_and_nothing_else(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        stored = list(orders.publish_many([penstock.Event(data=bytes(MIB))] * 3))
        with files_no_larger_than(20 * MIB):
            with pytest.raises(penstock.StorageFailed):
                publish_on_and_on(orders, stored)

            assert session.channels.list() == ["orders"]
            assert orders.info().last_event_id == stored[-1]
            assert [event.event_id for event in orders.browse()] == stored
            with pytest.raises(penstock.StorageFailed):
                orders.publish_many([penstock.Event(data=bytes(MIB))] * 30)
            assert orders.info().last_event_id == stored[-1]

        stored += orders.publish_many([penstock.Event(data=bytes(MIB))] * 2)

        assert stored == list(range(len(stored)))
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        events = session.channels.get("orders").browse()
        assert [(event.event_id, len(event.data)) for event in events] == [
            (event_id, MIB) for event_id in stored
        ]


@pytest.mark.slow
def test_a_pipelined_producer_hears_of_a_full_disk_and_goes_on_after_it(tmp_path: Path) -> None:
    refused: list[tuple[type[penstock.PenstockError], int]] = []
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders", type="persistent")
        orders.publish(bytes(MIB))
        producer = orders.producer(
            batch_events=2, on_error=lambda error, count: refused.append((type(error), count))
        )
        with producer:
            with files_no_larger_than(20 * MIB):
                for _ in range(200):
                    producer.send(bytes(MIB))
                producer.flush()
            lost = sum(count for _, count in refused)
            assert {kind for kind, _ in refused} == {penstock.StorageFailed}
            assert producer.acknowledged == 200 - lost == orders.info().events - 1

            producer.send(b"after")
            producer.flush()

        assert producer.acknowledged == 201 - lost
        assert [event.data for event in orders.browse(start=201 - lost)] == [b"after"]
