"""Several tasks or threads wait at one subscription: each of them gets events, whichever way they
arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import penstock
from packages.client.tests.archiving import Archiver
from packages.client.tests.simulated import URL, World, in_world
from penstock import aio
from penstock.client.reading.inbox import Buffered, Inbox
from penstock.client.sync.sync import Channel, Session
from penstock_core.vocabulary.errors import SessionClosed
from penstock_testing.loop import pass_time, simulated

WAIT_S = 30.0


@in_world
async def test_two_tasks_open_a_subscription_once(world: World) -> None:
    async with aio.connect(URL) as session, asyncio.TaskGroup() as tasks:
        orders = await session.channels.create("orders")
        await orders.publish(b"0")
        events = orders.subscribe(start="earliest")
        waiting = [tasks.create_task(events.next_batch(60.0)) for _ in range(2)]
        await world.until(lambda: any(call.done() for call in waiting))
        await orders.publish(b"1")
        await world.until(lambda: all(call.done() for call in waiting))

        got = [batch.event_ids.tolist() for call in waiting if (batch := call.result())]

        assert sorted(got) == [[0], [1]]
        await events.close()


def test_two_threads_open_a_subscription_once(session: Session, orders: Channel) -> None:
    orders.publish(b"0")
    events = orders.subscribe(start="earliest")
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(events.next_batch, WAIT_S) for _ in range(2)]
        wait(waiting, WAIT_S, FIRST_COMPLETED)
        orders.publish(b"1")
        got = [batch.event_ids.tolist() for call in waiting if (batch := call.result())]
    events.close()

    assert sorted(got) == [[0], [1]]


@in_world
async def test_who_waits_is_woken_by_what_loops_have_left(world: World) -> None:
    async with aio.connect(URL) as session, asyncio.TaskGroup() as tasks:
        orders = await session.channels.create("orders")
        async with orders.subscribe(start="earliest") as events:
            loops = [aiter(events), aiter(events)]
            for n, loop in enumerate(loops):
                await orders.publish_many([aio.Event()] * 2)
                assert (await anext(loop)).event_id == 2 * n
            waiting = tasks.create_task(events.next_batch())
            await pass_time(1)
            assert not waiting.done()

            del loop
            loops.clear()
            first = await events.next_batch(60.0)
            await world.until(waiting.done)

            second = waiting.result()
            assert first is not None
            assert second is not None
            assert (first.event_ids.tolist(), second.event_ids.tolist()) == ([1], [3])


@in_world
async def test_who_waits_in_an_archive_goes_on_with_the_channel(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task opens the channel behind the archive while another waits for the next event."""
    uri = archived(tmp_path, 3)
    is_looking, may_look = asyncio.Event(), asyncio.Event()

    async def in_place(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if call.__name__ == "refresh":
            is_looking.set()
            await may_look.wait()
        return call(*arguments, **options)

    monkeypatch.setattr(asyncio, "to_thread", in_place)
    async with aio.connect(URL) as session, asyncio.TaskGroup() as tasks:
        orders = await session.channels.create("orders")
        await orders.publish_many([aio.Event(b"%d" % n) for n in range(4)])
        async with orders.subscribe(start="earliest", archive=uri) as events:
            old = await events.next_batch(60.0)
            assert old is not None
            assert old.event_ids.tolist() == [0, 1, 2]
            one = tasks.create_task(events.next_batch())
            await is_looking.wait()
            second = tasks.create_task(events.next_batch())
            await pass_time(1)
            may_look.set()
            await world.until(lambda: one.done() or second.done())
            await orders.publish(b"4")
            await world.until(lambda: one.done() and second.done())

            batches = [
                batch.event_ids.tolist() for batch in (one.result(), second.result()) if batch
            ]
            assert sorted(batches) == [[3], [4]]


def archived(path: Path, count: int) -> str:
    """A table of as many events; gives its address."""
    with penstock.Realm(path / "realm") as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(count)])
        archiver = Archiver(session, orders, path / "archive")
        archiver.take(count)
        return archiver.uri


@simulated
async def test_who_waits_at_an_inbox_hears_of_its_new_beginning_and_of_its_end() -> None:
    attachment: Any = None  # nothing is counted
    inbox: Inbox[list[int]] = Inbox(Buffered(attachment, 0))
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(inbox.get(None))
        await pass_time(1)
        inbox.renewed().put([1])
        assert await waiting == [1]

        tasks.create_task(_end_of(inbox))
        await pass_time(1)
        inbox.fail(SessionClosed("it is closed"))
        after = inbox.renewed()
        after.put([2])

    assert await after.get(None) == [2]


async def _end_of(inbox: Inbox[list[int]]) -> None:
    with pytest.raises(SessionClosed):
        await inbox.get(None)
