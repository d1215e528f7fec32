"""Every number of an import is checked: none of them ends the realm, now or at its next start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packages.server.tests.transfers.moving import Start, exported, forge, read
from penstock.client.sync.sync import Session
from penstock_core.columns.files.exports import STATE, StateFile, state_bytes
from penstock_core.vocabulary.errors import DamagedExport, InvalidArgument

pytestmark = [pytest.mark.spec("C7"), pytest.mark.slow]

EXTREMES = (-(2**63), -1, 2**61, 2**62, 2**63 - 1, 2**64 - 1)


def is_pair(value: Any) -> bool:
    return isinstance(value, list) and [type(part) for part in value] == [int, int]


def leaves(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Return the paths of the integers in decoded msgpack. Of many spans only the first two and the
    last one count, because those in between are checked like the second one."""
    if isinstance(value, list):
        parts = list(enumerate(value))
        if all(map(is_pair, value)):
            parts = [*parts[:2], *parts[2:][-1:]]
        for key, part in parts:
            yield from leaves(part, (*path, key))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def changed(value: Any, path: tuple[int, ...], number: int) -> Any:
    key, *rest = path
    copy = list(value)
    copy[key] = changed(copy[key], tuple(rest), number) if rest else number
    return copy


def forgeries(state: StateFile) -> Iterator[tuple[tuple[int, ...], int, StateFile]]:
    plain = msgspec.msgpack.decode(state_bytes(state))
    for path in leaves(plain):
        for number in EXTREMES:
            raw = msgspec.msgpack.encode(changed(plain, path, number))
            try:
                yield path, number, msgspec.msgpack.decode(raw, type=StateFile)
            except msgspec.ValidationError:
                continue  # refused as it is read


def test_no_number_of_an_import_ends_the_realm(
    source_session: Session, folder: Path, start: Start
) -> None:
    exported(source_session, folder)
    manifest, state = read(folder)
    tried = accepted = 0
    with start("victim") as realm, realm.connect() as session:
        for path, number, forged in forgeries(state):
            forge(folder, manifest, forged)
            tried += 1
            try:
                moved = session.channels.import_from(folder)
            except (DamagedExport, InvalidArgument):
                continue
            accepted += 1
            where = f"{STATE} {path}: {number}"
            moved.publish(b"goes on")
            assert moved.info().last_event_id >= 100, where
            session.channels.delete("orders")
    assert tried > 100
    with start("victim") as realm, realm.connect() as session:
        assert session.channels.list() == []


@pytest.mark.spec("E3")
def test_publishers_of_imported_events_are_marked(
    source_session: Session, target_session: Session, folder: Path, tmp_path: Path
) -> None:
    exported(source_session, folder)
    moved = target_session.channels.import_from(folder)
    moved.publish(b"new")
    *old, new = moved.browse()
    target_session.channels.export("orders", tmp_path / "again")
    back = target_session.channels.import_from(tmp_path / "again", "twice")
    mark = f"imported:{new.headers['publisher']}"

    assert {event.headers["publisher"] for event in old} == {mark}
    assert {event.headers["publisher"] for event in back.browse()} == {mark}
