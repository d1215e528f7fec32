"""Only the realm's user may read verifiers and the audit log."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import penstock
from penstock.client.copies.backup import restore
from penstock_server.storage.secrecy import mend

MODES = {
    "access__mode": "mandatory",
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
}


@pytest.fixture
def loose() -> Iterator[None]:
    """A process whose umask hides no file from other users."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def secrets_in(root: Path) -> list[Path]:
    return [*(root / "registry").iterdir(), *root.glob("audit*.ndjson")]


@pytest.mark.usefixtures("loose")
def test_secrets_are_created_for_the_realms_user_only(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with capture_logs() as logged, penstock.Realm(root, **MODES):
        pass

    assert {path.name for path in secrets_in(root)} > {"audit.ndjson", "access%2Fusers"}
    assert {mode(path) for path in secrets_in(root)} == {0o600}
    assert mode(root / "registry") == 0o700
    assert [line for line in logged if line["event"].startswith("secrets.")] == []


@pytest.mark.slow
@pytest.mark.usefixtures("loose")
def test_restored_secrets_are_for_the_realms_user_only(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data", **MODES) as realm, realm.connect() as session:
        session.channels.create("orders").publish(b"x")
        session.back_up(tmp_path / "backup")
    restored = tmp_path / "restored"

    restore(tmp_path / "backup", restored)

    assert {mode(path) for path in (restored / "registry").iterdir()} == {0o600}
    assert mode(restored / "registry") == 0o700
    with capture_logs() as logged, penstock.Realm(restored, **MODES):
        pass
    assert [line for line in logged if line["event"].startswith("secrets.")] == []


@pytest.mark.usefixtures("loose")
def test_events_stay_readable_for_the_group(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "data"):
        pass

    assert mode(tmp_path / "data" / "segments") == 0o750


@pytest.mark.slow
def test_readable_secrets_are_corrected_at_the_start_and_logged(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with penstock.Realm(root, **MODES):
        pass
    exposed = [root / "registry" / "access%2Fusers", root / "audit.ndjson"]
    for path in exposed:
        path.chmod(0o644)
    (root / "registry").chmod(0o755)

    with capture_logs() as logged, penstock.Realm(root, **MODES):
        pass

    assert {mode(path) for path in exposed} == {0o600}
    assert mode(root / "registry") == 0o700
    modes = {line["path"]: line["mode"] for line in logged if line["event"] == "secrets.mended"}
    assert modes == {
        str(root / "registry"): "0755",
        **{str(path): "0644" for path in exposed},
    }


def test_permissions_that_cannot_be_corrected_are_logged_and_do_not_end_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "audit.ndjson").touch(0o600)
    (tmp_path / "audit.ndjson").chmod(0o666)

    def chmod(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", chmod)
    with capture_logs() as logged:
        mend(str(tmp_path))

    [entry] = logged
    assert (entry["event"], entry["log_level"]) == ("secrets.exposed", "error")
    assert "not permitted" in entry["reason"]


def test_links_lead_nowhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    elsewhere.chmod(0o644)
    (tmp_path / "audit-1.ndjson").symlink_to(elsewhere)

    mend(str(tmp_path))

    assert mode(elsewhere) == 0o644
