"""Transactions over AMQP, on both sides of a realm: what is sent and what is settled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from proton import Delivery, Described, Endpoint, Message, symbol, ulong
from proton.utils import LinkDetached

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, plain, texts
from packages.amqp.tests.conftest import Connect
from packages.amqp.tests.serving import listen_with
from packages.amqp.tests.transactions import TRANSACTIONAL, Coordinator, Transaction


@contextmanager
def open_one(connect: Connect) -> Iterator[tuple[Client, Transaction]]:
    client = connect()
    yield client, Transaction(client)


@pytest.mark.spec("X1")
def test_what_is_sent_is_there_once_it_is_committed(connect: Connect) -> None:
    with open_one(connect) as (client, transaction):
        sender, receiver = client.sender("jobs"), client.receiver("jobs")
        assert transaction.send(sender, "a") == TRANSACTIONAL
        client.sender("jobs").send(Message(body="outside"))
        assert texts(receiver, 1) == ["outside"]

        assert transaction.discharge().remote_state == Delivery.ACCEPTED

        assert texts(receiver, 1) == ["a"]


@pytest.mark.spec("X1")
def test_a_transaction_takes_from_one_queue_and_gives_to_another(connect: Connect) -> None:
    with open_one(connect) as (client, transaction):
        client.sender("in").send(Message(body="a"))
        receiver = client.receiver("in")
        receiver.receive(WAIT_S)
        transaction.accept(receiver)
        transaction.send(client.sender("out"), "A")

        transaction.discharge()

        assert texts(client.receiver("out"), 1) == ["A"]
        receiver.close()
        client.sender("in").send(Message(body="next"))
        assert texts(client.receiver("in"), 1) == ["next"]


@pytest.mark.spec("X1", "Q3")
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_what_is_rolled_back_comes_again_and_what_was_sent_never_was(
    connect: Connect, kind: str
) -> None:
    with open_one(connect) as (client, transaction):
        receiver = client.receiver("in", kind)
        sender = client.sender("in", kind)
        sender.send(Message(body="a"))
        receiver.receive(WAIT_S)
        transaction.accept(receiver)
        transaction.send(sender, "never")

        transaction.discharge(fail=True)

        message = receiver.receive(WAIT_S)
        assert (message.body, message.delivery_count) == ("a", 1)
        receiver.accept()
        sender.send(Message(body="b"))
        assert texts(receiver, 1) == ["b"]


def test_one_that_is_not_open_is_not_known(connect: Connect) -> None:
    with open_one(connect) as (client, transaction):
        transaction.discharge()

        state = transaction.discharge()

        assert state.remote_state == Delivery.REJECTED
        assert state.remote.condition.name == "amqp:transaction:unknown-id"
        assert transaction.send(client.sender("jobs"), "late") == Delivery.REJECTED


def test_who_does_not_wait_for_an_answer_hears_that_one_is_not_open(connect: Connect) -> None:
    with open_one(connect) as (client, transaction):
        sender = client.sender("jobs")
        transaction.send_settled(sender, "a")
        assert transaction.discharge().remote_state == Delivery.ACCEPTED

        transaction.send_settled(sender, "late")

        with pytest.raises(LinkDetached, match="amqp:transaction:unknown-id"):
            client.blocking.wait(lambda: sender.link.state & Endpoint.REMOTE_CLOSED)
        assert texts(client.receiver("jobs"), 1) == ["a"]


def test_those_a_coordinator_has_declared_end_with_its_link(connect: Connect) -> None:
    with open_one(connect) as (client, uncommitted):
        other_transaction = Transaction(client)
        sender, receiver = client.sender("jobs"), client.receiver("jobs", credit=1)
        sender.send(Message(body="a"))
        receiver.receive(WAIT_S)
        uncommitted.accept(receiver)
        uncommitted.send(sender, "never")
        other_transaction.send(sender, "b")

        uncommitted.leave()

        assert texts(receiver, 1) == ["a"]
        assert uncommitted.send(sender, "late") == Delivery.REJECTED
        assert other_transaction.discharge().remote_state == Delivery.ACCEPTED
        assert texts(receiver, 1) == ["b"]


def test_one_whose_connection_is_lost_is_rolled_back(connect: Connect) -> None:
    with open_one(connect) as (client, transaction):
        client.sender("in").send(Message(body="a"))
        receiver = client.receiver("in")
        receiver.receive(WAIT_S)
        transaction.accept(receiver)
        client.close()

    assert texts(connect().receiver("in"), 1) == ["a"]


def test_what_no_coordinator_is_told_is_refused(connect: Connect) -> None:
    client = connect()
    coordinator = client.blocking.create_sender(None, name="tx", options=Coordinator())

    for body in ("words", Described(ulong(0x99), []), Described(ulong(0x32), [])):
        delivery = coordinator.link.send(Message(body=body))
        client.blocking.wait(lambda sent=delivery: sent.remote_state, msg="an answer")
        assert delivery.remote_state == Delivery.REJECTED


def test_only_so_many_are_open_at_once() -> None:
    with penstock.Realm() as realm, Client(listen_with(realm, transactions_max=2)) as client:
        first, _ = Transaction(client), Transaction(client)
        coordinator = client.blocking.create_sender(None, name="tx", options=Coordinator())

        delivery = coordinator.link.send(Message(body=Described(ulong(0x31), [None])))
        client.blocking.wait(lambda: delivery.remote_state, msg="an answer")

        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
        first.discharge()
        Transaction(client)


def test_those_of_all_connections_of_a_user_hold_only_so_many_bytes() -> None:
    with penstock.Realm() as realm:
        url = listen_with(realm, transaction_bytes_max=10_000)
        with Client(url) as first, Client(url) as second:
            open_one, open_two = Transaction(first), Transaction(second)
            assert open_one.send(first.sender("jobs"), "x" * 6_000) == TRANSACTIONAL
            assert open_two.send(second.sender("jobs"), "y" * 6_000) == Delivery.REJECTED
            assert open_two.discharge().remote_state == Delivery.REJECTED
            assert open_one.discharge().remote_state == Delivery.ACCEPTED

            again = Transaction(second)
            assert again.send(second.sender("jobs"), "z" * 6_000) == TRANSACTIONAL
        with Client(url) as third:  # the connection of the open one is lost
            last = Transaction(third)
            assert last.send(third.sender("jobs"), "a" * 6_000) == TRANSACTIONAL
            assert last.discharge().remote_state == Delivery.ACCEPTED
            assert [text[0] for text in texts(third.receiver("jobs"), 2)] == ["x", "a"]


def test_they_hold_only_so_many_bytes() -> None:
    """One that has passed the limit cannot be committed; the next one starts from nothing."""
    with (
        penstock.Realm() as realm,
        Client(listen_with(realm, transaction_bytes_max=10_000)) as client,
    ):
        sender = client.sender("jobs")
        for _ in range(2):
            full = Transaction(client)
            assert full.send(sender, "x" * 6_000) == TRANSACTIONAL
            assert full.send(sender, "x" * 6_000) == Delivery.REJECTED
            state = full.discharge()
            assert state.remote_state == Delivery.REJECTED
            assert state.remote.condition.name == "amqp:transaction:rollback"
            assert "limit-reached" in state.remote.condition.description
        fits = Transaction(client)
        fits.send(sender, "a")
        assert fits.discharge().remote_state == Delivery.ACCEPTED

        assert texts(client.receiver("jobs"), 1) == ["a"]


def test_what_a_refused_commit_had_accepted_comes_again(
    connect: Connect, session: penstock.Session
) -> None:
    full = session.queues.create("full", capacity=1, storage={"honour_capacity": True})
    full.push(b"it is full")
    client = connect("c1")
    news, to_full = client.sender("news", "topic"), client.sender("full")
    receivers = [
        client.receiver("news", "topic", name="kept", durable=True),
        client.receiver("news", "topic"),
    ]
    for body in ("a", "b"):
        news.send(Message(body=body))

    for receiver in receivers:
        assert receiver.receive(WAIT_S).body == "a"
        transaction = Transaction(client)
        transaction.accept(receiver)
        transaction.send(to_full, "no room")
        refused = transaction.discharge()
        assert refused.remote.condition.name == "amqp:transaction:rollback"

    for receiver in receivers:
        bodies = [receiver.receive(WAIT_S).body for _ in range(2)]
        assert sorted(bodies) == ["a", "b"]


@pytest.mark.spec("T10")
@pytest.mark.parametrize(
    ("outcome", "values"), [(0x25, []), (0x27, [True, True])], ids=["rejected", "undeliverable"]
)
def test_what_is_of_no_use_in_a_transaction_is_dead_with_its_commit(
    connect: Connect, session: penstock.Session, outcome: int, values: list[Any]
) -> None:
    """Where the dead have a place, as without a transaction."""
    dead = session.queues.create("dead")
    session.queues.create("jobs", dead_event_store="dead").push(b"bad")
    client = connect()
    receiver = client.receiver("jobs")
    receiver.receive(WAIT_S)
    transaction = Transaction(client)
    transaction.settle(receiver, outcome, *values)
    assert dead.info().events == 0

    assert transaction.discharge().remote_state == Delivery.ACCEPTED

    dead_event = dead.pop(timeout=WAIT_S)
    assert dead_event is not None
    assert dead_event.data == b"bad"


def test_what_is_undeliverable_in_a_transaction_is_for_others_with_its_commit(
    connect: Connect, session: penstock.Session
) -> None:
    jobs = session.queues.create("jobs")
    jobs.push(b"bad")
    client = connect()
    receiver = client.receiver("jobs")
    receiver.receive(WAIT_S)
    transaction = Transaction(client)
    undeliverable_here = (True, True, {symbol("x"): 1})
    transaction.settle(receiver, 0x27, *undeliverable_here)
    transaction.discharge()

    message = client.receiver("jobs").receive(WAIT_S)
    assert (plain(message.body), message.delivery_count) == (b"bad", 1)
    assert message.annotations == {symbol("x"): 1}
