"""Handlers of FastStream, called with the events of a realm."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from faststream import AckPolicy, Context, FastStream, Path
from faststream.exceptions import NackMessage, RejectMessage, SetupError, StopConsume

import penstock
from packages.faststream.tests.handlers import Order, broker_at, running, until
from penstock_faststream import DurableSub, PenstockMessage, PenstockResponse
from tests.loops import on_a_loop


@on_a_loop
async def test_a_handler_gets_the_events_of_a_durable_and_acknowledges_them(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, received = broker_at(url), list[tuple[Order, str, str]]()

    @broker.subscriber(name, durable="billing")
    async def bill(
        order: Order, message: PenstockMessage, sku: str = Context("message.headers.sku")
    ) -> None:
        received.append((order, sku, message.channel))

    async with running(broker):
        event_id = await broker.publish(Order(sku="a1"), name, headers={"sku": "a1"}, tag="new")
        durable = session.channels.get(name).durables.get("billing")
        await until(lambda: durable.info().outstanding == 0 and received)

    assert received == [(Order(sku="a1"), "a1", name)]
    assert event_id == 0
    assert durable.info().type == "shared"


@on_a_loop
async def test_what_a_handler_returns_is_published(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, invoices = broker_at(url), session.channels.create(f"{name}-invoices")

    @broker.subscriber(name, durable="billing")
    @broker.publisher(f"{name}-invoices", headers={"kind": "invoice"}, ttl="1h")
    async def bill(order: Order) -> PenstockResponse:
        return PenstockResponse({"total": order.price}, headers={"sku": order.sku}, priority=7)

    async with running(broker):
        await broker.publish({"sku": "a1", "price": 2.5}, name, correlation_id="c-1")
        await until(lambda: invoices.info().events)
    (invoice,) = invoices.browse()

    assert invoice.data == b'{"total":2.5}'
    assert invoice.properties == {
        "content-type": "application/json",
        "kind": "invoice",
        "sku": "a1",
    }
    assert (invoice.ttl, invoice.priority) == (3_600_000, 7)
    assert invoice.headers["correlation_id"] == "c-1"


@on_a_loop
async def test_an_event_whose_handler_fails_is_delivered_again(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, attempts = broker_at(url), list[int]()
    session.channels.create(f"{name}-dead")
    session.channels.create(name, dead_event_store=f"{name}-dead")

    @broker.subscriber(name, durable=DurableSub("billing", max_deliveries=3))
    async def bill(order: str, message: PenstockMessage) -> None:
        attempts.append(message.raw_message.redelivery_count)
        raise ValueError(order)

    async with running(broker):
        await broker.publish("a1", name)
        await until(lambda: session.channels.get(f"{name}-dead").info().events)
    (dead,) = session.channels.get(f"{name}-dead").browse()

    assert attempts == [0, 1, 2]
    assert dead.origin is not None
    assert dead.origin.cause == "redelivery_limit"


@pytest.mark.parametrize("is_queue", [False, True], ids=["durable", "queue"])
@on_a_loop
async def test_a_failed_event_waits_also_where_the_realm_has_no_backoff(
    url: str, session: penstock.Session, name: str, *, is_queue: bool
) -> None:
    broker, times_s = broker_at(url), list[float]()
    if is_queue:
        session.queues.create(name)
    else:
        session.channels.create(name).durables.create("billing", type="shared")

    @broker.subscriber(name, durable=None if is_queue else "billing")
    async def bill(order: str) -> None:
        times_s.append(asyncio.get_running_loop().time())
        if len(times_s) < 3:
            raise ValueError(order)

    async with running(broker):
        await broker.publish("a1", name)
        await until(partial(_has_more_than, times_s, 2))

    first, second, third = times_s
    assert (second - first >= 0.1, third - second >= 0.2) == (True, True)


@pytest.mark.parametrize(
    ("policy", "remaining", "dead"),
    [
        (AckPolicy.ACK, 0, 0),
        (AckPolicy.ACK_FIRST, 0, 0),
        (AckPolicy.REJECT_ON_ERROR, 0, 1),
        (AckPolicy.MANUAL, 1, 0),
    ],
)
@pytest.mark.parametrize("is_queue", [False, True], ids=["durable", "queue"])
@on_a_loop
async def test_the_policy_decides_about_an_event_whose_handler_fails(
    url: str,
    session: penstock.Session,
    name: str,
    policy: AckPolicy,
    remaining: int,
    dead: int,
    is_queue: bool,
) -> None:
    dead_events = session.channels.create(f"{name}-dead")
    if is_queue:
        store: Any = session.queues.create(name, dead_event_store=f"{name}-dead")
    else:
        store = session.channels.create(name, dead_event_store=f"{name}-dead")
        store.durables.create("billing")

    broker, calls = broker_at(url, ack_policy=policy), list[str]()

    @broker.subscriber(name, durable=None if is_queue else "billing")
    async def fail(order: str) -> None:
        calls.append(order)
        raise ValueError(order)

    async with running(broker):
        await broker.publish("a1", name)
        await until(lambda: calls)

    outstanding = (
        store.info().events if is_queue else store.durables.get("billing").info().outstanding
    )
    assert (outstanding, dead_events.info().events) == (remaining, dead)


@on_a_loop
async def test_a_handler_decides_by_an_exception_or_a_method(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, seen = broker_at(url), list[str]()
    dead = session.channels.create(f"{name}-dead")
    session.queues.create(name, dead_event_store=f"{name}-dead")

    @broker.subscriber(name)
    async def decide(order: str, message: PenstockMessage) -> None:
        seen.append(order)
        if order == "again" and not message.raw_message.redelivered:
            raise NackMessage(delay="10ms")
        if order == "bad":
            raise RejectMessage(reason="no such customer")
        if order == "done":
            await message.ack()

    async with running(broker):
        await broker.publish_batch("again", "bad", "done", channel=name)
        await until(lambda: len(seen) == 4 and session.queues.get(name).info().events == 0)
    (rejected,) = dead.browse()

    assert sorted(seen) == ["again", "again", "bad", "done"]
    assert rejected.origin is not None
    assert rejected.origin.reason == "no such customer"


@on_a_loop
async def test_a_rejected_event_without_a_dead_event_store_is_acknowledged(
    url: str, session: penstock.Session, name: str
) -> None:
    broker = broker_at(url, ack_policy=AckPolicy.REJECT_ON_ERROR)

    @broker.subscriber(name, durable="billing")
    @broker.subscriber(f"{name}-work")
    async def fail(order: str) -> None:
        raise ValueError(order)

    async with running(broker):
        await broker.publish("a1", name)
        await broker.publish("a1", f"{name}-work")
        durable, queue = (
            session.channels.get(name).durables.get("billing"),
            session.queues.get(f"{name}-work"),
        )
        await until(lambda: durable.info().outstanding == 0 and queue.info().events == 0)

    assert durable.info().outstanding == queue.info().events == 0


@pytest.mark.parametrize("durable", ["billing", None], ids=["durable", "queue"])
@on_a_loop
async def test_a_batch_is_settled_as_a_whole(
    url: str, session: penstock.Session, name: str, durable: str | None
) -> None:
    broker, batches = broker_at(url), list[list[Any]]()

    @broker.subscriber(name, durable=durable, batch=True, window=100)
    async def count(orders: list[Order], message: PenstockMessage) -> None:
        batches.append([order.sku for order in orders])
        if len(batches) == 1:
            raise ValueError("again")
        assert message.raw_message.to_arrow().num_rows == len(orders)

    async with running(broker):
        orders = [Order(sku=f"s{number}") for number in range(5)]
        assert await broker.publish_batch(*orders, channel=name) == range(5)
        await until(lambda: sum(map(len, batches)) >= 10)

    skus = [f"s{number}" for number in range(5)]
    assert (batches[0], sorted(sku for batch in batches[1:] for sku in batch)) == (skus, skus)
    if durable is None:
        assert session.queues.get(name).info().events == 0
    else:
        assert session.channels.get(name).durables.get(durable).info().outstanding == 0


@on_a_loop
async def test_batches_of_a_queue_are_settled_one_by_one_while_others_are_held(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, messages = broker_at(url), list[PenstockMessage]()

    @broker.subscriber(name, batch=True, ack_policy=AckPolicy.MANUAL)
    async def keep(orders: list[str], message: PenstockMessage) -> None:
        messages.append(message)

    async with running(broker):
        for number, order in enumerate(("first", "second", "third")):
            await broker.publish(order, name)
            await until(partial(_has_more_than, messages, number))
        first, second, third = messages
        await second.ack()
        await third.nack()
        await until(lambda: len(messages) == 4)
        await first.reject()
        await messages[-1].ack()

    assert messages[-1].body == [b"third"]
    assert session.queues.get(name).info().events == 0


@on_a_loop
async def test_a_batch_is_acknowledged_although_an_earlier_one_was_not_settled_in_time(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, batches = broker_at(url), list[list[str]]()
    queue = session.queues.create(name, backoff={"first": "1h", "most": "1h"})

    @broker.subscriber(name, batch=True, ack_timeout="1s")
    async def bill(orders: list[str]) -> None:
        batches.append(orders)
        if orders == ["late"]:
            await until(lambda: queue.info().redelivered)
            raise ValueError(orders)

    async with running(broker):
        await broker.publish("late", name)
        await until(lambda: queue.info().waiting)
        await broker.publish("a1", name)
        await until(lambda: queue.info().events == 1)

    assert batches == [["late"], ["a1"]]


def _has_more_than(messages: list[Any], number: int) -> bool:
    return len(messages) > number


@on_a_loop
async def test_several_workers_handle_events_at_the_same_time(url: str, name: str) -> None:
    broker, together, met = broker_at(url), asyncio.Barrier(3), list[str]()

    @broker.subscriber(name, durable="billing", max_workers=3)
    async def meet(order: str) -> None:
        await together.wait()
        met.append(order)

    async with running(broker):
        await broker.publish_batch("a", "b", "c", channel=name)
        await until(lambda: len(met) == 3)

    assert sorted(met) == ["a", "b", "c"]


@on_a_loop
async def test_workers_that_would_acknowledge_each_others_events_are_refused(
    url: str, name: str
) -> None:
    broker = broker_at(url)

    @broker.subscriber(name, durable=DurableSub("billing", type="exclusive"), max_workers=2)
    async def bill(order: str) -> None: ...

    with pytest.raises(SetupError, match="max_workers has to be 1"):
        await broker.start()
    await broker.stop()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": "billing", "start": "earliest"}, "start does not apply to a durable"),
        ({"durable": "billing", "ack_timeout": 1}, "ack_timeout does not apply to a durable"),
        ({"start": "earliest"}, "start does not apply to a queue"),
    ],
)
@on_a_loop
async def test_options_without_a_meaning_are_refused(
    url: str, name: str, options: dict[str, Any], text: str
) -> None:
    broker = broker_at(url)

    @broker.subscriber(name, **options)
    async def bill(order: str) -> None: ...

    with pytest.raises(SetupError, match=text):
        await broker.start()
    await broker.stop()
    with pytest.raises(SetupError, match="max_workers is 0"):
        broker.subscriber(name, max_workers=0)


@on_a_loop
async def test_a_channel_without_a_durable_delivers_what_is_published_meanwhile(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, seen = broker_at(url), list[str]()
    session.channels.create(name).publish(b"before")

    @broker.subscriber(name, selector="sku = 'a1'")
    async def watch(order: str) -> None:
        seen.append(order)

    async with running(broker):
        await broker.publish("other", name, headers={"sku": "b7"})
        await broker.publish("now", name, headers={"sku": "a1"})
        await until(lambda: seen)

    assert seen == ["now"]


@on_a_loop
async def test_a_pattern_reads_several_channels_and_names_the_part_that_differs(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, seen = broker_at(url), list[tuple[str, str]]()
    for region in ("eu", "us"):
        session.channels.create(f"{name}/{region}")

    @broker.subscriber(f"{name}/{{region}}", durable="billing")
    async def bill(order: str, region: str = Path()) -> None:
        seen.append((region, order))

    async with running(broker):
        await broker.publish("a", f"{name}/eu")
        await broker.publish("b", f"{name}/us")
        await until(lambda: len(seen) == 2)

    assert sorted(seen) == [("eu", "a"), ("us", "b")]


@on_a_loop
async def test_nothing_is_created_if_declaring_is_off(url: str, name: str) -> None:
    broker = broker_at(url)

    @broker.subscriber(name, declare=False)
    async def bill(order: str) -> None: ...

    with pytest.raises(penstock.NameDoesNotExist):
        await broker.start()
    await broker.stop()


@on_a_loop
async def test_a_stopped_broker_has_finished_its_handlers_and_returned_other_events(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, started, go_on = broker_at(url), asyncio.Event(), asyncio.Event()
    app = FastStream(broker)

    @broker.subscriber(name, window=2)
    async def work(order: str) -> None:
        started.set()
        await go_on.wait()

    await app.start()
    await broker.publish_batch("first", "second", channel=name)
    await started.wait()
    async with asyncio.TaskGroup() as group:
        group.create_task(app.stop())
        await asyncio.sleep(0)
        go_on.set()

    assert [event.data for event in session.queues.get(name).peek()] == [b"second"]
    assert not await broker.ping()


@on_a_loop
async def test_a_handler_can_stop_its_subscriber(
    url: str, session: penstock.Session, name: str
) -> None:
    broker, seen = broker_at(url), list[str]()

    @broker.subscriber(name)
    async def once(order: str) -> None:
        seen.append(order)
        raise StopConsume

    async with running(broker):
        await broker.publish_batch("first", "second", channel=name)
        subscriber = broker.subscribers[0]
        await until(lambda: seen and not subscriber.running)

        assert await broker.ping()
    assert seen == ["first"]
    assert session.queues.get(name).info().events >= 1


@on_a_loop
async def test_messages_can_be_taken_without_a_handler(url: str, name: str) -> None:
    broker = broker_at(url)
    subscriber = broker.subscriber(name)

    async with running(broker):
        assert await subscriber.get_one(timeout=0.05) is None
        await broker.publish_batch("first", "second", channel=name)
        first = await subscriber.get_one()
        assert first is not None
        await first.ack()
        async for message in subscriber:
            await message.ack()
            break

    assert (await first.decode(), await message.decode()) == ("first", "second")


@on_a_loop
async def test_a_subscriber_reads_on_after_its_durable_was_deleted(
    url: str, session: penstock.Session, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_faststream.subscriber.RETRY_S", 0.01)
    broker, seen = broker_at(url), list[str]()

    @broker.subscriber(name, durable="billing")
    async def bill(order: str) -> None:
        seen.append(order)

    async with running(broker):
        channel = session.channels.get(name)
        channel.durables.delete("billing")
        await until(
            lambda: channel.durables.list() and channel.durables.get("billing").info().clients
        )
        await broker.publish("a1", name)
        await until(lambda: seen)

    assert seen == ["a1"]
