"""Times and durations as a program gives them: one way for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from penstock.client.reading.start_positions import start_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.columns.schema.moments import us_of
from penstock_core.vocabulary.start_positions import FromTime
from penstock_testing.virtual_realm import VirtualRealm

LATER: Any = datetime(2040, 1, 1)  # noqa: DTZ001  that is the point
SECOND: list[Any] = [1, 1.0, "1s", "1000ms", timedelta(seconds=1)]
WRONG: list[Any] = [
    -1,
    float("nan"),
    "",
    "1",
    "soon",
    True,
    b"1s",
    [1],
    timedelta(microseconds=-1),
    datetime(2040, 1, 1, tzinfo=UTC),
]
"""Values that no duration may have."""
REFUSED = (penstock.InvalidEvent, penstock.InvalidArgument)
TOO_LONG: list[Any] = [1e300, 10**400, "9999999999999999d"]
"""Values that a request cannot contain."""

WAITS: dict[str, Callable[[Session, Any], object]] = {
    "timeout of Session.subscribe": lambda s, t: s.subscribe("o*", timeout=t),
    "timeout of Session.wait_for_events": lambda s, t: s.wait_for_events({_orders(s): 0}, t),
    "timeout of Channel.request": lambda s, t: _orders(s).request(b"", t),
    "linger_ms of Channel.producer": lambda s, t: _orders(s).producer(linger_ms=t),
}
"""Waiting times, by parameter; ``test_arguments.py`` has the timeouts of reads."""
SENT: dict[str, Callable[[Session, Any], object]] = {
    "ack_timeout of Queue.reader": lambda s, t: s.queues.get("work").reader(
        transactional=True, ack_timeout=t
    ),
    "ack_timeout of Durables.create": lambda s, t: _orders(s).durables.create("x", ack_timeout=t),
    "delay of Reader.rollback": lambda s, t: _committing(s).rollback(delay=t),
    "time of Reader.extend": lambda s, t: _committing(s).extend(time=t),
    "delay of DurableSubscription.rollback": lambda s, t: _seat(s).rollback([0], delay=t),
    "time of DurableSubscription.extend": lambda s, t: _seat(s).extend([0], t),
    "delay of DeliveredEvent.rollback": lambda s, t: _delivered(s)[0].rollback(delay=t),
    "time of DeliveredEvent.extend": lambda s, t: _delivered(s)[0].extend(t),
    "delay of DeliveredBatch.rollback": lambda s, t: _delivered(s).rollback(delay=t),
    "time of DeliveredBatch.extend": lambda s, t: _delivered(s).extend(t),
}
"""Durations in requests, by parameter."""
LIVES: dict[str, Callable[[Session, Any], object]] = {
    "Channel.publish": lambda s, t: _orders(s).publish(b"", ttl=t),
    "Queue.push": lambda s, t: s.queues.get("work").push(b"", ttl=t),
    "Channel.request": lambda s, t: _orders(s).request(b"", 30, ttl=t),
    "Producer.send": lambda s, t: _sent(s, t),
    "Transaction.publish": lambda s, t: _orders(s).transaction().publish(b"", ttl=t),
    "Event": lambda s, t: penstock.Event(ttl=t),
    "ReceivedEvent.reply": lambda s, t: _request(s).reply(b"", ttl=t),
    "Channels.create": lambda s, t: s.channels.create("x", ttl=t),
    "Queues.create": lambda s, t: s.queues.create("x", ttl=t),
    "Channel.edit": lambda s, t: _orders(s).edit(ttl=t),
    "storage.sync_batch_time": lambda s, t: s.channels.create("x", storage={"sync_batch_time": t}),
    "backoff.first": lambda s, t: _orders(s).durables.create("x", backoff={"first": t}),
    "backoff.most": lambda s, t: s.queues.create("x", backoff={"first": 1, "most": t}),
}
"""Durations in milliseconds, by method or attribute."""


def _orders(session: Session) -> Channel:
    return session.channels.get("orders")


def _seat(session: Session) -> penstock.DurableSubscription:
    return _orders(session).durables.get("d").subscribe()


def _committing(session: Session) -> penstock.Reader:
    return session.queues.get("work").reader(transactional=True, ack_timeout=1)


def _delivered(session: Session) -> penstock.DeliveredBatch:
    _orders(session).publish(b"")
    return _orders(session).durables.get("d").fetch_batches(1, 30)[0]


def _sent(session: Session, ttl: Any) -> None:
    with _orders(session).producer() as producer:
        producer.send(b"", ttl=ttl)


def _request(session: Session) -> penstock.ReceivedEvent:
    reply_to = {"reply_to": "work", "correlation_id": "c"}
    session.queues.get("work").push(b"", headers=reply_to)
    event = session.queues.get("work").pop(30)
    assert event is not None
    return event


@pytest.fixture
def stocked(session: Session) -> Session:
    """A realm with a channel, a durable and a queue."""
    session.channels.create("orders").durables.create("d")
    session.queues.create("work")
    return session


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


@pytest.mark.slow
@pytest.mark.spec("E6")
def test_a_text_with_a_time_zone_is_a_time(orders: Channel) -> None:
    orders.publish_many([penstock.Event(b"0"), penstock.Event(b"1")])
    durable = orders.durables.create("d")
    first = orders.published_at(0)
    assert first is not None
    begun: Any = first.isoformat()
    past: Any = "2020-05-04T12:00:00+02:00"
    later: Any = "2040-05-04T12:00:00Z"
    ids = [0, 1]

    assert [event.event_id for event in orders.browse(start=begun)] == ids
    assert [event.event_id for event in orders.subscribe(start=past, timeout="10ms")] == ids
    assert orders.read(start=past, end="2040-05-04T12:00:00Z").num_rows == 2
    assert orders.read(end=past).num_rows == 0
    assert orders.first_id_at(past) == 0
    assert orders.first_id_at("2040-05-04T12:00:00Z") == 2
    assert orders.durables.create("e", start=past).info().outstanding == 2
    assert durable.seek(later).position == 2


@pytest.mark.spec("E6")
def test_a_time_is_exact_to_the_microsecond(orders: Channel) -> None:
    for us in range(0, 1_000_000, 997):
        time = datetime(2026, 5, 4, microsecond=us, tzinfo=UTC)

        assert start_of(time) == FromTime(us_of(time))


@pytest.mark.spec("E6")
@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("2040-01-01T00:00:00", "is 2040-01-01 00:00:00, a time without a time zone; give one"),
        ("20400101", "is '20400101'; give "),
        ("tomorrow", "is 'tomorrow'; give .*'2026-05-04T12:00:00Z'"),
        (1.5, r"is 1\.5; give "),
        (timedelta(hours=1), "is .*; give "),
    ],
)
def test_a_wrong_time_is_refused_by_the_name_of_its_parameter(
    orders: Channel, start: Any, said: str
) -> None:
    durable = orders.durables.create("d")

    with pytest.raises(penstock.InvalidArgument, match=f"^start {said}"):
        orders.subscribe(start=start)
    with pytest.raises(penstock.InvalidArgument, match=f"^to {said}"):
        durable.seek(start)
    with pytest.raises(penstock.InvalidArgument, match=f"^moment {said}"):
        orders.first_id_at(start)
    with pytest.raises(penstock.InvalidArgument, match=r"^end is "):
        orders.read(end=start)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_no_duration_takes_what_is_not_one(stocked: Session, wrong: Any) -> None:
    for name, call in (WAITS | SENT).items():
        parameter, _, _ = name.partition(" of ")
        unit = "milliseconds" if parameter == "linger_ms" else "seconds"
        message = f"{parameter} is {wrong!r}; give {unit}, 0 or more, a text such as '500ms'"
        with pytest.raises(penstock.InvalidArgument, match=re.escape(message)):
            call(stocked, wrong)
    for call in LIVES.values():
        with pytest.raises(
            (penstock.InvalidEvent, penstock.InvalidArgument), match=r"ttl|time|first|most"
        ):
            call(stocked, wrong)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", TOO_LONG, ids=["1e300", "10**400", "days"])
def test_no_request_is_sent_with_a_duration_that_it_cannot_contain(
    stocked: Session, wrong: Any
) -> None:
    for name, call in SENT.items():
        parameter, _, _ = name.partition(" of ")
        with pytest.raises(penstock.InvalidArgument, match=f"{parameter} is "):
            call(stocked, wrong)
    for call in LIVES.values():
        with pytest.raises(
            (penstock.InvalidEvent, penstock.InvalidArgument), match=r"ttl|time|first|most"
        ):
            call(stocked, wrong)


@pytest.mark.parametrize("wrong", [10**400, float("inf")], ids=["10**400", "inf"])
def test_a_read_does_not_wait_for_ever_by_a_number(stocked: Session, wrong: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"timeout is .*; give seconds"):
        _orders(stocked).subscribe(timeout=wrong)


@pytest.mark.parametrize("linger", [1_000, "1s", timedelta(seconds=1)])
def test_a_producer_lingers_for_milliseconds_a_text_or_a_timedelta(
    orders: Channel, linger: Any
) -> None:
    with orders.producer(linger_ms=linger) as producer:
        assert producer._inner._linger_s == 1.0
        producer.send(b"", ttl="1h")
        producer.send(b"", ttl=timedelta(minutes=1))

    assert [event.ttl for event in orders.browse()] == [3_600_000, 60_000]


def test_a_group_of_a_channel_closes_after_milliseconds_a_text_or_a_timedelta(
    session: Session,
) -> None:
    times: list[Any] = [20, "20ms", timedelta(milliseconds=20)]
    for index, time in enumerate(times):
        channel = session.channels.create(f"c{index}", storage={"sync_batch_time": time})
        assert channel.info().definition.storage.sync_batch_time == 20


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
