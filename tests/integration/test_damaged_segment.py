"""A segment file whose bytes have changed: reported, its events set aside, never deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

import penstock

ROWS = 1_000
QUICK = {"storage__seal_interval_ms": 1, "storage__sweep_interval_ms": 1}


def sealed_files(directory: Path) -> list[Path]:
    return sorted((directory / "segments").rglob("*.arrow"))


def publish_three_segments(
    directory: Path, compression: Literal["none", "lz4", "zstd"] = "none"
) -> None:
    storage: penstock.StorageProperties = {"events_per_spindle": ROWS, "compression": compression}
    with penstock.Realm(directory, **QUICK) as realm, realm.connect() as session:
        orders = session.channels.create("orders", storage=storage)
        for first in (0, ROWS, 2 * ROWS):
            orders.publish_table(pa.table({"n": range(first, first + ROWS)}))
        while orders.info().storage.sealed_files < 3:
            pass


def damage(file: Path) -> bytes:
    """Turn one bit of the events in a file; gives what is in it now."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return bytes(data)


@pytest.mark.spec("S1")
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_damaged_events_are_set_aside_and_their_file_is_kept(
    tmp_path: Path, compression: Literal["none", "lz4", "zstd"]
) -> None:
    publish_three_segments(tmp_path, compression)
    first, *_ = sealed_files(tmp_path)
    damaged = damage(first)

    for _ in range(2):  # the second start knows only what was stored
        with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
            orders = session.channels.get("orders")
            readable = orders.read(columns=["n"]).column("n").to_pylist()
            while not any("it is kept" in what for what in orders.info().storage.quarantined):
                pass
            counters = orders.info().counters

            assert readable == list(range(ROWS, 3 * ROWS))
            assert counters.quarantined == ROWS
            assert counters.published == counters.quarantined + orders.info().events

    assert first.read_bytes() == damaged


@pytest.mark.spec("S1")
def test_a_sound_file_still_goes_with_its_last_event(tmp_path: Path) -> None:
    publish_three_segments(tmp_path)
    first, *others = sealed_files(tmp_path)

    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        orders = session.channels.get("orders")
        orders.purge(end=ROWS - 1)
        while first.exists():
            pass

        assert not orders.info().storage.quarantined
    assert sealed_files(tmp_path) == others


@pytest.mark.spec("S1", "E4")
def test_a_segment_is_kept_and_its_ids_stay_taken_when_the_publish_is_damaged(
    tmp_path: Path,
) -> None:
    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        orders = session.channels.create("orders", storage={"events_per_spindle": ROWS})
        orders.publish_table(pa.table({"n": range(2 * ROWS)}))
        while orders.info().storage.sealed_files < 2:
            pass
    files = sealed_files(tmp_path)
    damage_the_publish(tmp_path)

    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        orders = session.channels.get("orders")
        assert orders.publish(b"next") == 2 * ROWS
        info = orders.info()

        assert len(info.storage.quarantined) == 1  # the newest file is never looked at
        assert (info.counters.published, info.counters.quarantined) == (2 * ROWS + 1, 2 * ROWS)

    assert sealed_files(tmp_path) == files


def damage_the_publish(directory: Path) -> None:
    """Turn a bit in the events as the journal has them: the ids count up in one of its blocks."""
    (file,) = (directory / "journal").glob("*.log")
    data = bytearray(file.read_bytes())
    place = data.find((ROWS + 1).to_bytes(8, "little") + (ROWS + 2).to_bytes(8, "little"))
    assert place > 0, "the events are in the journal"
    data[place] ^= 1
    file.write_bytes(data)


@pytest.mark.spec("C1b", "T8")
def test_events_that_lived_in_memory_are_no_damage(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        ticks = session.channels.create("ticks", storage={"events_per_spindle": 10})
        for number in range(30):
            ticks.publish(b"...", persistent=number % 10 < 5)
        while not ticks.info().storage.sealed_files:
            pass

    with penstock.Realm(tmp_path, **QUICK) as realm, realm.connect() as session:
        ticks = session.channels.get("ticks")
        counters = ticks.info().counters

        assert (counters.published, counters.quarantined) == (15, 0)
        assert ticks.publish(b"next") == 30
