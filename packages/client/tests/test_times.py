"""Times and durations as a program gives them: one way for all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_testing.virtual_realm import VirtualRealm

LATER: Any = datetime(2040, 1, 1)  # noqa: DTZ001  that is the point
SECOND: list[Any] = [1, 1.0, "1s", "1000ms", timedelta(seconds=1)]


@pytest.fixture
def orders(session: Session) -> Channel:
    return session.channels.create("orders")


@pytest.mark.spec("E6")
def test_a_time_without_a_time_zone_is_no_place_to_begin(orders: Channel) -> None:
    durable = orders.durables.create("d")
    for begin in (
        lambda: orders.subscribe(start=LATER),
        lambda: orders.browse(start=LATER),
        lambda: orders.read(start=LATER),
        lambda: orders.read(end=LATER),
        lambda: orders.first_id_at(LATER),
        lambda: orders.durables.create("e", start=LATER),
        lambda: durable.seek(LATER),
    ):
        with pytest.raises(penstock.InvalidArgument, match="without a time zone; give one"):
            begin()


@pytest.mark.parametrize("second", SECOND)
def test_a_timeout_is_seconds_a_text_or_a_timedelta(second: Any) -> None:
    with VirtualRealm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        durable = orders.durables.create("d")
        with durable.subscribe(timeout=second) as seat:
            before = realm.now
            assert seat.next_batch() is None
            assert realm.now - before == timedelta(seconds=1)
        orders.publish(b"0")
        assert [event.data for event in orders.subscribe(start=0, timeout="10ms")] == [b"0"]
        assert durable.fetch(1, second)[0].data == b"0"


@pytest.mark.parametrize("wrong", [-1, "soon", True, float("inf"), timedelta(seconds=-1)])
def test_another_timeout_is_refused(orders: Channel, wrong: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"timeout is .*; give seconds, 0 or more"):
        orders.subscribe(timeout=wrong)


@pytest.mark.spec("T1")
@pytest.mark.parametrize("second", [1_000, "1s", timedelta(seconds=1)])
def test_a_time_to_live_is_milliseconds_a_text_or_a_timedelta(
    session: Session, orders: Channel, second: Any
) -> None:
    assert penstock.Event(ttl=second).ttl == 1_000
    orders.publish(b"", ttl=second)
    assert next(iter(orders.browse())).ttl == 1_000
    assert session.channels.create("c", ttl=second).info().definition.ttl == 1_000
    orders.edit(ttl=second)
    assert orders.info().definition.ttl == 1_000


def test_another_time_to_live_is_refused(session: Session) -> None:
    for wrong in ("soon", timedelta(seconds=-1), 1.5):
        with pytest.raises(penstock.InvalidEvent, match="ttl"):
            penstock.Event(ttl=wrong)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(penstock.InvalidArgument, match="ttl"):
            session.channels.create("c", ttl=wrong)  # type: ignore[arg-type]  # that is the point


@pytest.mark.spec("D18")
def test_a_backoff_takes_a_timedelta(orders: Channel) -> None:
    durable = orders.durables.create(
        "d", backoff={"first": timedelta(seconds=1), "most": timedelta(minutes=1)}
    )

    backoff = durable.info().backoff
    assert backoff is not None
    assert (backoff.first, backoff.most) == (1_000, 60_000)


def test_a_read_ends_at_a_time(orders: Channel) -> None:
    orders.publish_many([penstock.Event(b"0"), penstock.Event(b"1")])
    end = orders.published_at(1)
    assert end is not None
    orders.publish(b"2")

    assert orders.read(end=end).num_rows in (2, 3), "the third may be of the same microsecond"
    assert orders.read(start=end, end=datetime.now(UTC)).num_rows >= 2
    assert orders.read(end=end - timedelta(hours=1)).num_rows == 0
    assert orders.read(end=datetime.now(UTC) + timedelta(hours=1)).num_rows == 3
    assert orders.read(end=1).num_rows == 2
