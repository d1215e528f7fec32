"""Handlers tested without a realm, and handlers in an application of FastAPI."""

from __future__ import annotations

import pyarrow as pa
import pytest
from fastapi import Depends, FastAPI
from faststream import FastStream, Path, TestApp
from faststream.exceptions import SubscriberNotFound

import penstock
from packages.faststream.tests.handlers import Order, broker_at, until
from penstock_faststream import PenstockMessage, PenstockResponse, TestPenstockBroker
from penstock_faststream.fastapi import PenstockApiRouter
from tests.loops import on_a_loop

URL = "penstock://nowhere.invalid:9000"


@on_a_loop
async def test_handlers_are_called_without_a_realm() -> None:
    broker = broker_at(URL)
    invoices = broker.publisher("invoices")

    @broker.subscriber("orders", durable="billing")
    @invoices
    async def bill(order: Order, message: PenstockMessage) -> PenstockResponse:
        return PenstockResponse({"id": message.raw_message.event_id, "for": order.sku}, tag="new")

    async with TestPenstockBroker(broker) as testing:
        assert await testing.publish(Order(sku="a1"), "orders") == 0
        assert await testing.publish_batch({"sku": "b7"}, {"sku": "c3"}, channel="orders") == range(
            2, 4
        )
        await bill.assert_called_with({"sku": "c3"})
        assert await testing.ping()

        assert [call.args[0]["for"] for call in invoices.mock.mock_calls] == ["a1", "b7", "c3"]
        assert bill.mock.call_count == 3


@on_a_loop
async def test_each_durable_gets_an_event_once_and_patterns_fit() -> None:
    broker, seen = broker_at(URL), list[str]()

    @broker.subscriber("orders/*", durable="billing")
    @broker.subscriber("orders/eu", durable="billing")
    async def bill(order: str) -> None:
        seen.append(f"bill {order}")

    @broker.subscriber("orders/{region}", durable="audit")
    async def audit(order: str, region: str = Path()) -> None:
        seen.append(f"audit {region} {order}")

    @broker.subscriber("orders/**")
    async def watch(order: str) -> None:
        seen.append(f"watch {order}")

    async with TestPenstockBroker(broker) as testing:
        await testing.publish("a1", "orders/eu")

    assert sorted(seen) == ["audit eu a1", "bill a1", "watch a1"]


@on_a_loop
async def test_batches_and_tables_reach_handlers_of_batches() -> None:
    broker, batches = broker_at(URL), list[tuple[int, list[str]]]()

    @broker.subscriber("orders", batch=True)
    async def count(orders: list[str], message: PenstockMessage) -> None:
        batches.append((len(orders), message.raw_message.to_arrow().schema.names))

    async with TestPenstockBroker(broker) as testing:
        await testing.publish_batch("a", "b", channel="orders")
        await testing.publish_batch(pa.table({"sku": ["a1"]}), channel="orders")
        await testing.publish("c", "orders")

    assert [size for size, _ in batches] == [2, 1, 1]
    assert "properties" in batches[1][1]


@on_a_loop
async def test_requests_are_answered_without_a_realm() -> None:
    broker = broker_at(URL)

    @broker.subscriber("rates")
    async def rate(currency: str) -> float:
        return 1.25

    async with TestPenstockBroker(broker) as testing, TestApp(FastStream(broker)):
        reply = await testing.request("EUR", "rates")
        with pytest.raises(SubscriberNotFound):
            await testing.request("EUR", "unknown")

    assert await reply.decode() == 1.25


@on_a_loop
async def test_an_error_of_a_handler_reaches_the_test() -> None:
    broker = broker_at(URL)

    @broker.subscriber("orders")
    async def fail(order: str) -> None:
        raise ValueError(order)

    async with TestPenstockBroker(broker) as testing:
        with pytest.raises(ValueError, match="a1"):
            await testing.publish("a1", "orders")


@on_a_loop
async def test_an_application_of_fastapi_receives_and_publishes(
    url: str, session: penstock.Session, name: str
) -> None:
    router, seen = PenstockApiRouter(url, logger=None), list[str]()

    def currency() -> str:
        return "EUR"

    @router.subscriber(name, durable="billing")
    @router.publisher(f"{name}-invoices")
    async def bill(order: Order, unit: str = Depends(currency)) -> dict[str, str]:
        seen.append(unit)
        return {"sku": order.sku}

    app = FastAPI()
    app.include_router(router)
    invoices = session.channels.create(f"{name}-invoices")
    async with app.router.lifespan_context(app):
        await router.broker.publish(Order(sku="a1"), name)
        await until(lambda: invoices.info().events)

    assert seen == ["EUR"]
    assert [event.data for event in invoices.browse()] == [b'{"sku":"a1"}']
