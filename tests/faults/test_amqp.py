"""An AMQP publisher gives a half-open connection up instead of waiting for the other side."""

from __future__ import annotations

import threading

import pytest

import penstock
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_tools.demo.links import DemoLinks
from tests.faults.amqp import Sender
from tests.faults.names import LOG

pytest.importorskip("proton")

HEALED_S = 20.0
"""A sender that waits for the other side fails after this time."""


@pytest.mark.slow
def test_a_connection_that_is_half_open_is_given_up() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create(LOG)
        links = DemoLinks()
        port = links.open("clients", "owner", int(realm.listen_amqp().rpartition(":")[2]))
        sender = Sender(f"penstock://127.0.0.1:{port}")
        assert sender.send(b"1") == -1
        assert sender.connection is not None
        sender.connection.timeout = 0.2
        healing = threading.Timer(HEALED_S, links.heal, ("owner",))
        links.cut("owner")
        healing.start()
        with pytest.raises(ConnectionLost):
            sender.send(b"2")

        assert links.is_cut("owner")
        healing.cancel()
        links.close()
