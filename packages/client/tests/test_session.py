"""A session from its opening to its end, used from threads, loops and forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import aio
from penstock.client.sync.sync import Channel, Session
from tests.loops import on_a_loop


def test_a_session_says_what_the_realm_says_of_itself(session: Session) -> None:
    session.channels.create("orders")

    info = session.info()

    assert (info.name, info.version, info.channels) == ("penstock", penstock.__version__, 1)
    assert info.connections == 1
    assert len(session.realm_id) == 32


def test_a_closed_session_says_so_and_may_be_closed_again(session: Session) -> None:
    session.close()
    session.close()

    with pytest.raises(penstock.SessionClosed, match="the session is closed"):
        session.info()


def test_a_session_outlives_the_closing_of_another(realm: penstock.Realm) -> None:
    with realm.connect() as first, realm.connect() as second:
        first.close()

        assert second.info().connections == 1


def test_closing_the_realm_wakes_waiting_calls(realm: penstock.Realm) -> None:
    session = realm.connect()
    subscription = session.channels.create("orders").subscribe().open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscription.next_batch)
        realm.close()

        with pytest.raises(penstock.SessionClosed):
            waiting.result(30)


def test_closing_a_session_wakes_waiting_calls_of_other_threads(session: Session) -> None:
    subscription = session.channels.create("orders").subscribe().open()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(subscription.next_batch)
        session.close()

        with pytest.raises(penstock.SessionClosed):
            waiting.result(30)


def test_several_threads_share_a_session(orders: Channel) -> None:
    def publish(worker: int) -> list[int]:
        return [orders.publish(b"", properties={"worker": worker, "n": n}) for n in range(25)]

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(publish, range(4)))

    assert sorted(event_id for thread_ids in ids for event_id in thread_ids) == list(range(100))
    assert all(thread_ids == sorted(thread_ids) for thread_ids in ids)


@on_a_loop
async def test_a_blocking_call_inside_an_event_loop_blocks_that_loop_alone(orders: Channel) -> None:
    assert orders.publish(b"") == 0


def test_a_blocking_call_from_an_error_listener_is_refused_and_not_a_deadlock(
    session: Session, orders: Channel
) -> None:
    refused: list[penstock.PenstockError] = []
    heard = threading.Event()

    def listener(_: penstock.PenstockError) -> None:
        try:
            session.info()
        except penstock.PenstockError as error:
            refused.append(error)
        heard.set()

    session.on_error(listener)
    with orders.producer() as producer:
        producer.send(b"", properties={"n": object()})

    assert heard.wait(30)
    assert isinstance(refused[0], penstock.IllegalState)


def test_a_session_is_of_no_use_after_a_fork(session: Session) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:  # from here on nothing may return: this is a copy of the test run
        try:
            session.info()
        except penstock.PenstockError as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read) as answer:
        answer_text = answer.read()

    assert answer_text == (
        "SessionClosed: this session was opened before a fork; open a new session in the child "
        "process"
    )
    assert session.info().connections == 1


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_an_invalid_reconnect_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(penstock.InvalidArgument, match=r"reconnect_timeout is .*; give seconds"):
        penstock.connect("penstock://localhost:1", reconnect_timeout=timeout)


def test_where_no_realm_is_the_refusal_names_each_address_and_its_reason() -> None:
    with pytest.raises(penstock.CannotConnect, match=r"127\.0\.0\.1:1: .*; 127\.0\.0\.1:2: .*"):
        penstock.connect("penstock://127.0.0.1:1,127.0.0.1:2")


def test_a_list_of_addresses_means_fail_over(realm: penstock.Realm) -> None:
    address = realm.listen().removeprefix("penstock://")
    with penstock.connect(f"penstock://127.0.0.1:1,{address}") as session:
        assert session.info().connections == 1


@on_a_loop
async def test_the_asyncio_client_does_the_same(realm: penstock.Realm) -> None:
    url = realm.listen()

    async with aio.connect(url) as session:
        orders = await session.channels.create("orders")
        await orders.publish(b"one")
        async with orders.producer() as producer:
            await producer.send(b"two")
        durable = await orders.durables.create("d")
        async with durable.subscribe(timeout=5) as subscription:
            browsed = []
            async for event in subscription:
                browsed.append(event.data)
                await event.ack()
                if len(browsed) == 2:
                    break
            await subscription.flush()
        assert (await durable.info()).outstanding == 0
        assert browsed == [b"one", b"two"]


@on_a_loop
async def test_so_it_does_with_queues_transactions_and_schedules(realm: penstock.Realm) -> None:
    later = datetime.now(UTC) + timedelta(days=1)

    url = realm.listen()

    async with aio.connect(url) as session:
        work = await session.queues.create("work")
        orders = await session.channels.create("orders")
        await session.joins.create("orders", "work")
        async with session.transaction() as tx:
            await tx.publish(orders, b"0")
            await tx.publish_many(work, [penstock.Event(b"1"), penstock.Event(b"2")])
        assert tx.ids == {"orders": range(1), "work": range(1, 3)}
        async with work.transaction() as single:
            await single.publish(b"3")
        assert await session.is_committed(single.id)
        async with work.reader(transactional=True, window=2, timeout=5.0) as reader:
            async for event in reader:
                assert event.data == b"0"
                break
            await reader.commit()
            assert [event.data for event in await reader.fetch(2)] == [b"1", b"2"]
        popped = await work.pop(5.0)
        assert popped is not None
        assert (popped.data, popped.redelivered) == (b"1", True)
        rest = [event.data async for event in work.reader(timeout=0.0)]
        assert rest == [b"2", b"3"]
        number = await work.push(b"later", deliver_at=later)
        assert [s.number for s in await work.scheduled.list()] == [number]
        assert await work.scheduled.cancel(number)
        assert (await work.info()).events == 0


@on_a_loop
async def test_a_pop_that_is_cancelled_loses_nothing(realm: penstock.Realm) -> None:
    url = realm.listen()

    async with aio.connect(url) as session:
        work = await session.queues.create("work")
        for n in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.0 if n % 2 else 0.003):
                    await work.pop()
                    raise AssertionError("there was nothing")
            await work.push(b"%d" % n)
            event = await work.pop(10.0)
            assert event is not None
            assert event.data == b"%d" % n
        await work.close()
        assert (await work.info()).readers == ()
