"""Transactions that take events out of a store as they publish what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Session
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import CapacityReached, IllegalState, NameDoesNotExist

pytestmark = pytest.mark.spec("X4", "T10")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Session]:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        session.channels.create("dead", type="persistent")
        session.channels.create("live", type="persistent")
        for number in range(6):
            session.channels.get("dead").publish(b"%d" % number)
        yield session


def events_left(client: Session, name: str = "dead") -> list[bytes]:
    return [event.data for event in client.channels.get(name).browse()]


def test_events_leave_as_others_come(client: Session) -> None:
    dead, live = client.channels.get("dead"), client.channels.get("live")
    with client.transaction() as unit:
        unit.publish_bodies(live, [pa.record_batch({"data": [b"one", b"two"]})])
        unit.redrive(dead, [1, 2])
        unit.purge(dead, [5])

    assert events_left(client) == [b"0", b"3", b"4"]
    assert events_left(client, "live") == [b"one", b"two"]
    counters = dead.info().counters
    assert (counters.redriven, counters.purged) == (2, 1)


def test_events_may_leave_without_anything_being_published(client: Session) -> None:
    with client.transaction() as unit:
        unit.purge(client.channels.get("dead"), range(6))

    assert events_left(client) == []


def test_when_one_is_gone_nothing_happens(client: Session) -> None:
    dead, live = client.channels.get("dead"), client.channels.get("live")
    dead.purge(start=2, end=2)

    def redriven() -> None:
        with client.transaction() as unit:
            unit.publish(live, b"twice")
            unit.redrive(dead, [1, 2, 3])

    with pytest.raises(IllegalState, match="1 of 3 events are no longer on dead"):
        redriven()
    assert events_left(client) == [b"0", b"1", b"3", b"4", b"5"]
    assert events_left(client, "live") == []


def test_two_that_want_the_same_events_get_them_once(client: Session) -> None:
    dead, live = client.channels.get("dead"), client.channels.get("live")
    first, second = client.transaction(), client.transaction()
    for unit in (first, second):
        unit.publish(live, b"again")
        unit.redrive(dead, [1])
    first.commit()

    with pytest.raises(IllegalState):
        second.commit()
    second.abort()
    assert events_left(client, "live") == [b"again"]


def test_nothing_is_evicted_for_what_comes_back(client: Session) -> None:
    dead, live = client.channels.get("dead"), client.channels.get("live")
    live.edit(capacity=1)

    def redriven() -> None:
        with client.transaction() as unit:
            unit.publish_many(live, [Event(b"a"), Event(b"b")])
            unit.redrive(dead, [1, 2])

    with pytest.raises(CapacityReached):
        redriven()
    assert (events_left(client, "live"), len(events_left(client))) == ([], 6)


def test_events_in_the_hands_of_a_reader_stay(client: Session) -> None:
    work = client.queues.create("work", type="persistent")
    for _ in range(2):
        work.push(b"x")
    with work.reader(transactional=True, window=1) as reader:
        held = reader.fetch(1, timeout=5)
        assert len(held) == 1
        with (
            pytest.raises(IllegalState, match="or a reader holds them"),
            client.transaction() as unit,
        ):
            unit.redrive(work, [0, 1])
    assert work.info().events == 2


def test_it_is_so_after_a_restart(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        dead = session.channels.create("dead", type="persistent")
        live = session.channels.create("live", type="persistent")
        dead.publish(b"a")
        dead.publish(b"b")
        with session.transaction() as unit:
            unit.publish(live, b"again")
            unit.redrive(dead, [0])
    with penstock.Realm(tmp_path / "realm") as realm, realm.connect() as session:
        assert events_left(session) == [b"b"]
        assert events_left(session, "live") == [b"again"]
        assert session.channels.get("dead").info().counters.redriven == 1


def test_an_error_about_a_deleted_store_names_it(client: Session) -> None:
    dead = client.channels.get("dead")
    unit = client.transaction()
    unit.redrive(dead, [0])
    client.channels.delete("dead")

    with pytest.raises(NameDoesNotExist):
        unit.commit()
