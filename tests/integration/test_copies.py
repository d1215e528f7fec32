"""Copies of a realm's sealed files: whole, brought up to date, of one realm, and read by Spark."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.client.copies.copy_files import LABEL
from penstock.client.copies.object_store_uri import place
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, StorageFailed
from penstock_core.vocabulary.ports import Buffer
from penstock_server.bootstrap.copies import blobs_at, copy_files
from penstock_server.cli.program import app
from penstock_server.cli.shared.stopping import INTERRUPTED
from penstock_server.storage.file_systems import FileSystemBlobs
from penstock_testing.process import search_path
from tests.objects import ObjectStore, object_store
from tests.patience import until

pytestmark = pytest.mark.slow

PER_FILE = 100
QUICK = {"storage__seal_interval_ms": 1}


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[penstock.Realm]:
    with penstock.Realm(tmp_path / "data", **QUICK) as running:
        yield running


@pytest.fixture
def session(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as connected:
        yield connected


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


def publish(session: Session, files: int, name: str = "orders") -> Channel:
    """Publish events that fill ``files`` more files, and wait until these are sealed. Return the
    channel."""
    if name not in session.channels.list():
        session.channels.create(name, type="persistent", storage={"events_per_spindle": PER_FILE})
    channel = session.channels.get(name)
    wanted = channel.info().storage.sealed_files + files
    channel.publish_table(pa.table({"n": range(files * PER_FILE)}))
    sealed(channel, wanted)
    return channel


def sealed(channel: Channel, files: int) -> None:
    """Wait until the channel has so many files. The disk may be busy for seconds."""
    until(lambda: channel.info().storage.sealed_files == files)


def sealed_files(data: Path) -> dict[str, bytes]:
    """The sealed files of a data directory."""
    return {f"{p.relative_to(data)}": p.read_bytes() for p in data.glob("segments/**/*.arrow")}


def copied(store: ObjectStore, place: str) -> dict[str, bytes]:
    content_by_name = {
        name.removeprefix(f"{place}/"): content for name, content in store.objects.items()
    }
    content_by_name.pop(LABEL, None)
    return {name: content for name, content in content_by_name.items() if name.endswith(".arrow")}


def test_only_what_is_new_is_copied(session: Session, store: ObjectStore, tmp_path: Path) -> None:
    uri = store.uri("bucket/realm")
    publish(session, 3)
    first = copy_files(session, uri)
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")
    assert (first.files, first.files_copied, first.bytes_copied) == (3, 3, first.bytes)

    store.requests.clear()
    again = copy_files(session, uri)
    assert (again.files, again.files_copied, again.bytes_copied) == (3, 0, 0)
    assert store.requests_of("PUT", "") == []
    assert [n for n, _ in store.requests_of("GET", ".arrow")] == [], "known by their stamps"

    publish(session, 2)
    more = copy_files(session, uri)
    assert (more.files, more.files_copied) == (5, 2)
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")


def test_a_file_that_has_grown_is_exchanged_as_a_whole(
    session: Session, store: ObjectStore, tmp_path: Path
) -> None:
    uri = store.uri("bucket/realm")
    publish(session, 2)
    copy_files(session, uri)
    name = min(copied(store, "bucket/realm"))
    store.objects[f"bucket/realm/{name}"] = store.objects[f"bucket/realm/{name}"][:-100]

    assert copy_files(session, uri).files_copied == 1
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")


def test_a_file_that_is_another_one_of_the_same_length_is_noticed_without_its_stamp(
    session: Session, store: ObjectStore, tmp_path: Path
) -> None:
    uri = store.uri("bucket/realm")
    publish(session, 2)
    copy_files(session, uri)
    label = json.loads(store.objects[f"bucket/realm/{LABEL}"])
    store.objects[f"bucket/realm/{LABEL}"] = json.dumps({**label, "stamps": {}}).encode()
    name = min(copied(store, "bucket/realm"))
    content = store.objects[f"bucket/realm/{name}"]
    store.objects[f"bucket/realm/{name}"] = content[:-20] + bytes(20)

    assert copy_files(session, uri).files_copied == 1, "the other one is known by its end"
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "the label ends too early"),
        (b'{"realm": 1, "name": "", "stamps": {}}', "realm must be a string"),
        (b'{"realm": "\xc1"}', "the label must be UTF-8"),
    ],
)
def test_a_label_that_cannot_be_read_is_told_by_what_is_wrong_in_it(
    session: Session, store: ObjectStore, content: bytes, reason: str
) -> None:
    store.objects[f"bucket/realm/{LABEL}"] = content

    with pytest.raises(InvalidArgument, match=rf"cannot be read: {reason}.*; give an empty"):
        copy_files(session, store.uri("bucket/realm"))
    assert copied(store, "bucket/realm") == {}


def test_files_the_realm_has_no_more_are_removed_when_that_is_said(
    session: Session, store: ObjectStore, tmp_path: Path
) -> None:
    uri = store.uri("bucket/realm")
    orders = publish(session, 3)
    copy_files(session, uri)
    orders.purge(end=2 * PER_FILE - 1)
    sealed(orders, 1)
    while len(sealed_files(tmp_path / "data")) > 1:  # bytes leave after the facts
        session.info()

    unpruned = copy_files(session, uri)
    assert (unpruned.files, unpruned.files_left, unpruned.files_removed) == (1, 2, 0)
    pruned = copy_files(session, uri, prune=True)
    assert (pruned.files, pruned.files_left, pruned.files_removed) == (1, 0, 2)
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")


def test_a_copy_that_was_broken_off_goes_on(
    session: Session, store: ObjectStore, tmp_path: Path
) -> None:
    class Breaks(FileSystemBlobs):
        files_left = 4  # the label, and three files

        async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
            if not self.files_left:
                raise StorageFailed("the network is gone")
            self.files_left -= 1
            await super().put(name, chunks)

    blobs = blobs_at(store.uri("bucket/realm"), "--to")
    destination = place(store.uri("bucket/realm"), "--to")
    breaks = Breaks(*destination, offload=asyncio.to_thread)
    publish(session, 5)
    with pytest.raises(StorageFailed, match="network is gone"):
        session.copy_files(breaks)
    assert len(copied(store, "bucket/realm")) == 3

    done = session.copy_files(blobs)
    assert (done.files, done.files_copied) == (5, 2)
    assert copied(store, "bucket/realm") == sealed_files(tmp_path / "data")
    assert session.back_up(tmp_path / "backup").files > 5, "the copy that failed is over"


def test_a_place_that_is_something_else_is_left_alone(
    session: Session, store: ObjectStore, tmp_path: Path
) -> None:
    uri = store.uri("bucket/realm")
    publish(session, 1)
    copy_files(session, uri)
    before = dict(store.objects)
    with penstock.Realm(tmp_path / "other") as other_realm, other_realm.connect() as own_session:
        publish(own_session, 1)
        with pytest.raises(InvalidArgument, match=r"a copy of another realm, .* its own folder"):
            copy_files(own_session, uri, prune=True)
        with pytest.raises(InvalidArgument, match="is the data directory of a realm"):
            copy_files(session, f"file://{tmp_path}/other", prune=True)
    store.objects["bucket/elsewhere/segments/a/1.arrow"] = b"precious"
    with pytest.raises(
        InvalidArgument,
        match=r"contains segments/a/1\.arrow .*, so it is not a copy",
    ):
        copy_files(session, store.uri("bucket/elsewhere"), prune=True)
    store.objects.pop("bucket/elsewhere/segments/a/1.arrow")

    assert store.objects == before


def test_a_realm_in_memory_has_no_files(store: ObjectStore) -> None:
    with penstock.Realm() as realm, realm.connect() as session, pytest.raises(IllegalState):
        copy_files(session, store.uri("bucket/realm"))


def test_a_store_that_refuses_is_told_without_its_secrets(
    session: Session, store: ObjectStore
) -> None:
    store.refuses = True
    with pytest.raises(StorageFailed, match="ACCESS_DENIED") as raised:
        copy_files(session, store.uri("bucket/realm"))
    assert "very-secret" not in str(raised.value)


# --- the command --------------------------------------------------------------------------


def test_the_command_says_what_it_did(
    realm: penstock.Realm, session: Session, tmp_path: Path
) -> None:
    publish(session, 2)
    command = ["store", "copy", "--to", f"file://{tmp_path}/copy", "--url", realm.listen()]
    first = CliRunner().invoke(app, command)
    second = CliRunner().invoke(app, [*command, "--format", "json"])

    assert first.exit_code == 0, first.output
    assert first.output.startswith("2 files, ")
    assert "; 2 files of " in first.output
    assert json.loads(second.output)["files_copied"] == 0
    assert sealed_files(tmp_path / "copy") == sealed_files(tmp_path / "data")


@pytest.mark.process
def test_a_copy_that_follows_takes_what_is_sealed_later(
    realm: penstock.Realm, session: Session, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "penstock", "store", "copy", "--follow", "--every", "0.1"]
    command += ["--to", f"file://{tmp_path}/copy", "--url", realm.listen()]
    publish(session, 1)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": search_path()}
    ) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            assert process.stdout.readline().startswith("1 file, ")
            publish(session, 1)
            assert process.stdout.readline().startswith("2 files, ")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == INTERRUPTED
        finally:
            process.kill()
    assert sealed_files(tmp_path / "copy") == sealed_files(tmp_path / "data")
