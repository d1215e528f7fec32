"""A realm on virtual time does in milliseconds what takes a real one days."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

import penstock
from penstock_testing.loop import pass_time
from penstock_testing.virtual_loop import StillWaiting
from penstock_testing.virtual_realm import VirtualRealm
from tests.loops import on_a_loop

START = datetime(2026, 5, 4, 12, tzinfo=UTC)
DAY_MS = 86_400_000
SECOND = timedelta(seconds=1)


@pytest.fixture
def realm() -> Iterator[VirtualRealm]:
    with VirtualRealm(start=START) as realm:
        yield realm


@pytest.fixture
def session(realm: VirtualRealm) -> Iterator[penstock.Session]:
    with realm.connect() as session:
        yield session


def datas(events: Any) -> list[bytes]:
    return [event.data for event in events]


# --- a day -------------------------------------------------------------------------------


def test_an_event_expires_after_a_day_and_not_before(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    unpaid = session.channels.create("unpaid")
    orders = session.channels.create("orders", ttl=DAY_MS, dead_event_store="unpaid")
    orders.publish(b"order 1")

    realm.advance(hours=24, seconds=-1)
    assert datas(orders.browse()) == [b"order 1"]

    realm.advance(SECOND)
    assert datas(orders.browse()) == []
    (dead,) = unpaid.browse()
    assert dead.data == b"order 1"
    assert dead.origin is not None
    assert dead.origin.cause == "expired"


def test_a_backoff_of_a_day_is_kept(realm: VirtualRealm, session: penstock.Session) -> None:
    jobs = session.channels.create("jobs")
    worker = jobs.durables.create("worker", backoff={"first": "1d", "factor": 2, "most": "10d"})
    jobs.publish(b"job")
    times = []
    for _ in range(3):
        (event,) = worker.fetch(1, timeout="30d")
        times.append(realm.now - START)
        event.rollback()

    assert times == [timedelta(0), timedelta(days=1), timedelta(days=3)]


def test_an_event_that_is_not_acknowledged_within_a_day_goes_to_another_client(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    jobs = session.channels.create("jobs")
    worker = jobs.durables.create("worker", type="shared", ack_timeout="1d")
    jobs.publish(b"job")  # at noon, a time to which deadlines are rounded
    assert datas(worker.fetch(1)) == [b"job"]
    with realm.connect() as other_session:
        waiting = other_session.channels.get("jobs").durables.get("worker")

        realm.advance(hours=24, seconds=-1)
        assert waiting.fetch(1) == []

        realm.advance(SECOND)
        (event,) = waiting.fetch(1)
    assert event.redelivery_count == 1


@pytest.mark.slow
def test_events_under_a_lease_over_http_go_back_when_it_ends(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    jobs = session.channels.create("jobs")
    jobs.durables.create("worker", type="shared")
    jobs.publish(b"job")
    url = f"{realm.listen_http()}/api/v1/channels/jobs/durables/worker/fetch"

    def fetched() -> list[Any]:
        body = json.dumps({"count": 10, "lease_ms": DAY_MS // 2}).encode()
        with urlopen(Request(url, body, {"content-type": "application/json"})) as answer:
            items: list[Any] = json.load(answer)["items"]
            return items

    assert len(fetched()) == 1
    realm.advance(hours=12, seconds=-1)
    assert fetched() == []
    realm.advance(SECOND)
    assert len(fetched()) == 1


def test_a_schedule_publishes_after_a_day(realm: VirtualRealm, session: penstock.Session) -> None:
    reminders = session.channels.create("reminders")
    reminders.publish(b"tomorrow", deliver_at=realm.now + timedelta(days=1))
    reminders.publish(b"next week", deliver_at=START + timedelta(days=7))

    realm.advance_to(START + timedelta(days=1) - SECOND)
    assert datas(reminders.browse()) == []
    realm.advance(SECOND)
    assert datas(reminders.browse()) == [b"tomorrow"]
    realm.advance_to(START + timedelta(days=7))
    (_, last) = reminders.browse()
    assert last.published == START + timedelta(days=7)


def test_what_is_due_within_an_advance_is_done_in_its_order_and_at_its_time(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    """A dead event gets the time at which it died, and what follows from it begins there."""
    session.channels.create("given-up", ttl=DAY_MS)
    late = session.channels.create("late", ttl=DAY_MS, dead_event_store="given-up")
    session.channels.create("orders", ttl=DAY_MS, dead_event_store="late").publish(b"1")

    realm.advance(days=1, hours=12)
    (event,) = late.browse()
    assert event.published == START + timedelta(days=1)
    realm.advance(days=1)
    (event,) = session.channels.get("given-up").browse()
    assert event.published == START + timedelta(days=2)
    realm.advance(days=1)
    assert datas(session.channels.get("given-up").browse()) == []


def test_what_is_due_less_than_a_millisecond_after_another_event_is_done_too(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    """A realm looks for what is due once in a millisecond at most."""
    orders = session.channels.create("orders", ttl=DAY_MS)
    orders.publish(b"1")
    realm.advance(timedelta(microseconds=300))
    orders.publish(b"2")

    realm.advance(days=1)

    assert realm.now == START + timedelta(days=1, microseconds=300)
    assert datas(orders.browse()) == []


# --- waiting -----------------------------------------------------------------------------


def test_time_stands_still_while_a_test_computes(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    orders = session.channels.create("orders")
    orders.publish(b"1")
    list(orders.browse())

    assert realm.now == START


def test_a_call_that_waits_takes_no_real_time(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    queue = session.queues.create("jobs")

    assert queue.pop(timeout="1h") is None
    assert realm.now == START + timedelta(hours=1)

    queue.push(b"job", deliver_at=realm.now + timedelta(minutes=30))
    event = queue.pop(timeout="1h")
    assert event is not None
    assert realm.now == START + timedelta(hours=1, minutes=30)


@pytest.mark.slow
def test_a_call_that_waits_for_what_never_comes_fails(session: penstock.Session) -> None:
    queue = session.queues.create("jobs")

    with pytest.raises(StillWaiting, match=r"Queue\.pop has waited for 366 days of virtual"):
        queue.pop()


@pytest.mark.slow
def test_sessions_stay_connected_over_a_year(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    lost: list[object] = []
    session.on_interruption(lost.append)
    worker = session.channels.create("jobs").durables.create("worker")
    session.channels.get("jobs").publish(b"1")
    (event,) = worker.fetch(1)

    realm.advance(days=365)

    event.ack()
    session.close()
    assert lost == []


def test_a_handler_works_while_time_stands_still(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    """It calls the session from its own thread, and may take what real time it likes."""
    jobs = session.channels.create("jobs")
    done = session.channels.create("done")
    worker = jobs.durables.create("worker", backoff={"first": "1h", "factor": 1, "most": "1h"})
    times = []

    def handle(event: penstock.DeliveredEvent) -> None:
        begun = realm.now
        computed = threading.Event()
        threading.Timer(0.02, computed.set).start()
        computed.wait()
        times.append((begun - START, realm.now - begun))
        if event.redelivery_count < 2:
            raise ValueError("not yet")
        done.publish(event.data)

    with worker.subscribe(handle, auto_ack=True):
        jobs.publish(b"job")
        realm.advance(days=1)

    nothing = timedelta(0)
    assert times == [(timedelta(hours=count), nothing) for count in range(3)]
    assert datas(done.browse()) == [b"job"]


def test_only_the_thread_that_made_the_realm_lets_time_pass(
    realm: VirtualRealm, session: penstock.Session
) -> None:
    queue = session.queues.create("jobs")
    popped: list[object] = []
    waiting = threading.Thread(target=lambda: popped.append(queue.pop(timeout="1h")))
    waiting.start()
    queue.push(b"job")
    waiting.join()

    assert popped != [None]
    assert realm.now == START


def test_a_realm_may_be_closed_in_another_thread(realm: VirtualRealm) -> None:
    session = realm.connect()
    session.queues.create("jobs").push(b"job")
    closing = threading.Thread(target=realm.close)
    closing.start()
    closing.join()

    assert realm.open_sessions == 0


# --- asynchronous ------------------------------------------------------------------------


def test_an_asynchronous_test_runs_on_the_loop_of_the_realm(realm: VirtualRealm) -> None:
    async def story(hours: int) -> timedelta:
        async with realm.aio_connect() as session, asyncio.TaskGroup() as group:
            queue = await session.queues.create("jobs")

            async def push_later() -> None:
                await pass_time(hours * 3_600)
                await queue.push(b"late")

            group.create_task(push_later())
            event = await queue.pop(timeout="1d")
            assert event is not None
            return realm.now - START

    assert realm.run(story, 5) == timedelta(hours=5)
    with realm.connect() as session:
        assert session.queues.get("jobs").pop(timeout=0) is None


def test_blocking_code_may_run_beside_an_asynchronous_test(realm: VirtualRealm) -> None:
    def work(queue: penstock.Queue) -> object:
        return queue.pop(timeout="1h")

    async def story() -> object:
        with_result = asyncio.to_thread(work, queue)
        async with asyncio.TaskGroup() as group:
            working = group.create_task(with_result)
            await pass_time(60)
            assert not working.done()
        return working.result()

    with realm.connect() as session:
        queue = session.queues.create("jobs")
        assert realm.run(story) is None
    assert realm.now == START + timedelta(hours=1)


def test_an_error_of_an_asynchronous_test_shows_its_line(realm: VirtualRealm) -> None:
    async def story() -> None:
        async with realm.aio_connect() as session:
            await session.channels.get("none")

    with pytest.raises(penstock.NameDoesNotExist) as raised:
        realm.run(story)

    assert "story" in [entry.name for entry in raised.traceback]


@pytest.mark.slow
def test_an_asynchronous_test_that_waits_for_what_never_comes_fails(realm: VirtualRealm) -> None:
    async def story() -> None:
        await asyncio.Event().wait()

    with pytest.raises(StillWaiting, match=r"story has waited for 3660 days of virtual time"):
        realm.run(story)


# --- errors ------------------------------------------------------------------------------


@pytest.mark.parametrize("duration", [-1, -0.5, "-1h", timedelta(hours=-1)])
def test_time_never_goes_backwards(realm: VirtualRealm, duration: Any) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"-"):
        realm.advance(duration)
    with pytest.raises(penstock.InvalidArgument, match=r"by -60 s; allowed are 0 to"):
        realm.advance(minutes=-1)
    with pytest.raises(penstock.InvalidArgument, match="allowed are 0 to"):
        realm.advance_to(START - SECOND)
    assert realm.now == START


@pytest.mark.parametrize("duration", [True, "soon", float("nan"), [1]])
def test_a_duration_that_is_none_is_refused(realm: VirtualRealm, duration: Any) -> None:
    with pytest.raises(penstock.InvalidArgument):
        realm.advance(duration)
    with pytest.raises(penstock.InvalidArgument, match="advance needs a duration, such as"):
        realm.advance()


def test_times_without_a_zone_are_refused(realm: VirtualRealm) -> None:
    naive = datetime(2026, 5, 4)  # noqa: DTZ001
    with pytest.raises(penstock.InvalidArgument, match="no time zone"):
        VirtualRealm(start=naive)
    with pytest.raises(penstock.InvalidArgument, match="no time zone"):
        realm.advance_to(naive)


def test_the_clock_of_a_closed_realm_does_not_move(realm: VirtualRealm) -> None:
    session = realm.connect()
    realm.close()

    with pytest.raises(penstock.IllegalState, match="advance needs an open realm; this one is"):
        realm.advance(hours=1)
    with pytest.raises(penstock.SessionClosed):
        session.channels.get("orders")
    assert realm.now == START


def test_advance_within_run_names_what_to_use(realm: VirtualRealm) -> None:
    async def story() -> None:
        realm.advance(hours=1)

    with pytest.raises(penstock.IllegalState, match=r"within run, `await asyncio\.sleep"):
        realm.run(story)


def test_advance_in_another_thread_is_refused(realm: VirtualRealm) -> None:
    async def story() -> None:
        await asyncio.to_thread(realm.advance, 1)

    with pytest.raises(penstock.IllegalState, match="in another thread than the one that created"):
        realm.run(story)


def test_run_takes_a_coroutine_function(realm: VirtualRealm) -> None:
    async def story() -> None: ...

    wrong: Any = story()
    with pytest.raises(penstock.InvalidArgument, match="is not a coroutine function; pass one"):
        realm.run(wrong)
    with pytest.raises(penstock.InvalidArgument, match="is not a coroutine function; pass one"):
        realm.run(lambda: wrong.cr_code)
    with pytest.raises(penstock.IllegalState, match="outside of run"):
        connect_from_another_loop(realm)


@on_a_loop
async def connect_from_another_loop(realm: VirtualRealm) -> None:
    await realm.aio_connect()


# --- the realm ---------------------------------------------------------------------------


def test_a_realm_in_a_directory_goes_on_a_day_later(tmp_path: Path) -> None:
    with VirtualRealm(tmp_path, start=START) as realm, realm.connect() as session:
        session.channels.create("orders", ttl=DAY_MS).publish(b"1")
    with (
        VirtualRealm(tmp_path, start=START + timedelta(days=2)) as realm,
        realm.connect() as session,
    ):
        assert datas(session.channels.get("orders").browse()) == []


def test_the_clock_begins_with_the_time_of_the_machine() -> None:
    before = datetime.now(UTC)
    with VirtualRealm() as realm:
        assert before <= realm.now <= datetime.now(UTC)
        assert repr(realm).startswith("<VirtualRealm in memory, open, at 20")


def test_clients_of_other_loops_reach_it(realm: VirtualRealm) -> None:
    """Their own clocks are real."""
    with penstock.connect(realm.listen()) as session:
        orders = session.channels.create("orders", ttl=DAY_MS)
        orders.publish(b"1")
        realm.advance(days=1)
        assert datas(orders.browse()) == []
        assert session.is_connected


def test_calls_leave_no_timers_behind(realm: VirtualRealm, session: penstock.Session) -> None:
    orders = session.channels.create("orders")
    for _ in range(300):
        orders.publish(b"1")

    assert len(realm.clock.timers) < 200


def test_a_month_takes_a_moment(realm: VirtualRealm, session: penstock.Session) -> None:
    """Counted in rounds of the loop: upkeep of a realm is due every second, and a month has
    2,592,000 of them."""
    for number in range(20):
        session.channels.create(f"orders {number}", ttl=number * DAY_MS).publish(b"1")
    rounds = 0
    leap = realm.clock.leap

    def counted(timeout: float | None) -> bool:
        nonlocal rounds
        rounds += 1
        return leap(timeout)

    realm.clock.leap = counted  # type: ignore[method-assign]

    realm.advance(days=30)

    assert 30 < rounds < 400
