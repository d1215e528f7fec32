"""A failure while the realm notifies a connection ends only that connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from proton import ConnectionException, Endpoint, Message
from proton.utils import BlockingReceiver

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, texts
from packages.amqp.tests.conftest import Connect
from penstock_amqp.connection import AmqpConnection
from penstock_amqp.consumers import Consumer
from penstock_amqp.engine import AmqpEngine


def release(receiver: BlockingReceiver) -> None:
    receiver.receive(WAIT_S)
    receiver.release(delivered=False)


def drain(receiver: BlockingReceiver) -> None:
    receiver.link.drain(10)


def leave(receiver: BlockingReceiver) -> None:
    """Its queue is deleted by somebody else."""


CASES: dict[str, tuple[type, str, Callable[[BlockingReceiver], None]]] = {
    "an outcome is stored": (AmqpEngine, "forget", release),
    "a demand is met": (AmqpEngine, "answer_drain", drain),
    "a link's queue is deleted": (AmqpConnection, "end_link", leave),
}


class Broken:
    """A method that fails the first time."""

    def __init__(self, patched: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls = 0
        method = getattr(owner, name)

        def broken(*args: Any, **more: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise ArithmeticError("nobody foresaw this")
            return method(*args, **more)

        patched.setattr(owner, name, broken)


def is_lost(client: Client) -> bool:
    """Whether a connection ends."""
    with pytest.raises(ConnectionException):
        client.blocking.wait(lambda: client.blocking.conn.state & Endpoint.LOCAL_CLOSED)
    return True


def check_others(connect: Connect) -> None:
    client = connect()
    client.sender("others").send(Message(body="a"))
    assert texts(client.receiver("others"), 1) == ["a"]


def test_a_publish_that_cannot_be_answered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(connect.url)
    sender = client.sender("jobs")
    broken = Broken(monkeypatch, AmqpEngine, "settle")

    with pytest.raises(ConnectionException):
        sender.send(Message(body="a"))

    assert broken.calls == 1
    check_others(connect)
    assert texts(connect().receiver("jobs"), 1) == ["a"]  # it is stored all the same


def test_a_grant_that_cannot_be_counted(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(connect.url)
    receiver = client.receiver("jobs", credit=0)
    calls = []

    def room(self: Consumer) -> int:
        calls.append(self)
        raise ArithmeticError("nobody foresaw this")

    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "room", property(room))
        receiver.link.flow(1)
        assert is_lost(client)

    assert len(calls) == 1
    check_others(connect)


@pytest.mark.parametrize(("owner", "name", "ask"), CASES.values(), ids=list(CASES))
def test_what_the_realm_tells(
    realm: penstock.Realm,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    ask: Callable[[BlockingReceiver], None],
) -> None:
    client = Client(connect.url)
    receiver = client.receiver("jobs")
    if ask is release:
        connect().sender("jobs").send(Message(body="a"))
    broken = Broken(monkeypatch, owner, name)

    ask(receiver)
    if ask is leave:
        with realm.connect() as session:
            session.queues.delete("jobs")
    assert is_lost(client)

    assert broken.calls
    check_others(connect)
