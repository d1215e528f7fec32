"""The JMS conformance tests of Joram over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import pytest

from penstock.testing.process import ServerProcess
from tests.interop.programs import Tell, run_java

TESTS = 196
CONFORM = "org.objectweb.jtests.jms.conform"
CLASSES = (
    *("connection.ConnectionTest", "connection.TopicConnectionTest"),
    *("message.MessageBodyTest", "message.MessageDefaultTest", "message.MessageTypeTest"),
    *("message.headers.MessageHeaderTest", "message.properties.JMSXPropertyTest"),
    "message.properties.MessagePropertyConversionTest",
    *("message.properties.MessagePropertyTest", "queue.QueueBrowserTest"),
    *("queue.TemporaryQueueTest", "selector.SelectorSyntaxTest", "selector.SelectorTest"),
    *("session.QueueSessionTest", "session.SessionTest", "session.TopicSessionTest"),
    *("session.UnifiedSessionTest", "topic.TemporaryTopicTest"),
)


@pytest.mark.usefixtures("java")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.process
def test_joram_jms_tests(realm: ServerProcess, amqp: str, tell: Tell) -> None:
    found = run_java(
        "joram",
        [f"{CONFORM}.{each}" for each in CLASSES],
        {"realm.amqp": amqp, "realm.http": realm.http_url},
    )

    tell("Joram JMS tests", found)
    assert str(found) == f"{TESTS} of {TESTS} pass"
    assert found.ignored == 0
