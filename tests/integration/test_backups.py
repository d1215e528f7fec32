"""Backups of a realm that runs: whole, of one moment, and refused where they cannot be."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.client.copies.backup import restore
from penstock_core.api.transfers import BeginBackup
from penstock_core.vocabulary.errors import (
    DamagedBackup,
    IllegalState,
    InvalidArgument,
    Unavailable,
)
from penstock_server.bootstrap.stopped import verify_store
from penstock_server.cli.program import app
from penstock_testing.process import ServerProcess
from tests.asking import ask

QUICK = {
    "PENSTOCK_STORAGE_SEAL_INTERVAL_MS": "1",
    "PENSTOCK_STORAGE_JOURNAL_BYTES": str(1 << 20),
    "PENSTOCK_STORAGE_SEGMENT_BYTES": "65536",
}
"""Segments, growing files and snapshots come and go all the time."""

ROWS = 500
KINDS: dict[str, penstock.ChannelAttributes] = {
    "spindles": {"storage": {"events_per_spindle": 1_000}},
    "single": {"storage": {"events_per_spindle": 0}},
    "packed": {"storage": {"events_per_spindle": 1_000, "compression": "zstd"}},
    "packed/single": {"storage": {"events_per_spindle": 0, "compression": "lz4"}},
    "paged": {"type": "paged"},
    "short": {"capacity": 5_000, "storage": {"events_per_spindle": 1_000}},
}


class Publisher(threading.Thread):
    """Publishes numbered rows to every channel until told to stop; knows what is acknowledged."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self.acknowledged = 0
        """Rows of each channel."""
        self.is_ended = threading.Event()
        self.has_begun = threading.Event()

    def run(self) -> None:
        with penstock.connect(self._url) as session:
            channels = [session.channels.get(name) for name in KINDS]
            while not self.is_ended.is_set():
                first = self.acknowledged
                rows = pa.table({"n": range(first, first + ROWS)})
                for channel in channels:
                    channel.publish_table(rows)
                self.acknowledged += ROWS
                self.has_begun.set()


def numbers(session: penstock.Session, name: str) -> list[int]:
    table = session.channels.get(name).read(columns=["n"])
    return list(table.column("n").to_pylist())


@pytest.mark.process
@pytest.mark.slow
def test_a_backup_while_events_come_has_all_that_was_acknowledged_and_is_of_one_moment(
    tmp_path: Path,
) -> None:
    backup, checked = tmp_path / "backup", []
    with (
        ServerProcess(tmp_path / "data", environment=QUICK) as server,
        penstock.connect(server.url) as session,
    ):
        for name, attributes in KINDS.items():
            session.channels.create(name, **attributes)
        session.channels.get("spindles").durables.create("team")
        publisher = Publisher(server.url)
        publisher.start()
        publisher.has_begun.wait()
        for round_ in range(3):
            before = publisher.acknowledged
            session.back_up(backup)
            restore(backup, tmp_path / f"restored-{round_}")
            checked.append((tmp_path / f"restored-{round_}", before))
        publisher.is_ended.set()
        publisher.join()

    for directory, acknowledged in checked:
        report = asyncio.run(verify_store(directory))
        assert report.findings == []
        with penstock.Realm(directory) as realm, realm.connect() as session:
            for name in KINDS:
                stored = numbers(session, name)
                assert stored == list(range(stored[0], stored[-1] + 1)), name
                assert stored[-1] >= acknowledged - 1, name
                assert stored[0] == 0 or name == "short"
            team = session.channels.get("spindles").durables.get("team").info()
            assert team.outstanding == len(numbers(session, "spindles"))


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        session.channels.create("orders").publish(b"precious")
        session.back_up(tmp_path / "backup")
    return tmp_path / "backup"


