"""The Jakarta Messaging TCK outside the container, over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import pytest

import penstock
from tests.interop.programs import WITHOUT_PROTON, Tell, run_java

TESTS = 903
RUNNING_S = 1_500
"""Ten minutes of it are its own pauses."""
CORE = "com.sun.ts.tests.jms.core"
FAIL = {
    # Its own class for messages of another provider has nothing to write to.
    f"{CORE}.foreignMsgQueue.ForeignMsgQueueTestsIT.sendReceiveBytesMsgQueueTest",
    f"{CORE}.foreignMsgTopic.ForeignMsgTopicTestsIT.sendReceiveBytesMsgTopicTest",
    # A test of the same class that ran before leaves them a durable subscription of their name.
    f"{CORE}.appclient.txtopictests.TxTopicTestsIT"
    ".transactionRollbackOnSessionCloseReceiveTopicTest",
    f"{CORE}.appclient.txtopictests.TxTopicTestsIT.txRollbackOnConnectionCloseReceiveTopicTest",
}
"""Tests that fail, whoever the provider is: README.md says why."""


@pytest.mark.usefixtures("java")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.process
def test_jakarta_messaging_tck(tell: Tell) -> None:
    """Skipped on machines without the TCK's artefact."""
    pytest.importorskip("proton", reason=WITHOUT_PROTON)
    with (
        penstock.Realm(
            access__mode="mandatory", access__password_rounds=4_096, access__password_length_min=1
        ) as realm,
        realm.connect() as root,
    ):
        root.access.create_user("j2ee", "j2ee")
        root.access.grant("j2ee@*", "full")
        query = "jms.username=j2ee&jms.password=j2ee&jms.prefetchPolicy.all=0"
        properties = {
            "realm.tck": f"{realm.listen_amqp()}?{query}",
            "user": "j2ee",
            "password": "j2ee",
            "jms_timeout": "2000",
            "platform.mode": "standalone",
            "vehicle": "standalone",
        }
        outcome = run_java(
            "tck", [CORE, f"{CORE}20"], properties, main="Launched", running_s=RUNNING_S
        )

    tell("Jakarta Messaging TCK", outcome)
    assert set(outcome.failed) == FAIL
    assert outcome.ran == TESTS
    assert outcome.ignored == 0
