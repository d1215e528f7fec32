"""Events that a trigger holds, without Airflow: what is acknowledged, and what comes again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import penstock
from penstock_airflow import held_events
from penstock_airflow.held_events import HeldEvent, HeldEvents
from tests.loops import on_a_loop
from tests.patience import until

Read = tuple[dict[str, Any], HeldEvent]
DURABLE = {"channel": "orders", "durable": "billing"}
QUEUE = {"queue_name": "work"}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_events, "SETTLING_DELAY_S", 0.01)
    monkeypatch.setattr(held_events, "RETRY_S", 0.01)


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    return realm.listen()


@pytest.fixture
def queue(session: penstock.Session) -> penstock.Queue:
    return session.queues.create("work")


@pytest.fixture
def orders(session: penstock.Session) -> penstock.Channel:
    return session.channels.create("orders")


@pytest.fixture
def billing(orders: penstock.Channel) -> penstock.Durable:
    return orders.durables.create("billing", type="shared")


def held_at(url: str, **source: Any) -> HeldEvents:
    async def find_url() -> str:
        return url

    defaults = {"queue_name": None, "channel": None, "durable": None, "selector": "", "window": 10}
    return HeldEvents(find_url, **{**defaults, **source})


class ReadEvents(list[Read]):
    """Events that were read, and the stream of further ones."""

    stream: AsyncGenerator[Read, None]


@asynccontextmanager
async def streaming(events: HeldEvents, count: int) -> AsyncIterator[ReadEvents]:
    """Read ``count`` events; the events are closed at the end of the block, as Airflow does."""
    read = ReadEvents()
    try:
        async with aclosing(events.stream()) as read.stream, asyncio.timeout(60):
            for _ in range(count):
                read.append(await anext(read.stream))
            yield read
    finally:
        await events.close()


async def settle(url: str, outcomes: list[bool], **source: Any) -> list[dict[str, Any]]:
    """Read as many events as there are ``outcomes``, which state whether Airflow has stored each.
    Return their documents."""
    events = held_at(url, **source)
    async with streaming(events, len(outcomes)) as read:
        settled = [(held, outcome) for (_, held), outcome in zip(read, outcomes, strict=True)]
        await events.settle(settled)
    return [document for document, _ in read]


def numbered(count: int) -> list[penstock.Event]:
    return [penstock.Event(b"%d" % number) for number in range(count)]


@on_a_loop
async def test_stored_events_of_a_durable_are_acknowledged(
    orders: penstock.Channel, billing: penstock.Durable, url: str
) -> None:
    orders.publish_many(numbered(3))

    documents = await settle(url, [True] * 3, **DURABLE)

    assert [document["data"] for document in documents] == ["0", "1", "2"]
    assert {document["channel"] for document in documents} == {"orders"}
    assert billing.info().outstanding == 0


@on_a_loop
async def test_stored_events_of_a_queue_are_removed(queue: penstock.Queue, url: str) -> None:
    queue.push(b"\xff", properties={"price": 2.5})

    documents = await settle(url, [True], **QUEUE)

    assert [(document["queue"], document["data_base64"]) for document in documents] == [
        ("work", "/w==")
    ]
    assert documents[0]["properties"] == {"price": 2.5}
    assert queue.info().events == 0


@on_a_loop
async def test_a_durable_over_a_pattern_reads_all_its_channels(
    session: penstock.Session, url: str
) -> None:
    for name in ("shop/north", "shop/south"):
        channel = session.channels.create(name)
        channel.durables.create("billing", type="shared")
        channel.publish(name.encode())

    documents = await settle(url, [True, True], channel="shop/*", durable="billing")

    assert {document["channel"] for document in documents} == {"shop/north", "shop/south"}
    assert all(document["data"] == document["channel"] for document in documents)


@on_a_loop
async def test_a_selector_chooses_events(orders: penstock.Channel, url: str) -> None:
    orders.durables.create("billing", type="exclusive")
    orders.publish(b"cheap", properties={"price": 1})
    orders.publish(b"dear", properties={"price": 9})

    documents = await settle(url, [True], **DURABLE, selector="price > 5")

    assert [document["data"] for document in documents] == ["dear"]


@pytest.mark.parametrize("type", ["shared", "exclusive"])
@on_a_loop
async def test_the_window_limits_the_events_that_are_held(
    orders: penstock.Channel, url: str, type: Any
) -> None:
    billing = orders.durables.create("billing", type=type)
    orders.publish_many(numbered(3))
    events = held_at(url, **DURABLE, window=2)

    async with streaming(events, 2) as read, asyncio.TaskGroup() as tasks:
        third = tasks.create_task(anext(read.stream))
        early, _ = await asyncio.wait([third], timeout=0.05)
        await events.settle([(read[0][1], True)])
        document, _ = await third

    assert not early
    assert document["data"] == "2"
    assert billing.info().outstanding == 2


@pytest.mark.parametrize("type", ["shared", "exclusive", "serial"])
@on_a_loop
async def test_no_event_is_acknowledged_after_one_that_is_not_stored(
    orders: penstock.Channel, url: str, type: Any
) -> None:
    """An acknowledgement of an exclusive durable covers all earlier events."""
    billing = orders.durables.create("billing", type=type)
    orders.publish_many(numbered(3))
    events = held_at(url, **DURABLE)

    async with streaming(events, 3) as read:
        first, second, third = (held for _, held in read)
        await events.settle([(first, True), (second, False)])
        await events.settle([(third, True)])

    assert billing.info().outstanding == 2
    documents = await settle(url, [True, True], **DURABLE)
    assert [document["data"] for document in documents] == ["1", "2"]


@pytest.mark.parametrize("source", [DURABLE, QUEUE])
@on_a_loop
async def test_events_come_again_if_the_trigger_is_cancelled_before_they_are_acknowledged(
    orders: penstock.Channel,
    billing: penstock.Durable,
    queue: penstock.Queue,
    url: str,
    source: dict[str, str],
) -> None:
    orders.publish(b"0")
    queue.push(b"0")
    events = held_at(url, **source)

    async with asyncio.TaskGroup() as tasks, streaming(events, 1) as read:
        tasks.create_task(events.settle([(read[0][1], True)]))
        await asyncio.sleep(0)  # the task waits for the delay

    again = await settle(url, [True], **source)
    assert again[0]["data"] == "0"
    assert again[0]["redelivery_count"] == 1


@on_a_loop
async def test_a_missing_durable_is_awaited(
    orders: penstock.Channel, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def create() -> None:
        await asyncio.to_thread(until, lambda: "cannot be read" in caplog.text)
        await asyncio.to_thread(orders.durables.create, "billing", type="shared")
        await asyncio.to_thread(orders.publish, b"late")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(create())
        documents = await settle(url, [True], **DURABLE)

    assert documents[0]["data"] == "late"
    assert "durable 'billing' of 'orders' cannot be read" in caplog.text


@on_a_loop
async def test_an_event_that_has_returned_comes_again_and_the_others_are_acknowledged(
    queue: penstock.Queue, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many(numbered(2))

    async def lost() -> None:
        raise penstock.IllegalState("the event has returned")

    events = held_at(url, **QUEUE)
    async with streaming(events, 2) as read:
        await events.settle([(lost, True), (read[1][1], True)])

    assert "an event of queue 'work' comes again: the event has returned" in caplog.text
    assert queue.info().events == 1
