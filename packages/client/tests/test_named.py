"""Handles where names are allowed."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Session
from tests.loops import on_a_loop


class Names(Enum):
    """Its members have a name, and are not handles."""

    ORDERS = 1


def test_channels_and_queues_are_named_by_their_handles(session: Session, tmp_path: Path) -> None:
    dead = session.queues.create("dead")
    orders = session.channels.create("orders", dead_event_store=dead)
    work = session.queues.create("work", dead_event_store=orders)

    assert orders.info().definition.dead_event_store == "dead"
    assert work.info().definition.dead_event_store == "orders"
    again = session.channels.create("orders", dead_event_store=dead, if_missing=True)
    assert again.number == orders.number
    with pytest.raises(penstock.NameAlreadyBound, match="dead_event_store"):
        session.channels.create("orders", dead_event_store=work, if_missing=True)
    work.edit(dead_event_store=dead)
    assert work.info().definition.dead_event_store == "dead"
    assert session.channels.get(orders).number == orders.number
    assert session.queues.get(work).number == work.number
    session.channels.export(orders, tmp_path / "orders")
    session.queues.export(work, tmp_path / "work")
    assert (tmp_path / "orders").exists()
    session.channels.delete(orders)
    session.queues.delete(work)
    assert (session.channels.list(), session.queues.list()) == ([], ["dead"])


def test_joins_and_redrives_take_handles(session: Session) -> None:
    dead = session.channels.create("dead")
    orders, work = session.channels.create("orders"), session.queues.create("work")
    join = session.joins.create(orders, work)

    assert (join.source, join.destination) == ("orders", "work")
    dead.publish(b"")
    assert session.redrive(dead, to=work).moved == 1
    assert work.info().events == 1
    session.joins.delete(orders, work)
    assert session.joins.list() == []


def test_rights_are_of_a_handle() -> None:
    with penstock.Realm(access__mode="optional") as realm, realm.connect() as session:
        orders, work = session.channels.create("orders"), session.queues.create("work")
        session.access.grant("ann@*", "publish", channel=orders)
        session.access.grant("ann@*", "push", queue=work)

        by_name = session.access.entries(channel="orders")
        assert session.access.entries(channel=orders) == by_name
        assert session.access.entries(queue=work) == session.access.entries(queue="work")
        assert session.access.revoke("ann@*", channel=orders).entries != by_name.entries


def test_durables_are_named_by_handles_and_subscriptions(session: Session) -> None:
    orders, others = session.channels.create("orders"), session.channels.create("others")
    billing = orders.durables.create("billing")
    others.durables.create("billing")

    assert (billing.name, billing.channel_name) == ("billing", "orders")
    assert orders.durables.get(billing).name == "billing"
    assert orders.durables.get(billing.subscribe()).name == "billing"
    with session.subscribe("o*", durable=billing, timeout="10ms") as events:
        assert events.channels == ["orders", "others"]
    for method in (others.durables.get, others.durables.delete):
        with pytest.raises(
            penstock.InvalidArgument, match="billing belongs to channel orders, not to others"
        ):
            method(billing)
    orders.durables.delete(billing)
    assert [info.name for info in orders.durables.list()] == []
    assert [info.name for info in others.durables.list()] == ["billing"]


def test_pattern_durables_take_the_handle_of_one_of_their_durables(session: Session) -> None:
    orders = session.channels.create("orders")
    session.durables.create("o*", "billing")
    billing = orders.durables.get("billing")

    assert session.durables.get("o*", billing).name == "billing"
    session.durables.delete("o*", billing)
    assert session.durables.list() == []


@pytest.mark.parametrize("wrong", [Path("orders"), Names.ORDERS, 5, None, b"orders"], ids=repr)
def test_what_only_has_a_name_is_not_a_handle(session: Session, wrong: Any) -> None:
    orders = session.channels.create("orders")
    for call in (
        lambda: session.channels.get(wrong),
        lambda: session.channels.create("new", dead_event_store=wrong),
        lambda: session.joins.create(wrong, "orders"),
        lambda: orders.durables.get(wrong),
    ):
        with pytest.raises(penstock.InvalidArgument, match=r"must be (a string|text in Unicode)"):
            call()


@on_a_loop
async def test_handles_of_the_asynchronous_client_are_names_too() -> None:
    async with penstock.aio.Realm() as realm, realm.connect() as session:
        dead = await session.channels.create("dead")
        orders = await session.channels.create("orders", dead_event_store=dead)
        billing = await orders.durables.create("billing")

        assert (await orders.durables.get(billing)).name == "billing"
        assert (await session.joins.create(orders, dead)).destination == "dead"
        await session.channels.delete(await session.channels.get(orders))
        assert await session.channels.list() == ["dead"]
