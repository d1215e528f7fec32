"""Publishing at a later time: seen, listed, cancelled, delivered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Channel, Session

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)


@pytest.mark.spec("X4")
def test_what_is_to_come_is_listed_and_not_delivered(orders: Channel) -> None:
    first = orders.publish(b"a", tag="t", properties={"n": 1}, deliver_at=LATER)
    second = orders.publish(b"b", deliver_at=(LATER + timedelta(hours=1)).timestamp())
    orders.publish(b"now")

    assert [(s.number, s.deliver_at, s.event.data) for s in orders.scheduled.list()] == [
        (first, LATER, b"a"),
        (second, LATER + timedelta(hours=1), b"b"),
    ]
    [waiting, _] = orders.scheduled.list()
    assert (waiting.event.tag, waiting.event.properties) == ("t", {"n": 1})
    assert [event.data for event in orders.browse()] == [b"now"]
    assert orders.info().scheduled == 2


@pytest.mark.spec("X4")
def test_what_is_cancelled_once_is_gone(orders: Channel) -> None:
    number = orders.publish(b"", deliver_at=LATER)

    assert orders.scheduled.cancel(number) is True
    assert orders.scheduled.cancel(number) is False
    assert orders.scheduled.list() == []


def test_where_nothing_ever_waited_there_is_nothing_to_cancel(orders: Channel) -> None:
    assert orders.scheduled.list() == []
    assert orders.scheduled.cancel(0) is False
    with pytest.raises(penstock.InvalidArgument, match="is not the number of a scheduled event"):
        orders.scheduled.cancel(-1)


@pytest.mark.spec("X4")
def test_what_is_due_is_published_with_an_id_of_its_own(orders: Channel) -> None:
    orders.publish(b"earlier")
    with orders.subscribe() as subscription:
        number = orders.publish(b"soon", deliver_at=datetime.now(UTC) + timedelta(milliseconds=50))
        batch = subscription.next_batch(30)

    assert batch is not None
    assert [(event.event_id, event.data) for event in batch] == [(1, b"soon")]
    assert number == 0
    assert batch[0].origin is None
    assert orders.scheduled.list() == []


@pytest.mark.spec("X4", "Q5")
def test_a_queue_has_a_schedule_too(session: Session) -> None:
    work = session.queues.create("work")
    work.push(b"at once", deliver_at=datetime.now(UTC) - timedelta(hours=1))
    number = work.push(b"later", deliver_at=LATER)

    event = work.pop(30.0)

    assert event is not None
    assert event.data == b"at once"
    assert work.scheduled.cancel(number)


@pytest.mark.spec("X4")
def test_many_at_once_wait_together_and_a_mix_is_refused(orders: Channel) -> None:
    ids = orders.publish_many([penstock.Event(deliver_at=LATER)] * 3)
    table = pa.table({"deliver_at": pa.array([LATER], pa.timestamp("us", "UTC")), "n": [1]})
    more = orders.publish_table(table)

    assert [waiting.number for waiting in orders.scheduled.list()] == [*ids, *more]
    with pytest.raises(penstock.InvalidEvent, match="1 of 2 events"):
        orders.publish_many([penstock.Event(deliver_at=LATER), penstock.Event()])


@pytest.mark.parametrize("moment", [True, "tomorrow", float("inf"), 1e300])
def test_an_invalid_time_is_refused(orders: Channel, moment: object) -> None:
    with pytest.raises(penstock.InvalidEvent, match=r"deliver_at .* is no"):
        orders.publish(b"", deliver_at=moment)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(penstock.InvalidEvent, match="time zone"):
        orders.publish(b"", deliver_at=datetime(2040, 1, 1))  # noqa: DTZ001  that is the point
