"""The JMS conformance tests of Joram over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import pytest

from tests.interop.programs import InteropRealm, Tell, Whole, run_java

TESTS = 196
CONFORM = "org.objectweb.jtests.jms.conform"
CLASSES = (
    "connection.ConnectionTest",
    "connection.TopicConnectionTest",
    "message.MessageBodyTest",
    "message.MessageDefaultTest",
    "message.MessageTypeTest",
    "message.headers.MessageHeaderTest",
    "message.properties.JMSXPropertyTest",
    "message.properties.MessagePropertyConversionTest",
    "message.properties.MessagePropertyTest",
    "queue.QueueBrowserTest",
    "queue.TemporaryQueueTest",
    "selector.SelectorSyntaxTest",
    "selector.SelectorTest",
    "session.QueueSessionTest",
    "session.SessionTest",
    "session.TopicSessionTest",
    "session.UnifiedSessionTest",
    "topic.TemporaryTopicTest",
)


@pytest.mark.usefixtures("java")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.process
def test_joram_jms_tests(realm: InteropRealm, jms: str, run_suite: Whole, tell: Tell) -> None:
    properties = {"realm.amqp": jms, "realm.http": realm.http_url}
    outcome = run_suite(
        lambda names: run_java("joram", names, properties),
        [f"{CONFORM}.{class_}" for class_ in CLASSES],
    )

    tell("Joram JMS tests", outcome)
    assert str(outcome) == f"{TESTS} of {TESTS} pass"
    assert outcome.ignored == 0
