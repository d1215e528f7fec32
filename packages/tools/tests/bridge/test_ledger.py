"""The record of what a bridge has stored."""

from __future__ import annotations

import pytest

import penstock
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_tools.bridge.ledger import IDENTITIES_MAX, BridgeLedger, Superseded
from penstock_tools.cli.bridging import WINDOW_MAX


def test_the_newest_identities_are_remembered(session: penstock.Session) -> None:
    new = session.channels.create("new", type="persistent")
    ledger = BridgeLedger(session, "old", new, "amqp://a/b")
    for first in range(0, IDENTITIES_MAX + 2_000, 6_128):
        ledger.store([], [f"m{number}" for number in range(first, first + 6_128)])

    for remembering_ledger in (ledger, BridgeLedger(session, "old", new, "amqp://a/b")):
        assert "m0" not in remembering_ledger
        assert f"m{first + 6_127}" in remembering_ledger
        assert f"m{first + 6_127 - 2 * WINDOW_MAX + 1}" in remembering_ledger
    assert session.channels.get("bridge/old").info().events == IDENTITIES_MAX + 1


def test_two_processes_with_one_name_do_not_store_a_message_twice(
    session: penstock.Session,
) -> None:
    new = session.channels.create("new", type="persistent")
    first = BridgeLedger(session, "old", new, "amqp://a/b")
    second = BridgeLedger(session, "old", new, "amqp://a/b")
    first.store([], ["m1"])

    with pytest.raises(Superseded):
        second.store([], ["m1"])
    second.read()
    assert "m1" in second
    assert issubclass(Superseded, IllegalState)


def test_a_name_belongs_to_one_route(session: penstock.Session) -> None:
    new = session.channels.create("new", type="persistent")
    BridgeLedger(session, "old", new, "amqp://a/b").store([], ["m1"])

    with pytest.raises(InvalidArgument, match="choose another name"):
        BridgeLedger(session, "old", new, "amqp://a/other")


def test_the_state_of_a_source_is_that_of_the_newest_step(session: penstock.Session) -> None:
    new = session.channels.create("new", type="persistent")
    ledger = BridgeLedger(session, "old", new, "mqtt://a/b")
    assert ledger.state == b""
    for state in (b"\x00first", b"\xffsecond"):
        ledger.store([], [], state)

    for remembering_ledger in (ledger, BridgeLedger(session, "old", new, "mqtt://a/b")):
        assert (remembering_ledger.state, remembering_ledger.sequence) == (b"\xffsecond", 2)
    assert session.channels.get("bridge/old").info().events == 1
