"""Ended links and sessions are freed completely, and not too soon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import proton
import pytest
from proton import Endpoint, Message
from proton.utils import LinkDetached

import penstock
from packages.amqp.tests.clients import WAIT_S
from packages.amqp.tests.conftest import Connect
from penstock_amqp.connection import AmqpConnection
from penstock_amqp.engine import AmqpEngine
from penstock_server.runtime.realm import RunningRealm


async def sessions_of(realm: penstock.Realm) -> int:
    """Return the number of sessions of the engine of the only AMQP connection. Only the engine's
    thread may read the list, because it changes it."""
    (connection,) = (
        connection
        for connection in realm.listener.connections
        if isinstance(connection, AmqpConnection)
    )
    count, session = 0, connection.engine.connection.session_head(0)
    while session is not None:
        count, session = count + 1, session.next(0)
    return count


def test_sessions_that_are_over_take_no_memory(realm: penstock.Realm, connect: Connect) -> None:
    client = connect()
    client.sender("jobs").send(Message(body="a"))
    wait: Callable[..., None] = client.blocking.wait
    for number in range(5):
        session = client.blocking.conn.session()
        session.open()
        link = session.receiver(f"other{number}")
        link.source.address = "jobs"
        link.open()
        wait(lambda link=link: link.state & Endpoint.REMOTE_ACTIVE)
        session.close()
        wait(lambda ended_session=session: ended_session.state & Endpoint.REMOTE_CLOSED)
    client.sender("jobs").send(Message(body="b"))  # whatever was said is done

    assert realm.loop.call(sessions_of(realm)) == 1


def test_a_link_the_realm_has_ended_lives_until_its_publishes_are_answered(
    realm: penstock.Realm, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Any] = []
    done: list[str] = []
    publish, free, reject = RunningRealm.publish, proton.Link.free, AmqpEngine.reject
    is_held = threading.Event()

    def held_publish(self: RunningRealm, *args: Any, **more: Any) -> None:
        held.append(lambda: publish(self, *args, **more))
        is_held.set()

    def noted_free(self: proton.Link) -> None:
        if self.is_receiver:
            done.append("freed")
        free(self)

    def noted_reject(self: AmqpEngine, *args: Any) -> None:
        done.append("answered")
        reject(self, *args)

    client = connect()
    sender = client.sender("jobs")
    with realm.connect() as session, monkeypatch.context() as patched:
        patched.setattr(RunningRealm, "publish", held_publish)
        patched.setattr(proton.Link, "free", noted_free)
        patched.setattr(AmqpEngine, "reject", noted_reject)
        sender.link.send(Message(body="a"))
        flushed = client.sender("others")
        assert is_held.wait(WAIT_S)
        session.queues.delete("jobs")
        sender.link.send(Message(body="b")).settle()  # it cannot be refused otherwise
        with pytest.raises(LinkDetached):
            client.blocking.wait(lambda: sender.link.state & Endpoint.REMOTE_CLOSED)
        client.sender("others")  # the realm has heard of the link's end
        assert done == []

        loop = realm.loop
        for held_client in held:
            loop.call(called(held_client))
    assert done == ["answered", "freed"]
    flushed.send(Message(body="c"))


async def called(work: Callable[[], None]) -> None:
    work()
