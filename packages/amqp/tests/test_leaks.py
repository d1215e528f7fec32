"""However a hostile peer's connection ends, nothing stays of it: no memory, no seat, no queue."""

from __future__ import annotations

import gc
import re

import pytest

import penstock
from packages.amqp.tests.abandoned import DECLARATION, DECLARED, ENDS, HALF_SENT, LINKS
from packages.amqp.tests.peers import Peer
from packages.amqp.tests.serving import listen_with
from penstock.client.sync.sync import Session
from penstock_amqp.connection import AmqpConnection
from penstock_amqp.engine import AmqpEngine
from penstock_amqp.link_ends import IncomingLink, OutgoingLink

ROUNDS = 5
LOOKS_MAX = 2_000
KINDS = (AmqpConnection, AmqpEngine, IncomingLink, OutgoingLink)


def leaked_types() -> list[str]:
    """Return the types of the objects that closed connections have left in memory."""
    gc.collect()
    return [type(instance).__name__ for instance in gc.get_objects() if type(instance) in KINDS]


def exists(session: Session, queue: str) -> bool:
    try:
        session.queues.get(queue)
    except penstock.NameDoesNotExist:
        return False
    return True


def is_free(session: Session, queues: set[str]) -> bool:
    """Whether nothing is in anybody's hands, and what lived by a connection has ended."""
    temporary = [name for name in queues if exists(session, name)]
    (durable,) = session.channels.get("news").durables.list()
    work = session.queues.get("work").info()
    return not temporary and not durable.clients and not work.in_flight


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_nothing_stays_of_a_peer_whose_connection_ends(
    realm: penstock.Realm, session: Session, end: bytes
) -> None:
    # Until its next look at the time a connection that is over is remembered.
    session.queues.create("work").push(b"held")
    session.channels.create("news", engine="jms")
    url = listen_with(realm, tick_s_max=0.05)
    queues: set[str] = set()
    for _ in range(ROUNDS):
        peer = Peer(url)
        peer.say(LINKS)
        peer.hear(b"held")
        peer.hear(b"sends")
        peer.say(HALF_SENT + DECLARATION)
        peer.hear(DECLARED)
        queues |= {name.decode() for name in re.findall(rb"temp-queue-[0-9a-f]{32}", peer.heard)}
        if end:
            peer.say(end)
            peer.hear_all()
        peer.hang_up()
        del peer

    for _ in range(LOOKS_MAX):  # each look is a request to the realm, which ends them meanwhile
        if is_free(session, queues) and not leaked_types():
            break
    assert is_free(session, queues)
    assert len(queues) == ROUNDS
    assert leaked_types() == []
    event = session.queues.get("work").pop(0)
    assert event is not None
    assert event.data == b"held"
    assert session.queues.get("work").pop(0) is None
