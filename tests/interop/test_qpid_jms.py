"""Programs of the JMS 2.0 interface over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import pytest

from tests.interop.programs import Tell, run_java

TESTS = 42
KNOWN = {
    "penstock.interop.MessageTest.whatIsDelayedComesLater": "the time of delivery is not told",
    "penstock.interop.QueueTest.asynchronousSendsAreConfirmed": "sends by way of the anonymous "
    "relay are overtaken while their queue is being made",
    "penstock.interop.QueueTest.aTransactionMovesBetweenQueues": "a transaction makes none",
    "penstock.interop.TopicTest.aTransactionIsSeenByTopicsAndQueuesAtOnce": "the same",
    "penstock.interop.TopicTest.aRolledBackTopicEventComesAgain": "a plain subscription gets "
    "nothing again",
}
"""What may fail, each with why."""
CLASSES = ("MessageTest", "QueueTest", "TopicTest")


@pytest.mark.slow
@pytest.mark.process
def test_qpid_jms(amqp: str, tell: Tell) -> None:
    classes = [f"penstock.interop.{each}" for each in CLASSES]

    found = run_java("qpid", classes, {"realm.amqp": amqp})

    tell("Qpid JMS", found)
    assert found.ran == TESTS
    assert found.failed.keys() <= KNOWN.keys()
    assert found.ignored == 0
