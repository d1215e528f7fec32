"""Request and reply over a session: who asks waits for an answer, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import penstock
from packages.client.tests.patience import eventually
from packages.client.tests.simulated import URL, World, in_world, served
from penstock import aio
from penstock.client.reading.received import replier_of
from penstock.client.sync.sync import Channel, Session
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import (
    CapacityReached,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    NoReply,
    SessionClosed,
)
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import SimLoop, pass_time, simulated
from penstock_testing.relay import Relay

PATIENT = 30.0


async def echo(channel: aio.Channel, *, started: asyncio.Event) -> None:
    """Reply to each event with its data."""
    async with channel.subscribe() as requests:
        started.set()
        async for request in requests:
            await request.reply(b"re: " + request.data, properties={"id": request.event_id})


async def replies(group: asyncio.TaskGroup, channel: aio.Channel) -> asyncio.Task[None]:
    started = asyncio.Event()
    task = group.create_task(echo(channel, started=started))
    await started.wait()
    return task


def asks(request: Coroutine[Any, Any, aio.ReceivedEvent]) -> asyncio.Task[aio.ReceivedEvent]:
    """Send a request while the test continues."""
    return start_task(request, on_failure=leave_to_owner)


def reply_queues(world: World) -> list[str]:
    return [store.name for store in world.listener.realm.view.temporary_stores()]


@pytest.mark.spec("R1", "R2")
@in_world
async def test_a_request_gets_its_reply(world: World) -> None:
    async with (
        aio.connect(URL) as server,
        aio.connect(URL) as client,
        asyncio.TaskGroup() as group,
    ):
        rates = await server.channels.create("rates")
        serving = await replies(group, rates)

        reply = await (await client.channels.get("rates")).request(b"EUR", PATIENT, tag="now")

        assert (reply.data, reply.properties) == (b"re: EUR", {"id": 0})
        (request_event,) = [event async for event in rates.browse()]
        assert request_event.tag == "now"
        assert reply.headers["correlation_id"] == request_event.headers["correlation_id"]
        serving.cancel()


@pytest.mark.spec("R1")
@in_world
async def test_many_requests_in_flight_share_one_queue_and_each_gets_its_own_reply(
    world: World,
) -> None:
    async with aio.connect(URL) as server, aio.connect(URL) as client:
        work = await server.queues.create("work")
        replies = [
            asks((await client.queues.get("work")).request(b"%d" % n, PATIENT)) for n in range(50)
        ]
        async with work.reader() as reader:
            requests = [event async for event in _first(reader, 50)]
            for request in reversed(requests):
                await request.reply(request.data)

        assert [(await reply).data for reply in replies] == [b"%d" % n for n in range(50)]
        assert len(reply_queues(world)) == 1


async def _first(reader: aio.Reader, count: int) -> Any:
    handled = 0
    async for event in reader:
        handled += 1
        yield event
        if handled == count:
            return


@pytest.mark.spec("R1")
@in_world
async def test_a_request_without_a_reply_ends_in_time_and_its_late_reply_is_dropped(
    world: World,
) -> None:
    async with aio.connect(URL) as server, aio.connect(URL) as client:
        await server.queues.create("work")
        work = await client.queues.get("work")
        begun = world.loop.time()
        with pytest.raises(NoReply, match=r"no reply to request 0 on work arrived within 5 s"):
            await work.request(b"first", 5)
        assert round(world.loop.time() - begun) == 5

        late = await (await server.queues.get("work")).pop()
        assert late is not None
        await late.reply(b"too late")
        second = asks(work.request(b"second", PATIENT))
        request = await (await server.queues.get("work")).pop()
        assert request is not None
        await request.reply(b"in time")
        await request.reply(b"and again")

        assert (await second).data == b"in time"
        (queue,) = reply_queues(world)
        await world.until(lambda: _events(world, queue) == 0)


def _events(world: World, queue: str) -> int:
    store = world.listener.realm.view.named(queue)
    assert store is not None
    return store.events


@pytest.mark.spec("R1", "D13")
@in_world
async def test_a_replier_that_dies_leaves_the_request_to_the_next(world: World) -> None:
    async with aio.connect(URL) as server, aio.connect(URL) as client:
        orders = await server.channels.create("orders")
        team = await orders.durables.create("team")
        pending_reply = asks((await client.channels.get("orders")).request(b"a", PATIENT))
        dying = await aio.connect(URL)
        first = await (await dying.channels.get("orders")).durables.get("team")
        assert await first.fetch(1, PATIENT)
        world.end_of(dying).abort()
        (again,) = await team.fetch(1, PATIENT)
        await again.reply(b"done")
        await again.ack()

        assert (await pending_reply).data == b"done"
        assert again.redelivery_count == 1
        await dying.close()


@pytest.mark.spec("R3")
@in_world
async def test_a_session_that_reconnects_gets_what_was_replied_meanwhile(world: World) -> None:
    async with aio.connect(URL) as server, aio.connect(URL) as client:
        work = await server.queues.create("work")
        pending_reply = asks((await client.queues.get("work")).request(b"a", PATIENT))
        request = await work.pop()
        assert request is not None
        world.end_of(client).abort()
        await request.reply(b"while you were away")

        assert (await pending_reply).data == b"while you were away"
        assert client.connection.reconnects == 1


@pytest.mark.spec("R3")
@in_world
async def test_the_reply_queue_goes_with_its_session(world: World) -> None:
    async with aio.connect(URL) as server:
        await server.queues.create("work")
        client = await aio.connect(URL)
        pending_reply = asks((await client.queues.get("work")).request(b"a", PATIENT))
        request = await (await server.queues.get("work")).pop()
        assert request is not None
        assert len(reply_queues(world)) == 1
        await client.close()

        assert reply_queues(world) == []
        with pytest.raises(SessionClosed):
            await pending_reply
        with pytest.raises(NameDoesNotExist, match="requesting session has ended"):
            await request.reply(b"too late")


@pytest.mark.spec("R3")
@in_world
async def test_the_reply_queue_of_a_lost_session_goes_after_the_event_timeout(
    world: World,
) -> None:
    async with aio.connect(URL) as server:
        await server.queues.create("work")
        client = await aio.connect(URL, reconnect_timeout=0)
        pending_reply = asks((await client.queues.get("work")).request(b"a", PATIENT))
        await world.until(lambda: _has_requested(world))
        world.listener.suspend(SessionClosed("for the test"))
        await pass_time(50)
        world.listener.resume()
        assert len(reply_queues(world)) == 1
        await pass_time(15)
        assert reply_queues(world) == []
        with pytest.raises(penstock.PenstockError):
            await pending_reply
        await client.close()


@pytest.mark.spec("R3")
@simulated
async def test_requests_go_on_with_the_realm_that_takes_over() -> None:
    """A request that waited in the memory of the stopped realm is lost, and its caller gets an
    error."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with served(loop, journal, blobs, orderly=False) as world:
        server, client = await aio.connect(URL), await aio.connect(URL)
        await server.queues.create("work", type="persistent")
        work = await client.queues.get("work")
        lost, kept = asks(work.request(b"lost", PATIENT)), asks(work.request(b"kept", PATIENT))
        await world.until(lambda: _has_requested(world, 2))
        world.end_of(client).pause_reading()
        first = await (await server.queues.get("work")).pop()
        assert first is not None
        await first.reply(b"to nobody")
        (name,) = reply_queues(world)
    async with served(loop, journal, blobs, orderly=False) as again:
        second = await (await server.queues.get("work")).pop()
        assert second is not None
        await second.reply(b"b")

        assert (await kept).data == b"b"
        with pytest.raises(NoReply, match=f"request {first.event_id} on work"):
            await lost
        assert reply_queues(again) == [name]
        await client.close()
        assert reply_queues(again) == []
        await server.close()


