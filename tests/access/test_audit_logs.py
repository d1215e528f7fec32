"""The contents of the audit logs: sign-ins, changes of edits, and refusals, which displace no other
records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

import penstock
from penstock_core.vocabulary.errors import AccessDenied, AuthenticationFailed, InvalidArgument
from penstock_server.cli.program import app
from penstock_server.runtime.access import audit as audit_module
from penstock_server.runtime.access.audit import COUNTS_MAX, OTHERS, REFUSALS_FIRST, Audit, NoFile
from penstock_server.storage.audit_file import FILE_BYTES_MAX, NAMES, FileAudit, files_of
from penstock_server.storage.disk import RealDisk
from tests.access.realms import QUICK
from tests.loops import on_a_loop

MINUTE_US = 60_000_000


async def inline(call: Callable[[], Any]) -> Any:
    return call()


class Clock:
    us = 1_800_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.now_us()


def opened(
    folder: Path, clock: Clock, files_max: int = 0, file_bytes_max: int = FILE_BYTES_MAX
) -> Audit:
    files = {
        kind: FileAudit(
            str(folder),
            disk=RealDisk(),
            offload=inline,
            name=NAMES[kind],
            files_max=files_max,
            file_bytes_max=file_bytes_max,
        )
        for kind in audit_module.KINDS
    }
    return Audit(clock, files)


def lines_of(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@on_a_loop
async def test_refusals_displace_no_acts_and_many_are_only_counted(
    tmp_path: Path,
) -> None:
    clock = Clock()
    audit = opened(tmp_path, clock)
    await audit.note("admin@h", "user.change", "alice")
    for _ in range(20_000):
        await audit.note("mallory@h", "user.change", "x", "access-denied")
    clock.us += MINUTE_US
    await audit.note("mallory@h", "realm.pause", "", "access-denied")
    acts, refusals = await audit.read(), await audit.read(kind="refusals")
    await audit.close()

    assert [record.target for record in acts] == ["alice"]
    assert [(record.operation, record.detail) for record in refusals[:2]] == [
        ("realm.pause", {}),
        ("user.change", {"more": 20_000 - REFUSALS_FIRST, "seconds": 60}),
    ]
    assert len(refusals) == REFUSALS_FIRST + 2
    assert len(lines_of(tmp_path, "audit-refusals.ndjson")) == len(refusals)


@on_a_loop
async def test_sign_ins_with_made_up_names_share_one_count(tmp_path: Path) -> None:
    audit = opened(tmp_path, Clock())
    for number in range(5_000):
        audit.record_later(f"user{number}@h", "sign_in", "authentication-failed")
    await audit.read()
    await audit.close()

    lines = lines_of(tmp_path, "audit-refusals.ndjson")

    assert len(lines) == COUNTS_MAX + 1
    assert lines[-1]["principal"] == OTHERS
    assert lines[-1]["detail"]["more"] == 5_000 - COUNTS_MAX


@on_a_loop
async def test_a_sign_in_that_is_refused_just_before_the_end_is_written(tmp_path: Path) -> None:
    audit = opened(tmp_path, Clock())
    audit.record_later("mallory@h", "sign_in", "authentication-failed")

    await audit.close()

    [line] = lines_of(tmp_path, "audit-refusals.ndjson")
    assert line["principal"] == "mallory@h"


class Broken(NoFile):
    """An audit file that fails once with an unexpected error."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._is_whole = False

    async def append(self, line: bytes) -> None:
        if not self._is_whole:
            self._is_whole = True
            raise LookupError("no such file")
        self.lines.append(line)


@on_a_loop
async def test_a_sign_in_that_fails_to_be_written_is_logged_and_the_next_is_kept() -> None:
    file = Broken()
    with capture_logs() as logged:
        audit = Audit(Clock(), {"sign-ins": file})
        for user in ("alice@h", "bob@h"):
            audit.record_later(user, "sign_in")
            await audit.read(kind="sign-ins")  # waits for what is under way
        await audit.close()

    assert [line["reason"] for line in logged if line["event"] == "audit.not_written"] == [
        "LookupError('no such file')"
    ]
    assert [json.loads(line)["principal"] for line in file.lines] == ["bob@h"]


@on_a_loop
async def test_a_clock_that_is_set_back_does_not_stop_the_counting(tmp_path: Path) -> None:
    clock = Clock()
    audit = opened(tmp_path, clock)
    for _ in range(REFUSALS_FIRST + 3):
        await audit.note("m@h", "user.change", "x", "access-denied")
    clock.us -= 10 * MINUTE_US
    await audit.note("m@h", "user.change", "y", "access-denied")
    await audit.close()
    newest, sums, *_ = await audit.read(kind="refusals")

    assert (newest.target, sums.detail["more"]) == ("y", 3)


def test_files_put_aside_end_by_the_setting_the_oldest_first(
    tmp_path: Path,
) -> None:
    async def life(count: int, files_max: int) -> None:
        audit = opened(tmp_path, Clock(), files_max, file_bytes_max=300)
        await audit.load()
        for number in range(count):
            await audit.note("admin@h", "user.change", f"user{number}")
        await audit.close()

    asyncio.run(life(20, 0))
    before = files_of(RealDisk(), str(tmp_path))[0]
    asyncio.run(life(4, 3))
    after = files_of(RealDisk(), str(tmp_path))[0]

    assert len(before) > 6
    assert len(after) == 4
    assert after[-1] == "audit.ndjson"
    assert after[0] not in before[:-4], "the newest stay"
    numbers = [line["number"] for name in after for line in lines_of(tmp_path, name)]
    assert numbers == list(range(numbers[0], 25))


