"""Files of users, rights and the audit log that rot while no server runs: nobody gets a right by
it, events are served as before, and what is left of the log is told."""

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


class Known(NamedTuple):
    directory: Path
    audit: list[AuditRecord]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A data directory with a user who may read one channel of two, and a log of how it came to
    be."""
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
    return Known(directory, audit)


def copied(known: Known, folder: Path) -> Path:
    target = folder / "realm"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(known.directory, target)
    return target


def served(session: penstock.Session, name: str) -> int:
    return sum(len(batch) for batch in session.channels.get(name).browse().batches())


def signed_in(realm: penstock.Realm, password: str) -> penstock.Session:
    return penstock.connect(realm.listen().replace("://", f"://alice:{password}@"))


def check_alice(realm: penstock.Realm) -> bool:
    """Whether she still has her rights; never has she more, nor anybody else hers."""
    with pytest.raises(AuthenticationFailed):
        signed_in(realm, "another")
    with pytest.raises(PenstockError) as refused:
        penstock.connect(realm.listen())
    assert refused.value.code in ("authentication-failed", "access-denied")
    try:
        session = signed_in(realm, PASSWORD.replace(" ", "%20"))
    except AccessDenied:
        return False
    with session:
        with pytest.raises((AccessDenied, NameDoesNotExist)):
            served(session, "secret")
        try:
            return served(session, "open") == EVENTS
        except (AccessDenied, NameDoesNotExist):
            return False


@pytest.mark.spec("A1", "A2", "S1")
@pytest.mark.parametrize("way", WAYS)
def test_damaged_users_let_nobody_in(known: Known, way: str, tmp_path: Path) -> None:
    for seed in range(SEEDS):
        directory = copied(known, tmp_path)
        done = spoil(directory, Random(seed), "registry", way=way, pattern="access%2Fusers")
        assert done is not None

        with pytest.raises(Damaged, match="access"), penstock.Realm(directory, **QUICK):
            pytest.fail(f"{done} was not noticed")


@pytest.mark.spec("A2", "S1")
@pytest.mark.parametrize("way", WAYS)
def test_damaged_rights_are_nobodys(known: Known, way: str, tmp_path: Path) -> None:
    kept = 0
    for seed in range(SEEDS):
        directory = copied(known, tmp_path)
        done = spoil(directory, Random(seed), "registry", way=way, pattern="access%2Fentries*")
        assert done is not None
        findings = asyncio.run(repair_store(directory)).findings
        assert any(Path(finding.file).name == Path(done.file).name for finding in findings), done
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as trusted:
            kept += check_alice(realm)
            assert served(trusted, "open") == served(trusted, "secret") == EVENTS

    assert kept < SEEDS


@pytest.mark.spec("S1")
@pytest.mark.parametrize("way", WAYS)
def test_of_a_damaged_audit_log_the_rest_is_told_and_it_goes_on(
    known: Known, way: str, tmp_path: Path
) -> None:
    for seed in range(SEEDS):
        directory = copied(known, tmp_path)
        done = spoil(directory, Random(seed), ".", way=way, pattern="audit.ndjson")
        assert done is not None
        lines = (known.directory / "audit.ndjson").read_bytes()
        before = lines[: done.at].count(b"\n")
        touched = 1 if way == "flip" else len(known.audit) - before
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
            assert check_alice(realm)
            found = session.access.audit(1_000)
            changed = [record for record in found if record not in known.audit]
            session.channels.delete("secret")
            newest = session.access.audit(1)[0]
        with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
            assert session.access.audit(1)[0] == newest

        assert changed == [], f"{done}: what was not written is not told"
        lost = [record for record in known.audit if record not in found]
        assert len(lost) <= touched + 1, f"{done}: {lost}"
        assert (newest.operation, newest.target) == ("channel.delete", "secret")
