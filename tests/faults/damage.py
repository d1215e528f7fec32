"""Files that rot while no server runs: what is lost has to be named, and nothing else be lost.

Each case is a copy of a data directory of which everything is known. A place of one of its files
is spoilt; then ``store verify`` looks at it, the real server starts on it, ``store repair`` mends
it, and the server starts again. Whatever was acknowledged and is missing must be among the events
that ``verify`` or ``channel.missing`` name, or its bytes lie where a finding says that something is
damaged, or what leads to them is found damaged and they are still there: nothing is silently
gone, and nothing has other contents.
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
from tests.faults.names import found_in, parsed
from tests.faults.processes import SETTINGS, environment

KINDS: Final = ("journal", "segments", "snapshots", "pages", "registry")
"""Folders of a data directory: what sort of file it is."""
WAYS: Final = ("flip", "zeros", "cut")
PAGE_BYTES: Final = 4_096

Content = Mapping[str, Events]
"""The events of each channel."""


class Damage(Struct):
    """What was done to a file, and what became of it."""

    kind: str
    way: str
    file: str
    at: int
    missing: int = 0
    """Acknowledged events that are not served."""
    named: int = 0
    """Events named by id, as quarantined or unreadable."""
    placed: int = 0
    """Events that are not named, where a finding says that bytes are damaged or missing."""
    kept: int = 0
    """Other events, in files that are whole or in quarantine, where nothing damaged leads to
    them."""
    refused: str = ""
    """Why the server did not start, when it did not."""

    def __str__(self) -> str:
        return f"{self.way} of {self.file} at byte {self.at}"


def spoil(
    directory: Path, random: Random, kind: str, way: str, pattern: str = "*"
) -> Damage | None:
    """Damage a file of a kind whose name fits ``pattern``; None when there is none."""
    files = [path for path in sorted((directory / kind).rglob(pattern)) if path.is_file()]
    files = [path for path in files if path.name != "LOCK" and path.read_bytes().strip(b"\0")]
    if not files:
        return None
    path = random.choice(files)
    content = bytearray(path.read_bytes())
    used = len(content.rstrip(b"\0"))
    at = random.randrange(used)
    if way == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif way == "cut":
        del content[at:]
    else:
        at -= at % PAGE_BYTES
        content[at : at + PAGE_BYTES] = bytes(len(content[at : at + PAGE_BYTES]))
    path.write_bytes(content)
    return Damage(kind, way, str(path.relative_to(directory)), at=at)


def judge(source: Path, folder: Path, known: Content, damage: Damage, wrong: list[str]) -> None:
    """Look at a spoilt copy of ``source`` in ``folder``, with all the tools there are."""
    before = _bytes_of(source)
    found = _verified(folder)
    served, reported = _served(folder, known, damage)
    if not damage.refused:
        lost = _compare(damage, known, served, wrong=wrong)
        damage.missing = sum(map(len, lost.values()))
        places = _owners(_placed(before, found, damage))
        kept = _owners(_bytes_of(folder).values() if found else ())
        for name, events in lost.items():
            named = _named(found, name)
            named.add_all(reported[name])
            by_id = [event_id for event_id in events if event_id in named]
            rest = [event_id for event_id in events if event_id not in named]
            unplaced = [each for each in rest if parsed(events[each]) not in places]
            gone = [each for each in unplaced if parsed(events[each]) not in kept]
            damage.named += len(by_id)
            damage.placed += len(rest) - len(unplaced)
            damage.kept += len(unplaced) - len(gone)
            if gone:
                wrong.append(f"{damage}: silently gone from {name}: {some(gone)}")
    findings = _mended(folder, damage, wrong)
    again, _ = _served(folder, known, None)
    _compare(damage, known, again, wrong=wrong)
    if not damage.refused:
        for name, events in served.items():
            named_now = _named(findings, name)
            gone = [each for each in events if each not in again[name] and each not in named_now]
            if gone:
                wrong.append(f"{damage}: served before the repair, gone after: {name} {some(gone)}")


def _compare(damage: Damage, known: Content, served: Content, wrong: list[str]) -> Content:
    """What of each channel is missing; what is there has to be what it was."""
    lost: dict[str, Events] = {}
    for name, events in known.items():
        there = served[name]
        changed = [each for each in events if each in there and there[each] != events[each]]
        invented = [each for each in there if each not in events]
        if changed:
            wrong.append(f"{damage}: other contents in {name}: {some(changed)}")
        if invented:
            wrong.append(f"{damage}: never published to {name}: {some(invented)}")
        missing = {each: data for each, data in events.items() if each not in there}
        if missing:
            lost[name] = missing
    return lost


def read_all(store: Destination) -> Events:
    """Everything on a channel, by id."""
    found: dict[int, bytes] = {}
    for batch in store.browse().batches():
        datas = batch.to_arrow()["data"].to_pylist()
        found.update(zip(batch.event_ids.tolist(), datas, strict=True))
    return found


def _verified(folder: Path) -> list[Finding]:
    try:
        return asyncio.run(verify_store(folder)).findings
    except PenstockError as error:  # it says so, too
        return [Finding("", str(error))]


def _served(
    folder: Path, known: Content, damage: Damage | None
) -> tuple[Content, Mapping[str, IdSet]]:
    """What a server serves, and which ids it says are quarantined."""
    settings = {**environment(), **SETTINGS}
    try:
        with (
            ServerProcess(folder, environment=settings) as server,
            penstock.connect(server.url) as session,
        ):
            stores = {name: _store(session, name) for name in known}
            content = {name: read_all(at) if at else {} for name, at in stores.items()}
            named = {name: _quarantined(at) if at else IdSet() for name, at in stores.items()}
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
    found = IdSet()
    for missing in store.missing(0, last + 1) if last >= 0 else ():
        if missing.cause == "quarantined":
            found.add_all(IdSet(missing.spans))
    return found


def _reason(text: str) -> str:
    said = [line for line in text.splitlines() if "error" in line.lower() or "damaged" in line]
    assert said, f"a server that does not start says why: {text}"
    return said[-1][:300]


def _mended(folder: Path, damage: Damage, wrong: list[str]) -> Sequence[Finding]:
    repaired = asyncio.run(repair_store(folder))
    left = asyncio.run(verify_store(folder)).findings
    if left:
        wrong.append(f"{damage}: after the repair verify finds {some(left)}")
    return repaired.findings


def _named(findings: Iterable[Finding], channel: str) -> IdSet:
    found = IdSet()
    for finding in findings:
        if finding.channel == channel:
            found.add_all(IdSet(finding.events))
    return found


def _placed(
    before: Mapping[str, bytes], findings: Iterable[Finding], damage: Damage
) -> list[bytes]:
    """What was, before the damage, where findings say that something is damaged; that the end of
    a file is missing is said of its folder."""
    places = []
    for finding in findings:
        if damage.way == "cut" and finding.file.endswith(damage.kind):
            places.append(before[damage.file][damage.at :])
        for name, content in before.items():
            if finding.file.endswith(name):
                places.append(content[finding.first_byte or 0 : finding.end_byte])
    return places


def _bytes_of(directory: Path) -> Mapping[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def _owners(contents: Iterable[bytes]) -> set[tuple[str, int] | None]:
    return {owner for content in contents for owner in found_in(content)}


def copied(source: Path, target: Path) -> Path:
    """A copy of a data directory nobody has open."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("ballast"))
    return target
