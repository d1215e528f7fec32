"""Failures while the owner of a cluster moves are excused by an exact list; every other failure
counts."""

from __future__ import annotations

from tests.interop.excused import EXCUSES, excuse_of


def test_a_client_that_does_not_connect_again_may_lose_its_connection_and_nothing_else() -> None:
    lost = "Error: the connection ended at Connection.dispatch (connection.js:259:37)"
    forced = "proton.utils.ConnectionClosed: [amqp:connection:forced] the realm is shutting down"

    assert "reconnect: false" in excuse_of("links_of_several_sessions_do_not_meet", lost)
    assert "does not connect again" in excuse_of("proton.test_messages_come_in_order", forced)
    assert not excuse_of("links_of_several_sessions_do_not_meet", "AssertionError: [1] != [0]")
    assert not excuse_of("proton.test_messages_come_in_order", "assert ['m1'] == ['m0', 'm1']")


def test_a_client_that_goes_on_by_itself_has_no_excuse_but_its_own() -> None:
    message = "org.apache.qpid.jms.JmsConnectionFailedException: the connection ended"

    assert not excuse_of("penstock.interop.QueueTest.inOrderAndOnce", message)
    again = "org.junit.ComparisonFailure: expected:<m4[1]> but was:<m4[0]>"
    assert "counts on once" in excuse_of("penstock.interop.QueueTest.inOrderAndOnce", again)
    assert not excuse_of("penstock.interop.QueueTest.messagesWaitWhileNobodyIsThere", again)
    rolled_back = "jakarta.jms.TransactionRolledBackRuntimeException: Transaction was rolled back"
    moved = "penstock.interop.QueueTest.aTransactionMovesBetweenQueues"
    assert "ends with its connection" in excuse_of(moved, rolled_back)
    assert not excuse_of(moved, again), "an event of a transaction is not there twice"
    assert all(excuse.why for excuse in EXCUSES)
