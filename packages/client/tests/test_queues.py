"""Queues over a session: pushed, popped, peeked, read plainly and in transactions."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Queue, Session

WAIT_S = 30.0


def ids(events: Iterable[penstock.Event]) -> list[int | None]:
    return [event.event_id for event in events]


@pytest.fixture
def work(session: Session) -> Queue:
    return session.queues.create("work")


@pytest.fixture
def ten(work: Queue) -> Queue:
    work.push_many([penstock.Event(properties={"n": n}) for n in range(10)])
    return work


# --- made and found -----------------------------------------------------------------------


def test_queues_are_made_listed_found_and_deleted(session: Session) -> None:
    session.queues.create("b", type="persistent", capacity=5)
    session.queues.create("/a//x")
    session.channels.create("c")

    assert session.queues.list() == ["a/x", "b"]
    assert session.channels.list() == ["c"]
    assert session.queues.get("b").info().definition.capacity == 5

    session.queues.delete("b")

    assert session.queues.list() == ["a/x"]
    with pytest.raises(penstock.NameDoesNotExist, match="b"):
        session.queues.get("b")


@pytest.mark.spec("C2")
def test_a_queue_is_no_channel_and_a_channel_no_queue(session: Session, work: Queue) -> None:
    session.channels.create("orders")

    with pytest.raises(penstock.NameDoesNotExist, match="work is a queue"):
        session.channels.get("work")
    with pytest.raises(penstock.NameDoesNotExist, match="orders is a channel"):
        session.queues.get("orders")
    with pytest.raises(penstock.NameDoesNotExist):
        session.queues.delete("orders")
    with pytest.raises(penstock.NameAlreadyBound):
        session.channels.create("work")


@pytest.mark.spec("C4")
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"engine": "merge"}, "engine"),
        ({"engine": "jms"}, "engine"),
        ({"colour": "blue"}, "a queue has no attribute colour; allowed are type"),
        ({"kind": "channel"}, "a queue has no attribute kind"),
        ({"max_deliveries": -1}, "max_deliveries"),
        ({"max_deliveries": 3}, "dead_event_store"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(
    session: Session, attributes: dict[str, Any], says: str
) -> None:
    with pytest.raises(penstock.InvalidArgument, match=says):
        session.queues.create("work", **attributes)

    assert session.queues.list() == []


# --- push, pop, purge ---------------------------------------------------------------------


@pytest.mark.spec("Q1")
def test_what_is_pushed_is_popped_once_and_in_order(work: Queue) -> None:
    assert work.push(b"one", tag="t", properties={"n": 1}, priority=7) == 0
    assert work.push_many([penstock.Event(b"two"), penstock.Event(b"three")]) == range(1, 3)
    assert work.push_table(pa.table({"data": [b"four"], "n": [4]})) == range(3, 4)

    first = work.pop(WAIT_S)

    assert first is not None
    assert (first.data, first.tag, first.properties, first.priority) == (b"one", "t", {"n": 1}, 7)
    assert [event.data for event in (work.pop(WAIT_S), work.pop(WAIT_S)) if event] == [
        b"two",
        b"three",
    ]
    assert work.info().events == 1
    last = work.pop()
    assert last is not None
    assert last.properties == {"n": 4}
    assert (work.info().events, work.info().counters.consumed) == (0, 4)


def test_a_pop_that_finds_nothing_in_time_gives_none(work: Queue) -> None:
    assert work.pop(0.0) is None
    assert work.pop(0.05) is None
    work.push(b"late")

    event = work.pop(0.0)

    assert event is not None
    assert event.data == b"late"


def test_a_pop_without_a_timeout_waits(work: Queue) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.pop)
        work.push(b"at last")

        event = waiting.result(WAIT_S)

    assert event is not None
    assert event.data == b"at last"


def test_threads_that_pop_do_not_wait_for_each_other(work: Queue) -> None:
    with ThreadPoolExecutor(2) as pool:
        endless = pool.submit(work.pop)
        short = pool.submit(work.pop, 0.05)
        assert short.result(WAIT_S) is None
        work.push(b"for the one who waits")

        event = endless.result(WAIT_S)

    assert event is not None
    work.close()
    assert work.info().readers == ()


@pytest.mark.spec("Q5", "T9")
def test_a_queue_is_purged_edited_and_capped_like_a_channel(ten: Queue) -> None:
    assert ten.purge(start=8) == 2
    assert ten.purge(selector="n < 3") == 3

    ten.edit(capacity=2)

    assert ids(ten.peek()) == [6, 7]
    with pytest.raises(penstock.InvalidArgument, match="type"):
        ten.edit(type="reliable")  # type: ignore[call-arg]  # fixed at creation


@pytest.mark.spec("Q5", "T4")
def test_a_full_queue_that_honours_its_capacity_refuses(session: Session) -> None:
    full = session.queues.create("full", capacity=1, storage={"honour_capacity": True})
    full.push(b"")

    with pytest.raises(penstock.CapacityReached):
        full.push(b"")


# --- peek ---------------------------------------------------------------------------------


@pytest.mark.spec("Q4")
def test_a_peek_shows_some_says_whether_there_are_more_and_changes_nothing(ten: Queue) -> None:
    some, all_of_them = ten.peek(4), ten.peek(10)

    assert (ids(some), some.has_more) == ([0, 1, 2, 3], True)
    assert (len(all_of_them), all_of_them.has_more) == (10, False)
    assert (some[1].properties, ids(some[2:])) == ({"n": 1}, [2, 3])
    assert (ten.info().events, ten.info().redelivered) == (10, 0)


@pytest.mark.spec("Q4", "F5")
def test_a_peek_with_a_selector_shows_what_matches_and_goes_on_from_the_last(ten: Queue) -> None:
    even = ten.peek(2, selector="n IN (0, 2, 4, 6, 8)")
    following = ten.peek(9, selector="n IN (0, 2, 4, 6, 8) AND event_id > 2")
    three = ten.peek(3, selector="n > 6")

    assert (ids(even), even.has_more) == ([0, 2], True)
    assert (ids(following), following.has_more) == ([4, 6, 8], False)
    assert (ids(three), three.has_more) == ([7, 8, 9], False)
    with pytest.raises(penstock.InvalidSelector, match="column 5"):
        ten.peek(selector="n > > 7")


@pytest.mark.parametrize("count", [0, -1, 1.5, 1 << 40])
def test_a_peek_of_a_count_that_cannot_be_is_refused(work: Queue, count: int) -> None:
    with pytest.raises(penstock.InvalidArgument, match="give a whole number from 1 to"):
        work.peek(count)


def test_a_peek_with_a_selector_gives_no_more_than_was_asked_for(work: Queue) -> None:
    work.push_table(pa.table({"n": range(2_000)}))

    page = work.peek(2, selector="n >= 1500")

    assert ids(page) == [1_500, 1_501]
    assert page.has_more
    assert ids(work.peek(2, selector="n >= 1999")) == [1_999]


@pytest.mark.parametrize("position", ["3", 1.5, True, -1, 1 << 63])
def test_a_range_that_cannot_be_purged_is_refused(ten: Queue, position: int) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"start is .*; give an event id"):
        ten.purge(start=position)
    with pytest.raises(penstock.InvalidArgument, match=r"end is .*; give an event id"):
        ten.purge(end=position)

    assert ten.info().events == 10


@pytest.mark.spec("T9")
def test_a_range_of_no_events_is_refused(ten: Queue) -> None:
    with pytest.raises(penstock.InvalidArgument, match="start is 5 and end is 2, an empty range"):
        ten.purge(start=5, end=2)

    assert ten.info().events == 10
    assert ten.purge(start=5, end=5) == 1


def test_a_peek_at_an_empty_queue_is_empty(work: Queue) -> None:
    assert (len(work.peek()), work.peek().has_more) == (0, False)


# --- plain readers ------------------------------------------------------------------------


@pytest.mark.spec("Q1")
def test_a_plain_reader_takes_events_off_the_queue_as_it_hands_them_out(ten: Queue) -> None:
    with ten.reader(timeout=WAIT_S) as reader:
        seen = []
        for event in reader:
            seen.append(event.event_id)
            if len(seen) == 3:
                break
        reader.flush()

        assert seen == [0, 1, 2]
        assert ten.info().events == 7
        assert len(ten.info().readers) == 1

    assert ten.info().readers == ()
    assert ids(ten.reader(timeout=0.0)) == [3, 4, 5, 6, 7, 8, 9]
    assert ten.info().events == 0


def test_an_event_of_a_reader_offers_no_settlement_of_its_own(ten: Queue) -> None:
    [event] = ten.reader().fetch(1)

    assert type(event) is penstock.ReceivedEvent
    assert not hasattr(event, "ack")


def test_what_a_reader_left_in_a_batch_comes_with_the_next_call(ten: Queue) -> None:
    with ten.reader(window=100, timeout=WAIT_S) as reader:
        first = next(iter(reader))
        rest = reader.fetch(4)
        batch = reader.next_batch()
        assert batch is not None

        assert (first.event_id, ids(rest), ids(batch)) == (0, [1, 2, 3, 4], [5, 6, 7, 8, 9])
        assert [b.to_table().num_rows for b in reader.fetch_batches(5, 0.0)] == []


@pytest.mark.spec("Q1", "F5")
def test_a_reader_with_a_selector_leaves_the_rest_to_others(ten: Queue) -> None:
    with ten.reader(selector="n > 6", timeout=0.0) as large, ten.reader(timeout=0.0) as any_other:
        assert ids(large) == [7, 8, 9]
        ten.push(b"", properties={"n": 1})
        ten.push(b"", properties={"n": 11})

        assert ids(large) == [11]
        assert ids(any_other) == [0, 1, 2, 3, 4, 5, 6, 10]


def test_a_bad_selector_is_refused_where_the_block_is_entered(work: Queue) -> None:
    with pytest.raises(penstock.InvalidSelector, match="column 5"), work.reader(selector="n > > 7"):
        raise AssertionError("the block was entered")


@pytest.mark.parametrize("window", [0, -1, 2.5])
def test_a_window_that_cannot_be_is_refused(work: Queue, window: int) -> None:
    with pytest.raises(penstock.InvalidArgument, match="window is"):
        work.reader(window=window)


@pytest.mark.spec("Q1")
def test_events_are_shared_among_readers_and_each_goes_to_one(work: Queue) -> None:
    with work.reader(window=5) as one, work.reader(window=5) as second_reader:
        work.push_many([penstock.Event()] * 400)
        first: list[int | None] = []
        second: list[int | None] = []
        for _ in range(40):
            first += ids(one.fetch(5, WAIT_S))
            second += ids(second_reader.fetch(5, WAIT_S))

    assert (len(first), len(second)) == (200, 200)
    assert {*first, *second} == set(range(400))


def test_a_plain_reader_has_nothing_to_commit(ten: Queue) -> None:
    with ten.reader() as reader:
        for settle in (reader.commit, reader.rollback):
            with pytest.raises(penstock.IllegalState, match="open the reader with transactional"):
                settle()


def test_a_fetch_of_less_than_one_event_is_refused(ten: Queue) -> None:
    with ten.reader() as reader, pytest.raises(penstock.InvalidArgument, match="events, 1 or more"):
        reader.fetch(0)


def test_a_queue_that_is_deleted_ends_its_readers(session: Session, work: Queue) -> None:
    with work.reader() as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.next_batch)
        session.queues.delete("work")

        with pytest.raises(penstock.NameDoesNotExist):
            waiting.result(WAIT_S)
    with pytest.raises(penstock.NameDoesNotExist):
        work.pop(0.0)


# --- transactional readers ----------------------------------------------------------------


@pytest.mark.spec("Q2")
def test_a_transactional_reader_holds_at_most_its_window(ten: Queue) -> None:
    with ten.reader(transactional=True, window=3, timeout=0.0) as reader:
        assert ids(reader) == [0, 1, 2]
        assert ids(reader) == []
        assert reader.fetch(5, 0.0) == []
        assert (ten.info().events, ten.info().in_flight) == (10, 3)

        reader.commit()

        assert (ten.info().events, ten.info().in_flight) == (7, 0)
        assert ids(reader.fetch(5)) == [3, 4, 5]
        reader.commit()
    assert ten.info().events == 4


@pytest.mark.spec("Q2")
def test_a_commit_covers_all_or_up_to_an_event_or_one_alone(ten: Queue) -> None:
    with ten.reader(transactional=True, window=10) as reader:
        events = reader.fetch(8)

        reader.commit(events[2])
        assert ids(ten.peek()) == [3, 4, 5, 6, 7, 8, 9]
        reader.commit(5, individual=True)
        assert ids(ten.peek()) == [3, 4, 6, 7, 8, 9]
        reader.commit(events[5], individual=True)  # a second time changes nothing
        reader.commit()
        assert ids(ten.peek()) == [8, 9]
        reader.commit()
        assert ten.info().events == 2


@pytest.mark.spec("Q3")
def test_a_rollback_gives_events_back_to_their_places_and_counts(ten: Queue) -> None:
    with ten.reader(transactional=True, window=10) as reader:
        events = reader.fetch(4)
        reader.rollback(events[1])
        reader.rollback(3, individual=True)
        again = reader.fetch(4)

        assert [(e.event_id, e.redelivery_count) for e in again] == [(0, 1), (1, 1), (3, 1), (4, 0)]
        assert [e.redelivered for e in again] == [True, True, True, False]
        assert ten.info().redelivered == 3

        reader.rollback()
        once_more = reader.fetch(10)
        assert [(e.event_id, e.redelivery_count) for e in once_more[:5]] == [
            (0, 2),
            (1, 2),
            (2, 1),
            (3, 2),
            (4, 1),
        ]
        reader.commit()
    assert ten.info().events == 0


@pytest.mark.spec("Q3")
def test_events_already_in_the_window_come_before_one_rolled_back(ten: Queue) -> None:
    with ten.reader(transactional=True, window=4, timeout=0.0) as reader:
        events = iter(reader)
        first = next(events)
        reader.rollback(first)

        assert ids(events)[:4] == [1, 2, 3, 0]


@pytest.mark.spec("Q3")
def test_closing_is_a_rollback(ten: Queue) -> None:
    with ten.reader(transactional=True) as reader:
        reader.fetch(3)
        reader.commit(0)
        assert ten.info().in_flight == 2

    assert (ten.info().events, ten.info().in_flight) == (9, 0)
    assert [(e.event_id, e.redelivery_count) for e in ten.reader().fetch(3)] == [
        (1, 1),
        (2, 1),
        (3, 0),
    ]


def test_an_exception_in_the_block_gives_back_what_is_not_committed(ten: Queue) -> None:
    def work_through() -> None:
        with ten.reader(transactional=True, timeout=WAIT_S) as reader:
            for event in reader:
                if event.properties["n"] == 2:
                    raise KeyError("cannot")
                reader.commit(event)

    with pytest.raises(KeyError):
        work_through()

    assert ids(ten.peek(2)) == [2, 3]


def test_what_cannot_be_committed_is_refused(ten: Queue) -> None:
    with ten.reader(transactional=True, window=5, timeout=WAIT_S) as reader:
        next(iter(reader))
        with pytest.raises(
            penstock.IllegalState, match="event 3 has not been received from this reader yet"
        ):
            reader.commit(3, individual=True)
        with pytest.raises(penstock.IllegalState, match="event 9"):
            reader.commit(9, individual=True)
        with pytest.raises(penstock.InvalidArgument, match="needs an event or its id"):
            reader.commit(individual=True)
        with pytest.raises(penstock.InvalidArgument, match="give an event that was read"):
            reader.rollback(penstock.Event())

        reader.commit()
    assert ten.info().events == 9


@pytest.mark.spec("Q3", "T10")
def test_an_event_rolled_back_too_often_is_dead(session: Session) -> None:
    dead = session.channels.create("dead")
    work = session.queues.create("work", dead_event_store="dead", max_deliveries=2)
    work.push(b"poison")
    work.push(b"good")
    with work.reader(transactional=True) as reader:
        for _ in range(2):
            [event] = reader.fetch(1)
            reader.rollback(event)
        [event] = reader.fetch(1)
        assert event.data == b"good"

    [buried] = dead.browse()
    assert buried.data == b"poison"
    assert buried.origin is not None
    assert (buried.origin.store, buried.origin.cause) == ("work", "redelivery_limit")


def test_a_reader_that_is_opened_again_begins_anew(ten: Queue) -> None:
    reader = ten.reader(transactional=True)
    with reader:
        reader.fetch(2)
    with reader:
        assert [e.redelivery_count for e in reader.fetch(2)] == [1, 1]
        reader.commit()
    reader.close()

    assert ten.info().events == 8


@pytest.mark.slow
@pytest.mark.spec("C1e", "Q1")
@pytest.mark.parametrize("transactional", [False, True])
def test_a_reader_of_a_transient_queue_misses_nothing_between_its_calls(
    session: Session, transactional: bool
) -> None:
    relay = session.queues.create("relay", type="transient")
    with relay.reader(transactional=transactional) as reader:
        assert reader.fetch(1) == []
        for number in range(3):
            relay.push(b"%d" % number)
        assert [event.data for event in reader.fetch(2, timeout=5.0)] == [b"0", b"1"]
        relay.push(b"3")
        assert [event.data for event in reader.fetch(2, timeout=5.0)] == [b"2", b"3"]
        if transactional:
            reader.rollback()  # nothing keeps them
        assert reader.fetch(1, timeout=0.05) == []
    relay.push(b"to nobody")
    with relay.reader() as reader:
        assert reader.fetch(1, timeout=0.05) == []
