"""A backup in one file, and back from there."""

from __future__ import annotations

import stat
import tarfile
from pathlib import Path

import pytest

import penstock
from penstock.client.copies.backup import restore
from penstock_core.vocabulary.errors import DamagedBackup, IllegalState, InvalidArgument


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    file = tmp_path / "realm.tar"
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish_many([penstock.Event(str(n).encode()) for n in range(100)])
        session.back_up(file)
        orders.publish(b"later")
    return file


@pytest.mark.slow
def test_what_was_backed_up_is_restored(tmp_path: Path, backup: Path) -> None:
    manifest = restore(backup, tmp_path / "restored")

    with penstock.Realm(tmp_path / "restored") as realm, realm.connect() as session:
        events = [event.data for event in session.channels.get("orders").browse()]
    assert events == [str(n).encode() for n in range(100)]
    assert manifest.files
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert not backup.with_name("realm.tar.partial").exists()


def test_it_is_a_tar_with_its_manifest_last(backup: Path) -> None:
    with tarfile.open(backup) as tar:
        assert tar.getnames()[-1] == "backup.json"


def test_a_file_that_ends_early_or_was_altered_leaves_nothing(tmp_path: Path, backup: Path) -> None:
    complete_bytes = backup.read_bytes()
    with tarfile.open(backup) as tar:
        largest = max(tar.getmembers(), key=lambda member: member.size)
    altered = bytearray(complete_bytes)
    altered[largest.offset_data] ^= 1
    for content in (complete_bytes[: largest.offset_data + 10], bytes(altered), b"no tar", b""):
        backup.write_bytes(content)
        with pytest.raises(DamagedBackup):
            restore(backup, tmp_path / "restored")
        assert not list((tmp_path / "restored").glob("*"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "the manifest ends too early"),
        (b'{"format": "one"}', "format must be an integer"),
        (b'{"version": "\xc1"}', "the manifest must be UTF-8"),
    ],
)
def test_an_error_about_an_unreadable_manifest_names_the_fault(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    folder = tmp_path / "backup"
    folder.mkdir()
    (folder / "backup.json").write_bytes(content)

    with pytest.raises(DamagedBackup, match=rf"backup\.json cannot be read: {reason}"):
        restore(folder, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_a_backup_that_cannot_be_made_leaves_the_one_before(tmp_path: Path, backup: Path) -> None:
    before = backup.read_bytes()
    (tmp_path / "folder.tar").mkdir()
    with penstock.Realm() as realm, realm.connect() as session:
        with pytest.raises(IllegalState):
            session.back_up(backup)
        with pytest.raises(InvalidArgument, match="is a folder"):
            session.back_up(tmp_path / "folder.tar")

    assert backup.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "folder.tar", "realm.tar"]
