"""A channel that holds less than what comes at once: a link with credit gets all of it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from packages.amqp.tests.clients import texts
from packages.amqp.tests.conftest import Connect

SENT = 300


@pytest.mark.spec("T3", "J2")
@pytest.mark.parametrize("engine", ["default", "jms"])
def test_a_link_gets_every_event_of_a_batch_larger_than_the_channel(
    connect: Connect, session: penstock.Session, engine: Any
) -> None:
    small = session.channels.create("small", engine=engine, capacity=10)
    receiver = connect().receiver("small", "topic", credit=SENT)
    small.publish_many([penstock.Event(b"%d" % number) for number in range(SENT)])

    assert texts(receiver, SENT) == [b"%d" % number for number in range(SENT)]
