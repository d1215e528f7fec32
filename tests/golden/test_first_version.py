"""A data directory that the first version of Penstock left is opened by today's, as it was.

``first-version/realm.tar.xz`` has it as its process was killed, before any realm had an owner or an
epoch. A realm with users had been closed in order: channels of five types with six events each, one
with spindles of four events, one in a single file, one with publish keys that is joined to a queue.
Then it was opened again: three more events, acknowledgements of a shared durable, a transaction.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from tests.patience import until

GOLDEN: Final = Path(__file__).parent / "first-version" / "realm.tar.xz"
REALM_ID: Final = "7094f077bf0b7aecc65d46900c19ce67"
ACCESS: Final[dict[str, Any]] = {"access__mode": "mandatory", "access__password_rounds": 4096}
SIX: Final = [(number, b"%d" % number) for number in range(6)]
SEALED: Final = [(number, b"sealed %d" % number) for number in range(13)]
WITHOUT_AN_EPOCH: Final = re.compile(r"\d{20}-\d{20}\.arrow").fullmatch

pytestmark = pytest.mark.spec("S1")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "realm"


@pytest.fixture
def session(directory: Path) -> Iterator[penstock.Session]:
    with penstock.Realm(directory, **ACCESS) as realm, realm.connect() as opened:
        yield opened


def stored(store: penstock.Channel | penstock.Queue) -> list[tuple[int | None, bytes]]:
    return [(event.event_id, event.data) for event in store.browse()]


def test_everything_that_was_kept_is_there(session: penstock.Session) -> None:
    channels = session.channels

    assert session.realm_id == REALM_ID
    assert stored(channels.get("of/mixed")) == stored(channels.get("of/paged")) == SIX
    assert stored(channels.get("of/persistent")) == [
        *SIX,
        (6, b"in a transaction"),
        (7, b"in the same one"),
    ]
    assert stored(channels.get("of/off_heap")) == stored(channels.get("of/reliable")) == []
    assert stored(channels.get("sealed")) == SEALED
    assert stored(channels.get("single")) == [(0, b"one"), (1, b"two")]
    assert stored(channels.get("newest")) == [(2, b"2"), (4, b"joined")]
    assert stored(session.queues.get("work")) == [(0, b"joined")]
    assert [user.name for user in session.access.users()] == ["admin", "ann"]
    assert [group.name for group in session.access.groups()] == ["clerks"]


def test_columns_and_tags_are_read_as_they_were_written(session: penstock.Session) -> None:
    (event,) = session.channels.get("of/paged").browse(selector="price > 2")

    assert (event.event_id, event.tag) == (5, "odd")
    assert event.properties == {"price": 2.5, "sku": "s5"}


def test_durables_go_on_where_they_were(session: penstock.Session) -> None:
    billing = session.channels.get("sealed").durables.get("billing")
    remaining = [number for number in range(13) if number not in (0, 2)]

    with billing.subscribe(window=len(remaining), timeout=60.0) as subscription:
        events = [event for _, event in zip(remaining, subscription, strict=False)]

    assert {event.event_id for event in events} == {*remaining}
    assert [event.event_id for event in events if event.redelivered] == remaining[:-1], (
        "the killed client had a window of ten, which it had moved on twice"
    )


def publish_and_seal(directory: Path, event_count: int) -> None:
    """Four more events behind those that are there: one more spindle of four is sealed."""
    files = directory / "segments" / "sealed.6"
    everything = [(number, b"sealed %d" % number) for number in range(event_count + 4)]
    with penstock.Realm(directory, **ACCESS) as realm, realm.connect() as session:
        channel = session.channels.get("sealed")
        for number, data in everything[event_count:]:
            assert channel.publish(data) == number
        until(lambda: stored(channel) and len(list(files.iterdir())) == len(everything) // 4)
        assert stored(channel) == everything


@pytest.mark.slow
def test_it_goes_on_as_a_realm_without_owners(directory: Path) -> None:
    publish_and_seal(directory, 13)
    publish_and_seal(directory, 17)

    names = [path.name for path in directory.glob("segments/*/*")]
    assert [name for name in names if not WITHOUT_AN_EPOCH(name)] == []
    assert b'{"format": 2}' in (directory / "registry" / "format").read_bytes()
    assert not (directory / "node.json").exists()


def test_a_join_of_it_goes_on(session: penstock.Session) -> None:
    session.channels.get("newest").publish(b"more", properties={"sku": "s1"})

    assert stored(session.queues.get("work")) == [(0, b"joined"), (1, b"more")]
