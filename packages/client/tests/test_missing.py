"""Why ids have no event any more, as a client is told (SEM T8)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import InvalidArgument

pytestmark = pytest.mark.spec("T8")

Causes = dict[str, list[int]]


def causes(store: Channel, first: int = 0, end: int = 1_000) -> Causes:
    return {
        missing.cause: [event_id for span in missing.spans for event_id in range(*span)]
        for missing in store.missing(first, end)
    }


def fill(channel: Channel, count: int) -> None:
    channel.publish_many([penstock.Event(properties={"n": n % 3}) for n in range(count)])


@pytest.mark.slow
def test_causes_of_removal_are_distinguished_and_survive_a_restart(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        before = _made(session)
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        after = {name: causes(session.channels.get(name)) for name in before}

    assert (
        after
        == before
        == {
            "evicting": {"evicted": [0, 1, 2, 3, 4]},
            "purged": {"purged": [2, 3]},
            "keyed": {"replaced": [0, 1, 2]},
            "acked": {"consumed": [0, 1]},
            "merged": {"replaced": [0]},
            "passing": {"never": [1]},
        }
    )


def _made(session: Session) -> dict[str, Causes]:
    create = session.channels.create
    evicting = create("evicting", type="persistent", capacity=5)
    for _ in range(2):
        fill(evicting, 5)
    purged = create("purged", type="persistent")
    fill(purged, 6)
    purged.purge(start=2, end=3)
    keyed = create("keyed", type="persistent", keys={"n": 1})
    fill(keyed, 6)
    acked = create("acked", type="persistent")
    reader = acked.durables.create("d")
    fill(acked, 4)
    for event in reader.fetch(2, 60):
        event.ack()
    reader.flush()
    merged = create("merged", type="persistent", engine="merge", keys={"k": 1})
    merged.register("x", {"a": 1})
    merged.update("x", {"a": 2})
    passing = create("passing", type="persistent")
    passing.publish(b"0")
    passing.publish(b"1", transient=True)
    passing.publish(b"2")
    made = (evicting, purged, keyed, acked, merged, passing)
    return {channel.name: causes(channel) for channel in made}


@pytest.mark.slow
def test_replaced_events_are_told_from_the_others_of_their_channel(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path / "one") as realm, realm.connect() as session:
        keyed = session.channels.create("keyed", type="mixed", keys={"n": 1})
        fill(keyed, 6)  # 0, 1 and 2 are replaced
        keyed.publish(b"", properties={"n": 7}, transient=True)  # 6 is not stored
        keyed.publish(b"", properties={"n": 8})
        keyed.publish(b"", properties={"n": 9}, persistent=False)  # 8 is in memory
        keyed.purge(start=5, end=7)
        fill(keyed, 3)  # 3 and 4 are replaced
        expected = {"replaced": [0, 1, 2, 3, 4], "purged": [5, 7], "never": [6]}
        assert causes(keyed) == expected
        keyed.publish(b"", properties={"n": 10})
        realm_killed = tmp_path / "two"
        shutil.copytree(tmp_path / "one", realm_killed)

    for left_behind in ("one", "two", "two"):
        with penstock.Realm(tmp_path / left_behind) as realm, realm.connect() as session:
            keyed = session.channels.get("keyed")
            assert causes(keyed, 0, 12) == expected | {"never": [6, 8]}
            keyed.publish(b"", properties={"n": 10})
            assert 12 in causes(keyed)["replaced"]


def test_what_has_expired_is_told(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        orders = session.channels.create("orders", ttl=1)
        fill(orders, 3)
        while orders.info().events:
            pass  # each look is a request

        assert causes(orders) == {"expired": [0, 1, 2]}
        assert causes(orders, 1, 2) == {"expired": [1]}


def test_ids_that_were_not_given_are_not_missing(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        orders = session.channels.create("orders", start_event_id=10)
        fill(orders, 2)

        assert causes(orders) == {}
        with pytest.raises(InvalidArgument, match="start is 5 and end is 4"):
            orders.missing(5, 5)


def test_what_readers_have_taken_is_told(realm: penstock.Realm) -> None:
    with realm.connect() as session:
        work = session.queues.create("work")
        work.push(b"a")
        work.push(b"b")
        work.pop()
        work.close()

        (missing,) = work.missing(0, 2)
        assert (missing.cause, missing.events, missing.spans) == ("consumed", 1, ((0, 1),))
