"""Programs of the JMS 2.0 interface over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import pytest

from tests.interop.programs import Tell, run_java

TESTS = 42
CLASSES = ("MessageTest", "QueueTest", "TopicTest")


@pytest.mark.slow
@pytest.mark.process
def test_qpid_jms(amqp: str, tell: Tell) -> None:
    classes = [f"penstock.interop.{each}" for each in CLASSES]

    found = run_java("qpid", classes, {"realm.amqp": amqp})

    tell("Qpid JMS", found)
    assert str(found) == f"{TESTS} of {TESTS} pass"
    assert found.ignored == 0
