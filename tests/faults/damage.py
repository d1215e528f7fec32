"""Damaged files of a stopped server: every lost event must be reported, and no other event lost.

Each case damages one place of one file in a copy of a data directory whose events are known. Then
``store verify`` checks it, the real server starts on it, ``store repair`` repairs it, and the
server starts again. Every acknowledged event that is missing must be named by ``verify`` or
``channel.missing``; or its bytes lie where a finding reports damage; or its bytes are still stored,
and a finding reports damage to what refers to them. So no event disappears silently, and none has
other contents.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct

import penstock
from penstock.client.sync.sync import Destination, Session
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import PenstockError
from penstock_server.bootstrap.stopped import repair_store, verify_store
from penstock_server.runtime.upkeep.verification import Finding
from penstock_testing.process import ServerDidNotStart, ServerProcess
from tests.faults.checking import Events, some
from tests.faults.names import events_in, publisher_of
from tests.faults.processes import SETTINGS, environment

KINDS: Final = ("journal", "segments", "snapshots", "pages", "registry")
"""Folders of a data directory: the kinds of files."""
WAYS: Final = ("flip", "zeros", "cut")
PAGE_BYTES: Final = 4_096

Content = Mapping[str, Events]
"""The events of each channel."""


class Damage(Struct):
    """The damage of a file and its consequences."""

    kind: str
    way: str
    file: str
    offset: int
    missing: int = 0
    """Number of acknowledged events that are not served."""
    named: int = 0
    """Number of events named by id, as quarantined or unreadable."""
    placed: int = 0
    """Number of unnamed events whose bytes lie where a finding reports damage."""
    kept: int = 0
    """Number of other events, in intact or quarantined files, whose references are damaged."""
    refused: str = ""
    """Reason why the server did not start; "" if it did."""

    def __str__(self) -> str:
        return f"{self.way} of {self.file} at byte {self.offset}"


def spoil(
    directory: Path, random: Random, kind: str, way: str, pattern: str = "*"
) -> Damage | None:
    """Damage a file of a kind whose name matches ``pattern``. Return None if no file matches."""
    files = [path for path in sorted((directory / kind).rglob(pattern)) if path.is_file()]
    files = [path for path in files if path.name != "LOCK" and path.read_bytes().strip(b"\0")]
    if not files:
        return None
    path = random.choice(files)
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0"))
    offset = random.randrange(used)
    if way == "flip":
        content[offset] ^= 1 << random.randrange(8)
    elif way == "cut":
        del content[offset:]
    else:
        offset -= offset % PAGE_BYTES
        content[offset : offset + PAGE_BYTES] = bytes(len(content[offset : offset + PAGE_BYTES]))
    path.write_bytes(content)
    return Damage(kind, way, str(path.relative_to(directory)), offset=offset)


def check_damage(
    source: Path, folder: Path, expected: Content, damage: Damage, violations: list[str]
) -> None:
    """Run verify, the server and repair on a damaged copy of ``source`` in ``folder``, and check
    that no event is lost silently."""
    bytes_before = _bytes_of(source)
    findings = _verify(folder)
    served, reported = _serve(folder, expected, damage)
    if not damage.refused:
        lost = _compare(damage, expected, served, violations=violations)
        damage.missing = sum(map(len, lost.values()))
        reported_publishers = _publishers_in(_reported_bytes(bytes_before, findings, damage))
        kept_publishers = _publishers_in(_bytes_of(folder).values() if findings else ())
        for name, events in lost.items():
            named = _unreadable(findings, name)
            named.add_all(reported[name])
            by_id = [event_id for event_id in events if event_id in named]
            rest = [event_id for event_id in events if event_id not in named]
            unplaced = [
                event_id
                for event_id in rest
                if publisher_of(events[event_id]) not in reported_publishers
            ]
            lost_silently = [
                event_id
                for event_id in unplaced
                if publisher_of(events[event_id]) not in kept_publishers
            ]
            damage.named += len(by_id)
            damage.placed += len(rest) - len(unplaced)
            damage.kept += len(unplaced) - len(lost_silently)
            if lost_silently:
                violations.append(f"{damage}: silently gone from {name}: {some(lost_silently)}")
    repair_findings = _repair(folder, damage, violations)
    repaired, _ = _serve(folder, expected, None)
    _compare(damage, expected, repaired, violations=violations)
    if not damage.refused:
        for name, events in served.items():
            named_by_repair = _unreadable(repair_findings, name)
            lost_silently = [
                event_id
                for event_id in events
                if event_id not in repaired[name] and event_id not in named_by_repair
            ]
            if lost_silently:
                violations.append(
                    f"{damage}: served before the repair, gone after: {name} {some(lost_silently)}"
                )


def _compare(damage: Damage, expected: Content, served: Content, violations: list[str]) -> Content:
    """Return the missing events of each channel; report changed and invented ones."""
    lost: dict[str, Events] = {}
    for name, events in expected.items():
        stored = served[name]
        changed = [
            event_id
            for event_id in events
            if event_id in stored and stored[event_id] != events[event_id]
        ]
        invented = [event_id for event_id in stored if event_id not in events]
        if changed:
            violations.append(f"{damage}: other contents in {name}: {some(changed)}")
        if invented:
            violations.append(f"{damage}: never published to {name}: {some(invented)}")
        missing = {event_id: data for event_id, data in events.items() if event_id not in stored}
        if missing:
            lost[name] = missing
    return lost


def read_all(store: Destination) -> Events:
    """Return all events of a channel, by id."""
    events: dict[int, bytes] = {}
    for batch in store.browse().batches():
        datas = batch.to_arrow()["data"].to_pylist()
        events.update(zip(batch.event_ids.tolist(), datas, strict=True))
    return events


def _verify(folder: Path) -> list[Finding]:
    try:
        return asyncio.run(verify_store(folder)).findings
    except PenstockError as error:  # the error names the damage
        return [Finding("", str(error))]


def _serve(
    folder: Path, expected: Content, damage: Damage | None
) -> tuple[Content, Mapping[str, IdSet]]:
    """Return the content that a server serves, and the ids it reports as quarantined."""
    settings = {**environment(), **SETTINGS}
    try:
        with (
            ServerProcess(folder, environment=settings) as server,
            penstock.connect(server.url) as session,
        ):
            stores = {name: _store(session, name) for name in expected}
            content = {name: read_all(store) if store else {} for name, store in stores.items()}
            named = {
                name: _quarantined(store) if store else IdSet() for name, store in stores.items()
            }
            return content, named
    except ServerDidNotStart as refusal:
        if damage is None:
            raise
        damage.refused = _reason(str(refusal))
        return {}, {}


def _store(session: Session, name: str) -> Destination | None:
    return session.channels.get(name) if name in session.channels.list() else None


def _quarantined(store: Destination) -> IdSet:
    last = store.info().last_event_id
    quarantined = IdSet()
    for missing in store.missing(0, last + 1) if last >= 0 else ():
        if missing.cause == "quarantined":
            quarantined.add_all(IdSet(missing.spans))
    return quarantined


def _reason(text: str) -> str:
    reasons = [line for line in text.splitlines() if "error" in line.lower() or "damaged" in line]
    assert reasons, f"a server that does not start says why: {text}"
    return reasons[-1][:300]


def _repair(folder: Path, damage: Damage, violations: list[str]) -> Sequence[Finding]:
    repaired = asyncio.run(repair_store(folder))
    remaining = asyncio.run(verify_store(folder)).findings
    if remaining:
        violations.append(f"{damage}: after the repair verify finds {some(remaining)}")
    return repaired.findings


def _unreadable(findings: Iterable[Finding], channel: str) -> IdSet:
    event_ids = IdSet()
    for finding in findings:
        if finding.channel == channel:
            event_ids.add_all(IdSet(finding.events))
    return event_ids


def _reported_bytes(
    bytes_before: Mapping[str, bytes], findings: Iterable[Finding], damage: Damage
) -> list[bytes]:
    """Return the bytes that lay, before the damage, where findings report damage. A missing end of
    a file is reported for its folder."""
    places = []
    for finding in findings:
        if damage.way == "cut" and finding.file.endswith(damage.kind):
            places.append(bytes_before[damage.file][damage.offset :])
        for name, content in bytes_before.items():
            if finding.file.endswith(name):
                places.append(content[finding.first_byte or 0 : finding.end_byte])
    return places


def _bytes_of(directory: Path) -> Mapping[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def _publishers_in(contents: Iterable[bytes]) -> set[tuple[str, int] | None]:
    return {owner for content in contents for owner in events_in(content)}


def copy_directory(source: Path, target: Path) -> Path:
    """Copy a data directory that no process has open."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("ballast"))
    return target
