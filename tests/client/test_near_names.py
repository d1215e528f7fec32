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