def test_an_unknown_kind_of_audit_log_is_refused() -> None:
    with (
        penstock.Realm(access__mode="mandatory", **QUICK) as realm,
        realm.connect() as session,
        pytest.raises(InvalidArgument, match="the kinds are acts, sign-ins, refusals"),
    ):
        session.access.audit(kind="everything")


@pytest.fixture
def realm(tmp_path: Path) -> Any:
    with penstock.Realm(tmp_path / "data", access__mode="mandatory", **QUICK) as realm:
        yield realm


def test_sign_ins_are_written_once_an_hour_and_failed_ones_with_the_refusals(
    realm: penstock.Realm, tmp_path: Path
) -> None:
    url = realm.listen().replace("://", f"://admin:{realm.access.first_password}@")
    for _ in range(3):
        with penstock.connect(url) as session:
            session.info()
    with pytest.raises(AuthenticationFailed):
        penstock.connect(url.replace("admin:", "admin:not-"))

    with realm.connect() as session:
        sign_ins = session.access.audit(kind="sign-ins")
        refused = session.access.audit(kind="refusals")

    assert [(record.principal, record.operation, record.detail) for record in sign_ins] == [
        ("admin@127.0.0.1", "sign_in", {"how": "native", "proof": "password"})
    ]
    assert [(record.principal, record.outcome, record.detail) for record in refused] == [
        ("admin@127.0.0.1", "authentication-failed", {"how": "password"})
    ]
    realm.close()
    (_, more) = lines_of(tmp_path / "data", "audit-sign-ins.ndjson")
    assert more["detail"] == {"more": 2, "seconds": 3_600}


def newest_change(session: penstock.Session) -> tuple[str, str, dict[str, str]]:
    [newest] = session.access.audit(1)
    return newest.operation, newest.target, newest.detail.get("changed", {})


def test_the_record_of_an_edit_has_old_and_new_values(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        channel = session.channels.create("orders", ttl=1_000)
        channel.edit(ttl=5_000, capacity=10)
        edited = newest_change(session)
        channel.edit(capacity=10)
        same = newest_change(session)
        session.access.create_group("ops", ["alice"])
        session.access.change_group("ops", add=["bob"], remove=["alice"])
        group = newest_change(session)
        session.access.grant("group:ops", "subscribe", channel="orders")
        session.access.grant("group:ops", "publish", channel="orders")
        granted = newest_change(session)
        session.access.create_user("bob", "secret")
        made = newest_change(session)
        session.access.set_password("bob", "another")
        _, _, password = newest_change(session)

    assert edited[:2] == ("channel.edit", "orders")
    assert set(edited[2].values()) == {"1000 -> 5000", "0 -> 10"}
    assert same == ("channel.edit", "orders", {})
    assert group == ("group.change", "ops", {"members": "alice -> bob"})
    assert granted[2] == {"group:ops": "subscribe -> subscribe, publish"}
    assert made[2]["user"] == "nothing -> bob"
    assert list(password) == ["password"]
    assert "another" not in str(password)


def test_the_command_line_shows_each_log(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        session.channels.create("orders").edit(capacity=10)
    url = realm.listen().replace("://", f"://admin:{realm.access.first_password}@")

    def shown(*flags: str) -> str:
        result = CliRunner().invoke(app, ["audit", *flags], env={"PENSTOCK_URL": url})
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "capacity: 0 -> 10" in shown()
    assert "sign_in" in shown("--of", "sign-ins")
    assert shown("--of", "refusals") == "no refusals yet\n"


def verified(data: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["store", "verify", str(data), "--format", "json"])
    report: dict[str, Any] = msgspec.json.decode(result.stdout)
    return report


def test_verify_reports_changed_and_missing_audit_records(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    with penstock.Realm(data, access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            for name in ("a", "b", "c", "d", "e"):
                session.channels.create(name)
        url = realm.listen().replace("://", "://nobody:wrong@")
        with pytest.raises(AuthenticationFailed):
            penstock.connect(url)
    sound = verified(data)
    log = data / "audit.ndjson"
    first, *rest = log.read_bytes().splitlines(keepends=True)
    changed = rest[1].replace(b'"target":"b"', b'"target":"x"')
    log.write_bytes(b"".join([first, rest[0], changed, rest[2], *rest[4:]]))

    report = verified(data)

    assert sound["findings"] == []
    assert sound["audit_lines"] == 7
    assert [
        (finding["file"], finding["reason"].partition(":")[0]) for finding in report["findings"]
    ] == [
        ("audit.ndjson", "a line of the audit log"),
        ("audit.ndjson", "1 records before this one are missing from the audit log"),
    ]
    begins = len(first) + len(rest[0])
    assert report["findings"][0]["first_byte"] == begins
    assert report["findings"][0]["end_byte"] == begins + len(changed)


def test_acts_without_the_right_are_recorded_as_refusals(realm: penstock.Realm) -> None:
    with realm.connect() as trusted:
        trusted.access.create_user("alice", "secret")
        trusted.access.grant("alice@*", "access")
        with realm.connect(user="alice") as alice, pytest.raises(AccessDenied):
            alice.channels.create("orders")
        [refused] = trusted.access.audit(kind="refusals")
        acts = trusted.access.audit()

    assert (refused.operation, refused.target) == ("channel.create", "orders")
    assert all(record.outcome == "done" for record in acts)
