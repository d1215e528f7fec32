"""A name that does not exist: those that are like it are named."""

from __future__ import annotations

import pytest

import penstock
from penstock.client.sync.sync import Session

pytestmark = pytest.mark.spec("C3")


def test_a_misspelt_name_of_a_channel_queue_or_durable_has_a_hint(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("billing")
    session.queues.create("work")

    for act, hint in (
        (lambda: session.channels.get("ordrs"), "did you mean orders?"),
        (lambda: session.channels.get("Orders"), "did you mean orders?"),
        (lambda: session.channels.delete("ordrs"), "did you mean orders?"),
        (lambda: session.queues.get("wrok"), "did you mean work?"),
        (lambda: session.queues.delete("wrok"), "did you mean work?"),
        (lambda: orders.durables.get("biling"), "did you mean billing?"),
        (lambda: orders.durables.delete("biling"), "did you mean billing?"),
    ):
        with pytest.raises(penstock.NameDoesNotExist) as refused:
            act()
        assert hint in str(refused.value)


def test_a_name_that_is_like_no_other_has_none(session: Session) -> None:
    session.channels.create("orders")

    with pytest.raises(penstock.NameDoesNotExist) as refused:
        session.channels.get("xyz")

    assert "did you mean" not in str(refused.value)


def test_misspelt_names_of_joins_users_and_groups_have_a_hint() -> None:
    with penstock.Realm(access__mode="optional") as realm, realm.connect() as session:
        session.channels.create("orders")
        session.channels.create("measurements")
        session.queues.create("work")
        session.joins.create("orders", "work")
        session.access.create_user("alice")
        session.access.create_group("billing", ["alice"])

        for act, hint in (
            (lambda: session.joins.create("ordrs", "work"), "did you mean orders?"),
            (lambda: session.joins.create("orders", "wrok"), "did you mean work?"),
            (lambda: session.joins.delete("orders", "wrok"), "did you mean orders to work?"),
            (lambda: session.access.delete_user("alcie"), "did you mean alice?"),
            (lambda: session.access.set_password("Alice", "a long password"), "mean alice?"),
            (lambda: session.access.change_group("biling", add=["alice"]), "did you mean billing?"),
            (lambda: session.access.delete_group("biling"), "did you mean billing?"),
            (lambda: session.access.grant("*@*", "publish", channel="ordrs"), "mean orders?"),
        ):
            with pytest.raises(penstock.NameDoesNotExist) as refused:
                act()
            assert str(refused.value).endswith(hint), refused.value
