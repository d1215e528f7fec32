"""Invalid times, counts and ranges are refused before a request is sent to the realm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from tests.patience import until

Call = Callable[[Session, Any], object]


def _orders(session: Session) -> Channel:
    return session.channels.get("orders")


TIMES: dict[str, Call] = {
    "channel.subscribe": lambda s, t: _orders(s).subscribe(timeout=t),
    "subscription.next_batch": lambda s, t: _orders(s).subscribe().next_batch(t),
    "durable.subscribe": lambda s, t: _orders(s).durables.get("d").subscribe(timeout=t),
    "durable_subscription.next_batch": (
        lambda s, t: _orders(s).durables.get("d").subscribe().next_batch(t)
    ),
    "durable.fetch": lambda s, t: _orders(s).durables.get("d").fetch(1, t),
    "durable.fetch_batches": lambda s, t: _orders(s).durables.get("d").fetch_batches(1, t),
    "queue.reader": lambda s, t: s.queues.get("work").reader(timeout=t),
    "reader.next_batch": lambda s, t: s.queues.get("work").reader().next_batch(t),
    "reader.fetch": lambda s, t: s.queues.get("work").reader().fetch(1, t),
    "queue.pop": lambda s, t: s.queues.get("work").pop(t),
}
COUNTS: dict[str, Call] = {
    "durable.fetch": lambda s, n: _orders(s).durables.get("d").fetch(n),
    "durable.subscribe": lambda s, n: _orders(s).durables.get("d").subscribe(window=n),
    "queue.reader": lambda s, n: s.queues.get("work").reader(window=n),
    "reader.fetch": lambda s, n: s.queues.get("work").reader().fetch(n),
    "queue.peek": lambda s, n: s.queues.get("work").peek(n),
    "producer.batch_events": lambda s, n: _orders(s).producer(batch_events=n),
    "producer.batch_bytes": lambda s, n: _orders(s).producer(batch_bytes=n),
}
RANGES: dict[str, Call] = {
    "channel.browse": lambda s, r: _orders(s).browse(start=r[0], end=r[1]),
    "channel.read": lambda s, r: _orders(s).read(start=r[0], end=r[1]),
    "channel.purge": lambda s, r: _orders(s).purge(start=r[0], end=r[1]),
    "queue.purge": lambda s, r: s.queues.get("work").purge(start=r[0], end=r[1]),
    "durable.purge": lambda s, r: _orders(s).durables.get("d").purge(start=r[0], end=r[1]),
}
TEXTS: dict[str, Call] = {
    "channels.get": lambda s, t: s.channels.get(t),
    "channels.create": lambda s, t: s.channels.create(t),
    "channels.delete": lambda s, t: s.channels.delete(t),
    "queues.get": lambda s, t: s.queues.get(t),
    "durables.get": lambda s, t: _orders(s).durables.get(t),
    "durables.create": lambda s, t: _orders(s).durables.create(t),
    "durables.create, type": lambda s, t: _orders(s).durables.create("e", type=t),
    "durables.create, selector": lambda s, t: _orders(s).durables.create("e", selector=t),
    "joins.create": lambda s, t: s.joins.create("orders", t),
    "redrive": lambda s, t: s.redrive("orders", to=t),
    "channel.purge": lambda s, t: _orders(s).purge(selector=t),
    "channel.subscribe": lambda s, t: _orders(s).subscribe(selector=t).open(),
    "queue.peek": lambda s, t: s.queues.get("work").peek(selector=t),
    "is_committed": lambda s, t: s.is_committed(t),
}


@pytest.fixture
def stocked(session: Session) -> Session:
    """A realm with a channel, a durable and a queue, and ten events on each."""
    events = [penstock.Event(b"")] * 10
    session.channels.create("orders").durables.create("d")
    session.channels.get("orders").publish_many(events)
    session.queues.create("work").push_many(events)
    return session


@pytest.mark.slow
@pytest.mark.spec("D5", "Q1")
@pytest.mark.parametrize("argument", [-1, -0.5, float("nan"), float("inf"), "1", True])
@pytest.mark.parametrize("of", TIMES)
def test_a_time_to_wait_that_cannot_be_is_refused(stocked: Session, of: str, argument: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"timeout is .*; give seconds, 0 or more"):
        TIMES[of](stocked, argument)


@pytest.mark.slow
@pytest.mark.spec("D9", "Q2", "Q4")
@pytest.mark.parametrize("argument", [0, -1, 1.5, "3", True, 1 << 63])
@pytest.mark.parametrize("of", COUNTS)
def test_a_count_that_cannot_be_is_refused(stocked: Session, of: str, argument: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"; give a whole number|; ask for 1 to|^pe"):
        COUNTS[of](stocked, argument)

    assert stocked.queues.get("work").info().events == 10


@pytest.mark.spec("T9")
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ((5, 2), "start is 5 and end is 2, an empty range"),
        ((-1, 2), "start is -1; give an event id"),
        ((0, -1), "end is -1; give an event id"),
        ((1 << 63, None), "start is .*; give an event id"),
        (("0", 2), "start is '0'; give "),
    ],
)
@pytest.mark.parametrize("of", RANGES)
def test_a_range_that_cannot_be_is_refused(
    stocked: Session, of: str, argument: tuple[Any, Any], said: str
) -> None:
    with pytest.raises(penstock.InvalidArgument, match=said):
        RANGES[of](stocked, argument)

    assert _orders(stocked).info().events == stocked.queues.get("work").info().events == 10


@pytest.mark.slow
@pytest.mark.spec("C2")
@pytest.mark.parametrize("argument", [5, None, b"orders", object(), "half \ud800"])
@pytest.mark.parametrize("of", TEXTS)
def test_what_is_no_text_is_refused_and_the_session_goes_on(
    stocked: Session, of: str, argument: Any, pytestconfig: pytest.Config
) -> None:
    with _orders(stocked).subscribe(start="earliest") as going_on:
        with pytest.raises(
            penstock.InvalidArgument, match=r" must be (a string|text in Unicode), not "
        ):
            TEXTS[of](stocked, argument)

        if pytestconfig.getoption("through_a_cluster"):  # between two owners it is not
            until(lambda: stocked.is_connected)
        assert stocked.is_connected
        assert len(going_on.next_batch(1.0) or ()) == 10
        assert _orders(stocked).info().events == 10


@pytest.mark.spec("E6")
@pytest.mark.parametrize("argument", [-1, 1 << 63, True, "first", None])
def test_a_start_that_cannot_be_is_refused(stocked: Session, argument: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match="start is"):
        _orders(stocked).subscribe(start=argument)
    with pytest.raises(penstock.InvalidArgument, match="start is"):
        _orders(stocked).durables.create("late", start=argument)


def test_a_producer_that_would_linger_less_than_not_at_all_is_refused(stocked: Session) -> None:
    with pytest.raises(penstock.InvalidArgument, match="linger_ms is -1; give milliseconds"):
        _orders(stocked).producer(linger_ms=-1)


def test_ranges_of_one_event_and_waits_of_no_time_are_taken(stocked: Session) -> None:
    orders, work = _orders(stocked), stocked.queues.get("work")

    assert [event.event_id for event in orders.browse(start=3, end=3)] == [3]
    assert len(orders.durables.get("d").fetch(2, 0)) == 2
    assert work.pop(0) is not None


PUBLISHED = "tag, properties, headers, ttl, persistent, priority, transient, deliver_at"
QUEUED = PUBLISHED.replace("transient, ", "")


@pytest.mark.spec("E1")
@pytest.mark.parametrize("argument", [{"prio": 3}, {"is_delta": True}, {"ttl": 5, "Tag": "x"}])
def test_an_argument_that_a_publish_does_not_know_is_named_with_those_it_knows(
    stocked: Session, argument: Any
) -> None:
    orders, work = _orders(stocked), stocked.queues.get("work")
    (wrong,) = argument.keys() - {"ttl"}
    with pytest.raises(TypeError, match=rf"publish\(\) has no argument {wrong}; .*{PUBLISHED}$"):
        orders.publish(b"x", **argument)
    with pytest.raises(TypeError, match=rf"push\(\) has no argument {wrong}; .*{QUEUED}$"):
        work.push(b"x", **argument)
    with orders.transaction() as one, pytest.raises(TypeError, match=PUBLISHED):
        one.publish(b"x", **argument)
    with stocked.transaction() as several, pytest.raises(TypeError, match=PUBLISHED):
        several.publish(orders, b"x", **argument)

    assert orders.info().events == work.info().events == 10


def test_an_event_of_a_queue_cannot_be_transient(stocked: Session) -> None:
    argument: Any = {"transient": True}
    with pytest.raises(TypeError, match=r"push\(\) has no argument transient"):
        stocked.queues.get("work").push(b"x", **argument)

    assert stocked.queues.get("work").info().events == 10


@pytest.mark.parametrize("module", [penstock, penstock.aio], ids=lambda module: module.__name__)
def test_help_spells_out_what_an_event_may_be_published_with(module: Any) -> None:
    def keywords(method: Any) -> dict[str, Any]:
        shown = inspect.signature(method).parameters.values()
        return {
            parameter.name: parameter.default
            for parameter in shown
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    of_events = keywords(penstock.Event)
    del of_events["is_delta"]

    assert keywords(module.Channel.publish) == of_events
    assert keywords(module.Transaction.publish) == of_events
    assert keywords(module.JointTransaction.publish) == of_events
    assert set(of_events) - set(keywords(module.Queue.push)) == {"transient"}
    assert set(get_type_hints(penstock.EventAttributes)) == set(of_events)
