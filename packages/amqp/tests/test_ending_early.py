"""A client that ends what it has begun before it was answered."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from packages.amqp.tests.frames import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    END,
    frame_of,
    message,
    opened,
    sender,
    terminus,
    transfer,
)
from packages.amqp.tests.peers import Peer
from penstock_amqp.wire.types import UInt
from penstock_testing.process import ServerProcess

ROUNDS = 40
"""A server that answered by a session that was freed has not lived through ten of them."""
MESSAGES = 3
WORK = terminus(0x29, "work", capability="queue")


@pytest.mark.process
@pytest.mark.slow
def test_a_server_outlives_sessions_that_end_behind_a_link_and_messages_without_an_answer(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path, "--amqp-port", "0") as server:
        with penstock.connect(server.url) as session:
            work = session.queues.create("work")
            peer = Peer(str(server.logged("amqp.listening")[0]["url"]))
            peer.say(opened("hasty"))
            for number in range(ROUNDS):
                if number:
                    peer.say(frame_of(BEGIN, None, UInt(0), UInt(1_000), UInt(1_000)))
                peer.say(sender(f"link {number}", 0, WORK))
                peer.next(ATTACH)
                sent = b"".join(transfer(0, number, message()) for number in range(MESSAGES))
                peer.say(sent + frame_of(DETACH, UInt(0), True) + frame_of(END))
                peer.next(END)
            peer.say(frame_of(CLOSE))
            peer.hear_all()
            peer.hang_up()

            assert work.info().events == ROUNDS * MESSAGES
        assert server.is_running