@pytest.mark.slow
def test_what_is_in_the_backup_already_is_not_read_again(tmp_path: Path) -> None:
    quick = {"storage__seal_interval_ms": 1}
    with penstock.Realm(tmp_path / "data", **quick) as realm, realm.connect() as session:
        orders = session.channels.create("orders", storage={"events_per_spindle": 100})
        orders.publish_table(pa.table({"n": range(1_000)}))
        while orders.info().storage.sealed_files < 10:
            pass
        first = session.back_up(tmp_path / "backup")
        orders.publish(b"one more")
        second = session.back_up(tmp_path / "backup")

    assert first.files_read == first.files
    assert second.files - second.files_read == 10
    restore(tmp_path / "backup", tmp_path / "restored")
    with penstock.Realm(tmp_path / "restored") as realm, realm.connect() as session:
        assert session.channels.get("orders").info().events == 1_001


def test_a_backup_of_another_realm_is_not_written_over(tmp_path: Path, backup: Path) -> None:
    with (
        penstock.Realm(tmp_path / "other") as realm,
        realm.connect() as session,
        pytest.raises(InvalidArgument, match="another realm"),
    ):
        session.back_up(backup)
    restore(backup, tmp_path / "restored")


def test_a_backup_that_failed_does_not_hold_up_the_next(tmp_path: Path, backup: Path) -> None:
    with penstock.Realm(tmp_path / "other") as realm, realm.connect() as session:
        with pytest.raises(InvalidArgument, match="another realm"):
            session.back_up(backup)

        assert session.back_up(tmp_path / "own").files


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("")
    with (
        penstock.Realm(tmp_path / "data") as realm,
        realm.connect() as session,
        pytest.raises(InvalidArgument, match="it contains dear"),
    ):
        session.back_up(tmp_path / "letters")


def test_a_realm_in_memory_has_nothing_to_back_up(tmp_path: Path) -> None:
    with (
        penstock.Realm() as realm,
        realm.connect() as session,
        pytest.raises(IllegalState, match="in memory only, so it cannot be backed up"),
    ):
        session.back_up(tmp_path / "backup")


def test_one_backup_at_a_time_and_it_ends_with_its_connection(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as second:
        with realm.connect() as first:
            ask(first, BeginBackup())
            with pytest.raises(Unavailable, match="another backup is running"):
                second.back_up(tmp_path / "backup")
        assert second.back_up(tmp_path / "backup").files


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [flip, shorten, Path.unlink])
def test_a_damaged_backup_is_refused_and_nothing_is_left(
    tmp_path: Path, backup: Path, damage: Callable[[Path], object]
) -> None:
    damage(next(backup.glob("*/journal/*.log")))

    with pytest.raises(DamagedBackup, match="journal/"):
        restore(backup, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_manifest_that_leads_outside_is_refused(tmp_path: Path, backup: Path) -> None:
    manifest = json.loads((backup / "backup.json").read_text())
    manifest["files"][0]["name"] = "../elsewhere"
    (backup / "backup.json").write_text(json.dumps(manifest))

    with pytest.raises(DamagedBackup, match="cannot be a file of a data directory"):
        restore(backup, tmp_path / "restored")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/hostname",
        "../data/registry/format",
        "1/../../data/registry/format",
        "kept/../backup.json",
        "backup.json",
    ],
)
def test_a_manifest_that_reads_elsewhere_is_refused(
    tmp_path: Path, backup: Path, path: str
) -> None:
    manifest = json.loads((backup / "backup.json").read_text())
    manifest["files"][0]["path"] = path
    (backup / "backup.json").write_text(json.dumps(manifest))

    with pytest.raises(DamagedBackup, match="outside a backup"):
        restore(backup, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.slow
def test_commands_back_up_restore_and_refuse_a_folder_in_use(tmp_path: Path) -> None:
    run = CliRunner()
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        session.channels.create("orders").publish(b"precious")
        backup = ["store", "backup", str(tmp_path / "backup"), "--url", realm.listen()]
        made = run.invoke(app, backup)
    again = ["store", "restore", str(tmp_path / "backup"), str(tmp_path / "restored")]
    restored, refused = run.invoke(app, again), run.invoke(app, again)

    assert "everything acknowledged before" in made.stdout
    assert restored.exit_code == 0
    assert "1 events" in restored.stdout
    assert refused.exit_code == 1
    assert "is not empty" in refused.stderr
