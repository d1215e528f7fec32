"""Tests for penstock_spark.replaying.live."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from packages.spark.tests.replaying.histories import archive, events
from penstock.client.sync.sync import Session
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import NameDoesNotExist
from penstock_spark.replaying.archived import Archived, Bounds
from penstock_spark.replaying.live import LiveHistory, RealmOutlet, WallTimer


def ids(history: LiveHistory, first: int = 0, end: int | None = None) -> list[int]:
    return [event for batch in history.batches(first, end) for event in ids_of(batch).tolist()]


def test_what_the_archive_has_is_not_read_again(client: Session, tmp_path: Path) -> None:
    flights = client.channels.create("flights", type="persistent")
    flights.publish_many([Event(properties={"n": n}) for n in range(6)])
    before = Archived("flights", archive(tmp_path / "a", events([0, 1, 2], [0, 1, 2])), Bounds())
    history = LiveHistory(flights, Bounds(), before=before)

    assert ids(history) == [0, 1, 2, 3, 4, 5]
    assert ids(history, 4) == [4, 5]
    assert ids(history, 1, 4) == [1, 2, 3]
    assert ids(history, 9) == []
    assert ids(LiveHistory(flights, Bounds(end_id=4), "n > 1")) == [2, 3]


def test_a_channel_that_is_not_there_is_named(client: Session) -> None:
    with pytest.raises(NameDoesNotExist, match="nowhere"):
        RealmOutlet(client).publish("nowhere", [], "p", sequence=1)


def test_a_wait_ends_when_it_is_time_to_stop() -> None:
    stopping = threading.Event()
    timer = WallTimer(stopping)

    assert not timer.wait(0)
    assert not timer.wait(1)
    stopping.set()
    assert timer.wait(0)
    assert timer.wait(3_600_000_000)
    assert timer.now_us() <= timer.now_us()
