"""Requests with false sizes are refused, and affect no other request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

import pyarrow as pa
import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock_core.api.channels import CreateChannel
from penstock_core.api.publishing import DropStages
from penstock_core.api.subscriptions import Attach, Bury
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Internal, InvalidArgument, InvalidEvent
from penstock_server.frontends.native.schemas import SchemaTable
from tests.asking import ask


def test_no_room_is_made_for_events_that_are_only_claimed(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        session.channels.create("dead")
        orders = session.channels.create("orders", dead_event_store="dead")
        durable = orders.durables.create("d", type="shared")
        orders.publish_many([penstock.Event(b"a"), penstock.Event(b"b"), penstock.Event(b"c")])
        ask(session, Attach(orders.number, 9, "d", sole=True), waits=False)

        assert ask(session, Bury(9, (Span(0, 2**62),), "claimed"), waits=False) == 3

        assert durable.info().outstanding == 0


def test_a_request_beyond_a_bound_is_refused_and_its_session_goes_on() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        with pytest.raises(InvalidArgument, match="stages must have at most 10000"):
            ask(session, DropStages(("s",) * 10_001), waits=False)
        with pytest.raises(InvalidArgument, match=r"CreateChannel takes .* bytes; a request may"):
            ask(session, CreateChannel("large", Definition(descriptors=b"x" * (1 << 20))))

        assert orders.publish(b"still here") == 0


@pytest.mark.spec("E2")
@pytest.mark.parametrize("properties", [{"x" * 256: 1}, {"a": {"x" * 256: 1}}])
def test_an_event_with_a_long_property_name_is_refused(properties: dict[str, Any]) -> None:
    """Memory of names counts against no limit."""
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        with pytest.raises(InvalidEvent, match="256 characters; at most 255 are allowed"):
            orders.publish(b"", properties=properties)

        assert orders.publish(b"", properties={"x" * 255: 1}) == 0


@pytest.mark.spec("E2")
def test_a_client_of_another_make_cannot_publish_a_long_property_name() -> None:
    """The realm itself refuses it, before anything is stored."""
    kind = pa.struct([("x" * 256, pa.int64())])
    batch = pa.record_batch({"properties": pa.array([{"x" * 256: 1}], kind)})
    schemas = SchemaTable()
    schemas.learn(1, schema_bytes(batch.schema))
    body = memoryview(batch_bytes(batch))

    with pytest.raises(InvalidEvent, match="256 characters; at most 255 are allowed"):
        schemas.bodies(1, (len(body),), body)


def test_a_publish_that_fails_unforeseen_gives_back_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bodies(*_: object) -> Never:
        raise KeyError("unforeseen")

    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        listener = realm.listener
        assert listener is not None
        with monkeypatch.context() as patch:
            patch.setattr(SchemaTable, "bodies", bodies)
            with pytest.raises(Internal, match="incident"):
                orders.publish(b"x")

        assert listener.pending_bytes == 0
        assert orders.publish(b"y") == 0


def test_events_count_sixteen_bytes_at_least_while_they_wait() -> None:
    """The count is limited as over HTTP and AMQP, because a small body may have very many
    events."""
    empty = [penstock.Event(b"")] * 1_000
    with penstock.Realm() as realm, realm.connect() as session, ThreadPoolExecutor() as pool:
        orders = session.channels.create("orders")

        def pending() -> int:
            return realm.listener.pending_bytes

        with nothing_is_stored(realm, pool):
            published = pool.submit(orders.publish_many, empty)
            eventually(lambda: pending() == 16 * 1_000)
        published.result()
        transaction = session.transaction()
        transaction.publish_many(orders, empty)
        transaction.publish_many(orders, empty)
        with nothing_is_stored(realm, pool):
            committed = pool.submit(transaction.commit)
            eventually(lambda: pending() == 2 * 16 * 1_000)
        committed.result()

        assert pending() == 0


@contextmanager
def nothing_is_stored(realm: penstock.Realm, pool: ThreadPoolExecutor) -> Iterator[None]:
    """Keep the realm from storing anything meanwhile."""
    held, go = threading.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await go.wait()

    holding = pool.submit(realm.loop.call, realm.running.shard.exclusively(hold))
    held.wait()
    yield
    realm.loop.soon(go.set)
    holding.result()