def _has_requested(world: World, requests: int = 1) -> bool:
    work = world.listener.realm.view.named("work")
    return work is not None and work.events == requests


@pytest.mark.spec("R1")
@in_world
async def test_what_refuses_the_request_refuses_it_at_once(world: World) -> None:
    async with aio.connect(URL) as session:
        full = await session.queues.create("full", capacity=1, storage={"honour_capacity": True})
        await full.push(b"there")
        with pytest.raises(CapacityReached):
            await full.request(b"a", PATIENT)
        with pytest.raises(InvalidArgument, match="timeout"):
            await full.request(b"a", -1)
        with pytest.raises(InvalidArgument, match="reply_to"):
            await full.request(b"a", 1, headers={"reply_to": "mine"})
        with pytest.raises(TypeError, match="deliver_at"):
            await full.request(b"a", 1, deliver_at=1)  # type: ignore[call-arg]


@pytest.mark.spec("R2")
@in_world
async def test_an_event_that_asks_for_no_reply_gets_none(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        await orders.publish(b"a", headers={"reply_to": "nowhere"})
        await orders.publish(b"b")
        asking, telling = [event async for event in orders.browse()]
        with pytest.raises(NameDoesNotExist, match="channel or queue nowhere, to which"):
            await asking.reply(b"")
        with pytest.raises(IllegalState, match="asks for no reply"):
            await telling.reply(b"")


@pytest.mark.spec("R2")
@in_world
async def test_a_reply_goes_to_any_store_with_the_id_that_the_request_has(world: World) -> None:
    """Programs that set the headers themselves, and JMS clients, send such requests."""
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        answers = await session.channels.create("answers")
        queue = await session.queues.create("queued")
        await orders.publish(b"a", headers={"reply_to": "topic://answers", "message_id": "ID:1"})
        identifiers = {"message_id": "ID:2", "correlation_id": "c"}
        await orders.publish(b"b", headers={"reply_to": "queue://queued", **identifiers})
        text = {"reply_to": "queued", "amqp": '{"body":"text"}'}
        await orders.publish(b"c", headers=text)
        async for request in orders.browse():
            await request.reply(request.data.upper())

        (first,) = [event async for event in answers.browse()]
        assert (first.data, first.headers["correlation_id"]) == (b"A", "ID:1")
        second, third = await queue.peek()
        assert (second.data, second.headers["correlation_id"]) == (b"B", "c")
        assert third.headers["amqp"] == '{"body":"text"}'
        assert "correlation_id" not in third.headers


@pytest.mark.spec("R2")
@in_world
async def test_every_way_to_receive_can_reply(world: World) -> None:
    async with aio.connect(URL) as session:
        orders = await session.channels.create("orders")
        team = await orders.durables.create("team")
        answers = await session.queues.create("answers")
        wanted = {"reply_to": "answers"}
        await orders.publish(b"", headers=wanted)
        async for batch in orders.browse().batches():
            await batch[0].reply(b"browsed")
        (fetched,) = await team.fetch(1)
        await fetched.reply(b"fetched")
        await fetched.rollback()
        async with team.subscribe(window=1) as subscription:
            event = await anext(aiter(subscription))
            await event.reply(b"delivered")
        await answers.push(b"", headers=wanted)
        async with answers.reader(transactional=True) as reader:
            for read in await reader.fetch(4, 1):
                if "reply_to" in read.headers:
                    await read.reply(b"read")
            await reader.rollback()
        assert [event.data for event in await answers.peek()] == [
            b"browsed",
            b"fetched",
            b"delivered",
            b"",
            b"read",
        ]


# --- the blocking client ------------------------------------------------------------------


@pytest.mark.spec("R1", "R2")
def test_blocking_callers_ask_and_reply(session: Session, orders: Channel) -> None:
    team = orders.durables.create("team")
    with ThreadPoolExecutor(1) as pool:
        pending_reply = pool.submit(orders.request, b"a", PATIENT, properties={"n": 1})
        (request,) = team.fetch(1, PATIENT)
        assert isinstance(request.reply(request.data + b"!", tag="yes"), int)
        request.ack()
        reply = pending_reply.result(PATIENT)

        assert (reply.data, reply.tag) == (b"a!", "yes")
        with pytest.raises(penstock.NoReply):
            orders.request(b"b", 0.01)


@pytest.mark.spec("R2")
def test_blocking_loops_give_events_that_can_be_replied_to(session: Session) -> None:
    work, answers = session.queues.create("work"), session.queues.create("answers")
    requests = [penstock.Event(headers={"reply_to": "answers"}) for _ in range(3)]
    orders = session.channels.create("orders")
    orders.publish_many(requests[:2])
    for event in orders.browse():
        event.reply(b"one by one")
    for batch in orders.browse().batches():
        batch[1].reply(b"by batch")
    work.push_many(requests)
    for event in work.reader(timeout=0):
        event.reply(b"read")
        break
    (fetched,) = work.reader().fetch(1, PATIENT)
    fetched.reply(b"fetched")
    popped = work.pop(PATIENT)
    assert popped is not None
    popped.reply(b"popped")
    seen = [event.data for event in answers.peek()]
    assert seen == [*[b"one by one"] * 2, b"by batch", b"read", b"fetched", b"popped"]
    with pytest.raises(penstock.IllegalState, match="not received"):
        replier_of(penstock.Event())


@pytest.mark.slow
@pytest.mark.spec("R3")
def test_a_request_outlives_a_connection_that_is_cut(relay: Relay, direct_session: Session) -> None:
    work = direct_session.queues.create("work")
    with penstock.connect(relay.url) as session, ThreadPoolExecutor(1) as pool:
        pending_reply = pool.submit(session.queues.get("work").request, b"a", PATIENT)
        request = work.pop(PATIENT)
        assert request is not None
        relay.cut()
        request.reply(b"b")

        assert pending_reply.result(PATIENT).data == b"b"
    eventually(lambda: direct_session.queues.list() == ["work"])
