"""Events created by publishers, and events read from batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from penstock_core.columns.events.batch import EventBatch, stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidEvent


def received(event: Event, *, redeliveries: int = 0) -> Event:
    return EventBatch(stamp(body_of([event]), Span(7, 8), 1_000_001), {7: redeliveries})[0]


@pytest.mark.spec("E1", "E3")
def test_an_event_arrives_as_it_was_made() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    event = received(
        Event(
            b"x",
            tag="t",
            properties={"a": 1, "b": None},
            headers={"type": "order", "timestamp": moment, "delivery_mode": 2},
            ttl=500,
            persistent=False,
            priority=9,
            transient=True,
        )
    )

    assert event.event_id == 7
    assert event.published == datetime(
        1970, 1, 1, hour=0, minute=0, second=1, microsecond=1, tzinfo=UTC
    )
    assert (event.data, event.tag, event.ttl, event.priority) == (b"x", "t", 500, 9)
    assert event.properties == {"a": 1, "b": None}
    assert event.headers == {"type": "order", "timestamp": moment, "delivery_mode": 2}
    assert (event.persistent, event.transient) == (False, True)


@pytest.mark.spec("E1")
def test_unset_options_have_defaults() -> None:
    for event in (Event(), received(Event())):
        assert (event.data, event.tag, event.ttl, event.priority) == (b"", None, 0, 4)
        assert (event.properties, event.headers) == ({}, {})
        assert (event.persistent, event.transient) == (True, False)
        assert (event.is_delta, event.origin) == (False, None)
    assert (Event().event_id, Event().published) == (None, None)


@pytest.mark.spec("E9")
@pytest.mark.parametrize("count", [0, 3])
def test_redelivered_means_counted(count: int) -> None:
    event = received(Event(), redeliveries=count)

    assert (event.redelivery_count, event.redelivered) == (count, count > 0)


def test_a_subclass_is_received_as_itself() -> None:
    class Acknowledged(Event):
        __slots__ = ("seen",)

    batch = stamp(body_of([Event(b"x")]), Span(0, 1), 0)

    assert type(EventBatch(batch, event_type=Acknowledged)[0]) is Acknowledged


def test_a_received_event_can_be_published_again() -> None:
    event = received(Event(b"x", properties={"a": None}, priority=2, ttl=5))
    again = received(event)

    assert (again.data, again.properties, again.priority, again.ttl) == (b"x", {"a": None}, 2, 5)


def test_bytes_like_data_is_accepted() -> None:
    assert [Event(data).data for data in (bytearray(b"x"), memoryview(b"x"))] == [b"x", b"x"]


@pytest.mark.spec("X4")
@pytest.mark.parametrize("duration", ["10m", "0.5h", "600s", timedelta(minutes=10)])
def test_a_delivery_time_may_be_a_duration_from_now(duration: str | timedelta) -> None:
    before = datetime.now(UTC)
    event = Event(deliver_at=duration)
    after = datetime.now(UTC)

    minutes = 30 if duration == "0.5h" else 10
    assert event.deliver_at is not None
    assert before <= event.deliver_at - timedelta(minutes=minutes) <= after


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": "text"}, r"data is a str; .* data\.encode\(\)"),
        ({"data": 5}, "data is int; pass bytes"),
        ({"data": None}, "data is NoneType"),
        ({"tag": 5}, "tag 5 is int; a tag is a string"),
        ({"ttl": -1}, "ttl -1 is not a whole number"),
        ({"ttl": 1.5}, "ttl 1.5 is not a whole number"),
        ({"priority": 10}, "priority 10 is not a whole number from 0 to 9"),
        ({"priority": "4"}, "priority '4'"),
        (
            {"deliver_at": "5"},
            "deliver_at '5' is not a time: give a datetime with a time zone, seconds since 1970, "
            "a text such as '2026-05-04T12:00:00Z', or a duration from now, a text such as '500ms'",
        ),
        ({"deliver_at": True}, "deliver_at True is not a time: give a datetime"),
        ({"deliver_at": timedelta(seconds=-1)}, "is not a time: give a datetime"),
        ({"deliver_at": timedelta.max}, "is not a time: days="),
        ({"deliver_at": 1e300}, r"deliver_at 1e\+300 is not a time: "),
        ({"deliver_at": float("nan")}, "deliver_at nan is not a time: "),
        (
            {"deliver_at": datetime(2026, 1, 1)},  # noqa: DTZ001
            "deliver_at is 2026-01-01 00:00:00, a time without a time zone; give one, as in",
        ),
        ({"deliver_at": "2026-01-01"}, "deliver_at is 2026-01-01 00:00:00, a time without"),
        ({"deliver_at": "2026-13-01"}, "deliver_at '2026-13-01' is not a time: give"),
        ({"ttl": ""}, "ttl '' is not a whole number of milliseconds from 0 to .*'500ms'"),
        ({"ttl": False}, "ttl False is not a whole number"),
        ({"ttl": float("nan")}, "ttl nan is not a whole number"),
        ({"ttl": "9999999999999999d"}, "ttl '9999999999999999d' is not a whole number"),
        ({"properties": [1]}, "properties is list; pass a dictionary"),
        ({"headers": [1]}, "headers is list; pass a dictionary"),
    ],
)
def test_what_cannot_be_an_event_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidEvent, match=said):
        Event(**arguments)


def test_repr_shows_what_matters_and_not_all_of_long_data() -> None:
    event = received(Event(b"x" * 1000, tag="t", properties={"a": 1}), redeliveries=2)

    assert repr(event) == (
        f"Event(event_id=7, tag='t', data={b'x' * 32!r}... 1000, "
        "properties={'a': 1}, redelivery_count=2)"
    )


def test_a_delivery_time_may_be_in_any_time_zone() -> None:
    time = datetime(
        2026, 1, 2, hour=3, minute=4, second=5, microsecond=6, tzinfo=timezone(timedelta(hours=2))
    )
    event = received(Event(b"x", deliver_at=time))

    assert Event(deliver_at=time).deliver_at is time
    assert Event(deliver_at=time.timestamp()).deliver_at == time
    assert Event(deliver_at=time.isoformat()).deliver_at == time
    assert Event(deliver_at=0).deliver_at == datetime(1970, 1, 1, tzinfo=UTC)
    assert event.deliver_at == time
    assert event.deliver_at is not None
    assert event.deliver_at.utcoffset() == timedelta(0)
    assert received(Event(b"x")).deliver_at is None
    assert Event(b"x").origin is None
