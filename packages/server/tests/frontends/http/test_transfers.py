"""A channel goes down as one file and comes up as it was, or not at all."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Reply, Web, part
from penstock_server.frontends.http.routing import TAR
from penstock_server.runtime.transfer.tar import MANIFEST_BYTES_MAX


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    made = session.channels.create("shop/orders", capacity=50, retain_consumed=True)
    made.publish_many([penstock.Event(b"x" * n, properties={"n": n}) for n in range(60)])
    billing = made.durables.create("billing", start="earliest")
    billing.fetch(3, timeout=10)[1].ack()
    billing.flush()
    return made


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Web]:
    """A realm on disk whose events are in segment files."""
    with (
        penstock.Realm(tmp_path / "data", storage__seal_interval_ms=10) as realm,
        realm.connect() as session,
    ):
        jobs = session.queues.create("jobs")
        for start in range(0, 20_000, 5_000):
            jobs.push_many(
                [penstock.Event(bytes(200), properties={"n": start + n}) for n in range(5_000)]
            )
        yield Web(realm.listen_http())


def export(web: Web, path: str) -> bytes:
    reply = web.ask("GET", f"{path}/export")
    assert reply.status == 200, reply.data
    assert reply.headers["content-type"] == TAR
    assert int(reply.headers["content-length"]) == len(reply.data)
    return reply.data


def send(web: Web, tar: bytes, **query: str) -> Reply:
    return web.ask("POST", "imports", tar, headers={"content-type": TAR}, **query)


def test_an_imported_channel_equals_the_exported_one(
    web: Web, session: penstock.Session, orders: penstock.Channel
) -> None:
    tar = export(web, f"channels/{part(orders.name)}")

    reply = send(web, tar, name="copy")

    assert reply.status == 201, reply.data
    assert (reply.document["name"], reply.document["events"]) == ("copy", 50)
    plain = {"content-type": "application/octet-stream"}  # what clients call a file of any kind
    assert web.ask("POST", "imports", tar, headers=plain, name="other").status == 201
    copy = session.channels.get("copy")
    assert [(e.event_id, e.data) for e in copy.browse()] == [
        (e.event_id, e.data) for e in orders.browse()
    ]
    was, copied_info = orders.durables.get("billing").info(), copy.durables.get("billing").info()
    assert (copied_info.outstanding, copied_info.type) == (was.outstanding, was.type)
    assert copy.info().counters == orders.info().counters


def test_unpacked_it_is_the_folder_of_an_export(
    web: Web, session: penstock.Session, orders: penstock.Channel, tmp_path: Path
) -> None:
    with tarfile.open(fileobj=io.BytesIO(export(web, f"channels/{part(orders.name)}"))) as tar:
        tar.extractall(tmp_path / "down", filter="data")

    assert session.channels.import_from(tmp_path / "down", "from-folder").info().events == 50

    session.channels.export(orders.name, tmp_path / "up")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        tar.add(tmp_path / "up" / "events", "./events", recursive=False)
        names = ["manifest.json", "state.msgpack"]
        names += sorted(f"events/{path.name}" for path in (tmp_path / "up" / "events").iterdir())
        for name in names:
            tar.add(tmp_path / "up" / name, f"./{name}")
    assert send(web, packed.getvalue(), name="from-tar").status == 201


def test_a_queue_in_files_goes_and_comes(stored: Web) -> None:
    tar = export(stored, "queues/jobs")

    assert len(tar) > 1 << 20
    assert send(stored, tar, name="again").document["definition"]["kind"] == "queue"
    assert stored.get("queues/again")["events"] == 20_000


@pytest.mark.parametrize("kept", [0, 100, 512, 3_000, -2_000])
def test_half_an_export_is_none(web: Web, orders: penstock.Channel, kept: int) -> None:
    tar = export(web, f"channels/{part(orders.name)}")

    reply = send(web, tar[:kept], name="copy")

    assert (reply.status, reply.code) == (422, "damaged-export")
    assert web.ask("GET", "channels/copy").status == 404


def test_a_changed_byte_is_seen(web: Web, orders: penstock.Channel) -> None:
    tar = bytearray(export(web, f"channels/{part(orders.name)}"))
    tar[-4_000] ^= 1

    reply = send(web, bytes(tar), name="copy")

    assert (reply.status, reply.code) == (422, "damaged-export")
    assert web.ask("GET", "channels/copy").status == 404


def test_data_that_is_not_an_export_is_refused_with_a_remedy(web: Web) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("readme"))
    huge = tarfile.TarInfo("manifest.json")
    huge.size = MANIFEST_BYTES_MAX + 1

    for content in (packed.getvalue(), huge.tobuf(tarfile.USTAR_FORMAT), b"x" * 600):
        reply = send(web, content)
        assert (reply.status, reply.code) == (422, "damaged-export")
        assert "manifest.json" in reply.reason
    assert web.ask("POST", "imports", {}).status == 415


def test_a_name_that_is_taken_is_refused(web: Web, orders: penstock.Channel) -> None:
    reply = send(web, export(web, f"channels/{part(orders.name)}"))

    assert (reply.status, reply.code) == (409, "name-already-bound")
    assert orders.info().events == 50


def test_an_early_disconnect_leaves_no_files(stored: Web) -> None:
    for _ in range(20):  # more than may be under way at once
        with stored.raw() as peer:
            peer.sendall(b"GET /api/v1/queues/jobs/export HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert peer.recv(100).startswith(b"HTTP/1.1 200")

    assert stored.ask("GET", "queues/jobs/export").status == 200
