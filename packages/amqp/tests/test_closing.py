"""A realm that closes while AMQP clients are there."""

from __future__ import annotations

import pytest
from proton import ConnectionException, Message

import penstock
from packages.amqp.tests.clients import WAIT_S, Client


def test_clients_are_told_that_the_realm_closes() -> None:
    with penstock.Realm() as realm:
        client = Client(realm.listen_amqp())
        client.sender("jobs").send(Message(body="a"))
        receiver = client.receiver("jobs")
        assert receiver.receive(WAIT_S).body == "a"
        client.receiver(None, dynamic=True)
        client.receiver("news", "topic", "shared", name="sub")

        realm.close()

    with pytest.raises(ConnectionException, match="realm-stopping"):
        receiver.receive(WAIT_S)
