"""A link that is taken up again: nothing unsettled is kept of it, on either side."""

from __future__ import annotations

import penstock
from penstock.wire.amqp.types import Symbol, UByte, UInt, written
from tests.frontends.amqp.clients import WAIT_S
from tests.frontends.amqp.frames import (
    ACCEPTED,
    ATTACH,
    DETACH,
    message,
    opened,
    performative,
    said,
    sender,
    terminus,
    transfer,
)
from tests.frontends.amqp.peers import Peer

WORK = terminus(0x29, "work", UInt(2), Symbol("never"), capability="queue")


def test_an_attach_that_lists_unsettled_deliveries_is_answered_by_one_that_lists_none(
    realm: penstock.Realm, session: penstock.Session
) -> None:
    """So their sender knows that it may send them again."""
    peer = Peer(realm.listen_amqp())
    peer.say(opened("sends") + sender("link", 0, WORK))
    peer.hear(b"work")  # its attach, and with it credit
    peer.say(transfer(0, 0, message(body="first")))
    peer.hear(performative(ACCEPTED)[:3])
    peer.say(said(DETACH, UInt(0), False))
    peer.hear(performative(DETACH)[:3])
    peer.heard = b""

    tag = b"delivery 0"
    peer.say(said(ATTACH, "link", UInt(0), False, UByte(0), UByte(0), terminus(0x28, "c"), WORK,
                  {tag: None}, None, UInt(0)))  # fmt: skip
    peer.hear(b"work")  # its attach, and with it credit
    assert performative(ATTACH)[:3] in peer.heard
    assert written(tag) not in peer.heard
    peer.say(transfer(0, 1, message(body="again")))
    found = [session.queues.get("work").pop(WAIT_S) for _ in range(2)]
    peer.hang_up()

    assert [event.data for event in found if event is not None] == [b"first", b"again"]
