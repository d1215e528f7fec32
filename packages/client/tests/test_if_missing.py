"""``create(..., if_missing=True)``: the second of two programs gets what the first one created."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.handles.if_missing import found_or_created
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import NameAlreadyBound, NameDoesNotExist
from penstock_testing.loop import simulated
from tests.access.realms import QUICK


@pytest.mark.spec("C3")
def test_if_missing_returns_an_existing_channel_with_its_events(session: Session) -> None:
    first = session.channels.create("orders", if_missing=True, ttl=60_000, keys={"sku": 2})
    first.publish(b"one", properties={"sku": "a1"})

    second = session.channels.create("/orders", if_missing=True, ttl=60_000, keys={"sku": 2})

    assert second.number == first.number
    assert second.info().events == 1


@pytest.mark.spec("C3")
def test_attributes_not_given_are_not_compared(session: Session) -> None:
    session.channels.create("dead")
    session.queues.create(
        "work", dead_event_store="dead", max_deliveries=3, storage={"sync": "none"}
    )

    assert session.queues.create("work", if_missing=True).info().definition.max_deliveries == 3
    session.queues.create("work", if_missing=True, dead_event_store="/dead")
    session.queues.create("work", if_missing=True, storage={"sync": "none"})


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"ttl": 5}, "channel orders exists, but its ttl is 0, not 5; leave out"),
        ({"type": "reliable"}, "type is 'mixed', not 'reliable'"),
        ({"cluster_wide": True}, "cluster_wide is False, not True"),
        ({"storage": {"sync": "none"}}, "storage.sync is 'group', not 'none'"),
        ({"capacity": 9, "archive": "a"}, "capacity is 0, not 9, its archive is '', not"),
    ],
)
def test_different_attributes_are_named_and_nothing_changes(
    session: Session, attributes: dict[str, object], says: str
) -> None:
    before = session.channels.create("orders").info().definition

    with pytest.raises(penstock.NameAlreadyBound, match=says):
        session.channels.create("orders", if_missing=True, **attributes)  # type: ignore[arg-type]

    assert session.channels.get("orders").info().definition == before


@pytest.mark.spec("C3")
def test_a_name_of_another_kind_is_refused_with_if_missing(session: Session) -> None:
    session.queues.create("orders")

    with pytest.raises(penstock.NameAlreadyBound, match="orders is a queue, not a channel"):
        session.channels.create("orders", if_missing=True)


@pytest.mark.spec("D2")
def test_if_missing_returns_an_existing_durable_at_its_position(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("billing", type="serial", strict_order=True)
    orders.publish(b"one")
    billing = orders.durables.create(
        "billing", type="serial", strict_order=True, start="latest", if_missing=True
    )

    assert billing.info().outstanding == 1
    for attributes, says in (
        ({"type": "shared"}, "type is 'serial', not 'shared'"),
        ({"type": "serial", "selector": "a = 1"}, "selector is '', not 'a = 1'"),
        ({"type": "serial", "strict_order": False}, "strict_order is True, not False"),
        ({"type": "serial", "persistent": False}, "persistent is True, not False"),
    ):
        with pytest.raises(penstock.NameAlreadyBound, match=says):
            orders.durables.create("billing", if_missing=True, **attributes)


@pytest.mark.spec("D18", "D19")
def test_times_are_compared_however_they_are_written(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("calm", backoff={"first": "1s"}, ack_timeout="30s")
    session.queues.create("work", backoff={"first": "1s"})

    orders.durables.create("calm", if_missing=True, backoff={"first": 1_000}, ack_timeout=30)
    session.queues.create("work", if_missing=True, backoff={"first": 1_000})
    with pytest.raises(penstock.NameAlreadyBound, match="ack_timeout is 30000, not 31000"):
        orders.durables.create("calm", if_missing=True, ack_timeout="31s")
    with pytest.raises(penstock.NameAlreadyBound, match="backoff is Backoff"):
        session.queues.create("work", if_missing=True, backoff=None)


@pytest.mark.spec("L1")
def test_if_missing_returns_an_existing_join(session: Session) -> None:
    session.channels.create("orders")
    session.queues.create("work")
    made = session.joins.create("orders", "work", selector="a = 1", if_missing=True)

    assert session.joins.create("/orders", "work", selector="a = 1", if_missing=True) == made
    with pytest.raises(penstock.NameAlreadyBound, match="selector is 'a = 1', not ''"):
        session.joins.create("orders", "work", if_missing=True)
    with pytest.raises(penstock.NameDoesNotExist, match="nowhere"):
        session.joins.create("orders", "nowhere", if_missing=True)


def test_if_missing_returns_existing_users_and_groups() -> None:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as session:
        access = session.access
        made = access.create_user("alice", if_missing=True)

        assert access.create_user("alice", "another", if_missing=True) == made
        access.create_group("sales", ["alice"], if_missing=True)
        assert access.create_group("sales", if_missing=True).members == ("alice",)
        access.create_user("bob", if_missing=True)
        with pytest.raises(penstock.NameAlreadyBound, match="exists without bob; change_group"):
            access.create_group("sales", ["alice", "bob"], if_missing=True)


@simulated
async def test_what_others_create_meanwhile_is_found() -> None:
    answers = iter([NameDoesNotExist("no"), NameAlreadyBound("yes"), "theirs"])

    async def next_answer() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    assert await found_or_created(next_answer, next_answer) == ("theirs", True)


@simulated
async def test_what_others_create_and_delete_for_ever_ends_with_an_error() -> None:
    requests: list[str] = []

    async def find() -> str:
        requests.append("find")
        raise NameDoesNotExist("it is gone again")

    async def create() -> str:
        requests.append("create")
        raise NameAlreadyBound("it is there")

    with pytest.raises(NameAlreadyBound, match="it is gone again"):
        await found_or_created(find, create)

    assert requests == ["find", "create"] * 3
