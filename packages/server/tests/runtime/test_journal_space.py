"""The journal frees the bytes of events that were removed (SEM S)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock

MIB = 1 << 20
QUICK = {"storage__seal_interval_ms": 1, "storage__sweep_interval_ms": 1}


def journal_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in (directory / "journal").iterdir())


def shrinks(directory: Path, below: int) -> None:
    pause = threading.Event()
    for _ in range(1_000):
        if journal_bytes(directory) < below:
            return
        pause.wait(0.01)
    raise AssertionError(f"the journal still has {journal_bytes(directory)} bytes")


def purged(channel: penstock.Channel, session: penstock.Session) -> None:
    channel.purge()


def deleted(channel: penstock.Channel, session: penstock.Session) -> None:
    session.channels.delete(channel.name)


def acknowledged(channel: penstock.Channel, session: penstock.Session) -> None:
    durable = channel.durables.create("d")
    for event in durable.fetch(6, timeout=10.0):
        event.ack()
    durable.flush()
    durable.close()
    channel.maintain()


@pytest.mark.slow
@pytest.mark.spec("S", "T9")
@pytest.mark.parametrize("leave", [purged, deleted, acknowledged])
@pytest.mark.parametrize("spindle", [0, 50_000])
def test_the_journal_frees_the_bytes_of_removed_events(
    tmp_path: Path,
    leave: Callable[[penstock.Channel, penstock.Session], None],
    spindle: int,
) -> None:
    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        kept = session.channels.create("kept")
        kept.publish(b"stays")
        large = session.channels.create("large", storage={"events_per_spindle": spindle})
        for _ in range(6):
            large.publish(bytes(2 * MIB))
        assert journal_bytes(tmp_path) > 12 * MIB

        leave(large, session)
        shrinks(tmp_path, 9 * MIB)  # room is reserved ahead

        assert not list((tmp_path / "segments").rglob("large*/*.arrow"))
        kept.publish(b"as well")
    assert journal_bytes(tmp_path) < 1 * MIB

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        channel = session.channels.get("kept")
        assert [event.data for event in channel.browse()] == [b"stays", b"as well"]
        assert channel.publish(b"and on") == 2
