"""A malicious realm cannot make a client that exports, backs up or copies write other files than it
expects."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import penstock
from packages.server.tests.transfers.moving import Start, events
from penstock.client.sync.sync import Session
from penstock_core.api.backup_files import is_data_file
from penstock_core.api.transfers import BackupBegun, CapturedFile, ExportedBytes
from penstock_core.columns.files.exports import STATE
from penstock_core.vocabulary.errors import DamagedBackup, DamagedExport, InvalidArgument
from penstock_core.vocabulary.ports import inline
from penstock_server.runtime.transfer.backups import Backups
from penstock_server.runtime.transfer.exports import Exports

ELSEWHERE = [
    "../outside",
    "/outside",
    "events/../../outside",
    "registry/../../outside",
    "segments/orders.1/../../../outside",
    "outside",
    ".bashrc",
    "registry/.bashrc",
    "events/a\nb.arrow",
    "audit.ndjson/outside",
    "manifest.json",
    "backup.json",
    "",
    ".",
    "segments/" + "x" * 300 + "/1.arrow",
]


@pytest.fixture
def stocked(source_session: Session) -> Session:
    source_session.channels.create("orders", type="persistent").publish_many(events(5))
    return source_session


def all_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class LyingExports(Exports):
    """Answers what ``lie`` makes of each part that was read."""

    lie: Callable[[ExportedBytes, int], ExportedBytes]

    async def read(self, session: str, name: str, file: int, offset: int) -> ExportedBytes:
        return self.lie(await super().read(session, name, file=file, offset=offset), offset)


def lying(realm: penstock.Realm, lie: Callable[[ExportedBytes, int], ExportedBytes]) -> None:
    """Have the realm lie about its exports."""
    running = realm.running
    exports = LyingExports(
        running.shard, running.blobs, running.clock, offload=inline, realm=running.identity
    )
    exports.lie, running.exports = lie, exports


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ELSEWHERE, STATE])
def test_an_export_writes_only_files_an_export_has(
    realm: penstock.Realm, stocked: Session, tmp_path: Path, name: str
) -> None:
    before = all_below(tmp_path)
    lying(realm, lambda part, _: replace(part, file=replace(part.file, name=name)))

    with pytest.raises(DamagedExport, match="which cannot be part of an export"):
        stocked.channels.export("orders", tmp_path / "export")
    assert [path for path in all_below(tmp_path) if not path.startswith("here")] == [
        path for path in before if not path.startswith("here")
    ]


@pytest.mark.parametrize(
    "lie",
    [
        lambda part, _: replace(part, content=b""),
        lambda part, _: replace(part, content=part.content + b"x"),
        lambda part, _: replace(part, file=replace(part.file, size=1 << 60)),
        lambda part, _: replace(part, file=replace(part.file, size=0)),
    ],
)
def test_an_export_ends_whatever_sizes_the_realm_sends(
    realm: penstock.Realm,
    stocked: Session,
    tmp_path: Path,
    lie: Callable[[ExportedBytes, int], ExportedBytes],
) -> None:
    lying(realm, lie)

    with pytest.raises(DamagedExport):
        stocked.channels.export("orders", tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_an_export_is_for_its_owner_alone(stocked: Session, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        stocked.channels.export("orders", tmp_path / "export")
    finally:
        os.umask(before)

    modes = {
        stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "export", *(tmp_path / "export").rglob("*"))
        if path.is_file()
    }
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "export").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "export" / "events").stat().st_mode) == 0o700


class LyingBackups(Backups):
    """Answers a backup with some changes."""

    changes: dict[str, object]

    async def begin(self, session: str, version: str) -> BackupBegun:
        return replace(await super().begin(session, version), **self.changes)


def captured(realm: penstock.Realm, **changes: object) -> None:
    """Have the realm answer backups with these changes."""
    running = realm.running
    backups = LyingBackups(
        running.shard,
        running.blobs,
        running.clock,
        offload=inline,
        realm=running.identity,
        name=running.name,
    )
    backups.capture, backups.changes = running.backups.capture, changes
    running.backups = backups


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("to", ["backup", "backup.tar"])
def test_a_backup_writes_only_files_a_data_directory_has(
    realm: penstock.Realm, stocked: Session, tmp_path: Path, to: str, name: str
) -> None:
    captured(realm, files=(CapturedFile(name, 5, 0),))

    with pytest.raises(DamagedBackup, match="which cannot be part of a data directory"):
        stocked.back_up(tmp_path / to)
    assert not is_data_file(name)
    assert all_below(tmp_path / "backup") == []
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("at_us", [-1, 1 << 62])
def test_a_backup_of_no_time_is_refused(
    realm: penstock.Realm, stocked: Session, tmp_path: Path, at_us: int
) -> None:
    captured(realm, at_us=at_us)

    with pytest.raises(DamagedBackup, match="which is not a valid time"):
        stocked.back_up(tmp_path / "backup")


def test_a_copy_writes_only_files_a_realm_has(
    realm: penstock.Realm, stocked: Session, tmp_path: Path
) -> None:
    from penstock_server.bootstrap.copies import copy_files

    captured(realm, files=(CapturedFile("segments/../../outside", 5, 0),))

    with pytest.raises(InvalidArgument, match="which cannot be part of a data directory"):
        copy_files(stocked, str(tmp_path / "copy"))
    assert all_below(tmp_path / "copy") == []


def test_foreign_files_are_not_backed_up(start: Start, tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data") as realm, realm.connect() as session:
        session.channels.create("orders").publish(b"x")
        (tmp_path / "data" / "registry" / "a note").write_text("of somebody")
        session.back_up(tmp_path / "backup")

    kept = [path.name for path in (tmp_path / "backup").rglob("*")]
    assert "format" in kept
    assert "a note" not in kept
