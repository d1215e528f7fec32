"""Damaged files of users, rights and the audit log of a stopped server: no user gains a right,
events are served as before, and the intact part of the log remains readable."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

import penstock
from penstock_core.api.access import AuditRecord
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    Damaged,
    NameDoesNotExist,
    PenstockError,
)
from penstock_server.bootstrap.stopped import repair_store
from tests.faults.damage import WAYS, spoil

PASSWORD = "open sesame"
EVENTS = 50
SEEDS = 3
QUICK: dict[str, Any] = {
    "access__mode": "mandatory",
    "access__failure_delay_s": 0.0,
    "access__password_rounds": 4_096,
    "access__password_length_min": 1,
}

pytestmark = pytest.mark.slow


class Prepared(NamedTuple):
    directory: Path
    audit: list[AuditRecord]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A data directory with a user who may read one of two channels, and the audit log of its
    creation."""
    directory = tmp_path_factory.mktemp("access") / "realm"
    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        for name in ("open", "secret"):
            session.channels.create(name).publish_many([penstock.Event(b"event")] * EVENTS)
        session.access.create_user("alice", PASSWORD)
        session.access.create_group("ops", ["alice"])
        session.access.grant("alice@*", "access")
        session.access.grant("alice@*", "subscribe", channel="open")
        audit = session.access.audit(1_000)
    assert len(audit) >= 5
    return Prepared(directory, audit)


def copy_prepared(prepared: Prepared, folder: Path) -> Path:
    target = folder / "realm"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(prepared.directory, target)
    return target


def read_count(session: penstock.Session, name: str) -> int:
    return sum(len(batch) for batch in session.channels.get(name).browse().batches())


def sign_in(realm: penstock.Realm, password: str) -> penstock.Session:
    return penstock.connect(realm.listen().replace("://", f"://alice:{password}@"))


def check_alice(realm: penstock.Realm) -> bool:
    """Return whether Alice still has her rights. Fail if she has more, or if another user has
    hers."""
    with pytest.raises(AuthenticationFailed):
        sign_in(realm, "another")
    with pytest.raises(PenstockError) as refused:
        penstock.connect(realm.listen())
    assert refused.value.code in ("authentication-failed", "access-denied")
    try:
        session = sign_in(realm, PASSWORD.replace(" ", "%20"))
    except AccessDenied:
        return False
    with session:
        with pytest.raises((AccessDenied, NameDoesNotExist)):
            read_count(session, "secret")
        try:
            return read_count(session, "open") == EVENTS
        except (AccessDenied, NameDoesNotExist):
            return False


@pytest.mark.spec("A1", "A2", "S1")
@pytest.mark.parametrize("way", WAYS)
def test_damaged_users_let_nobody_in(prepared: Prepared, way: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        directory = copy_prepared(prepared, tmp_path)
        damage = spoil(directory, Random(seed), "registry", way=way, pattern="access%2Fusers")
        assert damage is not None

        with pytest.raises(Damaged, match="access"), penstock.Realm(directory, **QUICK):
            pytest.fail(f"{damage} was not noticed")


@pytest.mark.spec("A2", "S1")
@pytest.mark.parametrize("way", WAYS)
def test_damaged_rights_give_nobody_access(prepared: Prepared, way: str, tmp_path: Path) -> None:
    kept = 0
    for seed in range(SEEDS):
        directory = copy_prepared(prepared, tmp_path)
        damage = spoil(directory, Random(seed), "registry", way=way, pattern="access%2Fentries*")
        assert damage is not None
        findings = asyncio.run(repair_store(directory)).findings
        assert any(Path(finding.file).name == Path(damage.file).name for finding in findings), (
            damage
        )
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as trusted:
            kept += check_alice(realm)
            assert read_count(trusted, "open") == read_count(trusted, "secret") == EVENTS

    assert kept < SEEDS


@pytest.mark.spec("S1")
@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_audit_log_keeps_its_other_records_and_continues(
    prepared: Prepared, way: str, tmp_path: Path
) -> None:
    for seed in range(SEEDS):
        directory = copy_prepared(prepared, tmp_path)
        damage = spoil(directory, Random(seed), ".", way=way, pattern="audit.ndjson")
        assert damage is not None
        lines = (prepared.directory / "audit.ndjson").read_bytes()
        intact_lines = lines[: damage.offset].count(b"\n")
        touched = 1 if way == "flip" else len(prepared.audit) - intact_lines
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
            assert check_alice(realm)
            records = session.access.audit(1_000)
            changed = [record for record in records if record not in prepared.audit]
            session.channels.delete("secret")
            newest = session.access.audit(1)[0]
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
            assert session.access.audit(1)[0] == newest

        assert changed == [], f"{damage}: records that were never written"
        lost = [record for record in prepared.audit if record not in records]
        assert len(lost) <= touched + 1, f"{damage}: {lost}"
        assert (newest.operation, newest.target) == ("channel.delete", "secret")
