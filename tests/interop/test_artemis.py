"""Bridges from ActiveMQ Artemis, in a process of its own: each message once, over restarts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import penstock
from penstock_testing.ports import free_port
from tests.interop.programs import WITHOUT_PROTON, start_java

pytest.importorskip("proton", reason=WITHOUT_PROTON)

from proton import Message
from proton.utils import BlockingConnection

from packages.tools.tests.bridge.draining import bridged, source_link
from penstock_tools.bridge.ledger import BridgeLedger

MAIN = "org.apache.activemq.artemis.core.server.embedded.Main"
CONFIGURATION = """\
<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<persistence-enabled>true</persistence-enabled><security-enabled>false</security-enabled>
<journal-type>NIO</journal-type><journal-directory>{folder}/journal</journal-directory>
<bindings-directory>{folder}/bindings</bindings-directory>
<large-messages-directory>{folder}/large</large-messages-directory>
<paging-directory>{folder}/paging</paging-directory>
<max-disk-usage>-1</max-disk-usage>
<acceptors><acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP</acceptor></acceptors>
<addresses>
<address name="orders"><anycast><queue name="orders"/></anycast></address>
<address name="news"><multicast/></address>
</addresses></core></configuration>
"""

pytestmark = [
    pytest.mark.usefixtures("java"),
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.process,
]


class Artemis:
    """A broker that can be started again with what it has stored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        (folder / "etc").mkdir()
        content = CONFIGURATION.format(folder=folder, port=self.port)
        (folder / "etc" / "broker.xml").write_text(content)

    def running(self) -> AbstractContextManager[str]:
        logger = "org.slf4j.simpleLogger"
        logging = {f"{logger}.logFile": "System.out"}
        logging[f"{logger}.log.org.apache.activemq.audit"] = "error"  # else a line per message
        until = r"(AMQ221007)"  # the server is now active
        return start_java("artemis", MAIN, str(self.folder), until=until, properties=logging)

    def url(self, address: str) -> str:
        return f"amqp://127.0.0.1:{self.port}/{address}"

    def send(self, address: str, numbers: Sequence[int]) -> None:
        connection = BlockingConnection(f"amqp://127.0.0.1:{self.port}")
        sender = connection.create_sender(address)
        for number in numbers:
            properties = {"number": number}
            sender.send(Message(f"{number}", id=f"m{number}", durable=True, properties=properties))
        connection.close()


@pytest.fixture
def artemis(java: None, tmp_path: Path) -> Artemis:
    return Artemis(tmp_path)


@pytest.fixture
def session() -> Iterator[penstock.Session]:
    with penstock.Realm() as realm, realm.connect() as session:
        session.channels.create("new", type="persistent")
        yield session


def numbers_in(session: penstock.Session) -> list[int]:
    events = session.channels.get("new").subscribe(start="earliest", timeout=0.5)
    return [int(event.properties["number"]) for event in events]


def test_messages_of_a_queue_arrive_once_over_a_restart(
    artemis: Artemis, session: penstock.Session
) -> None:
    url = artemis.url("orders")
    with artemis.running():
        artemis.send("orders", range(300))
        ledger = BridgeLedger(session, "old", session.channels.get("new"), url)
        link = source_link(url)
        link.connect(b"")
        collected = link.receive(5.0)
        assert collected is not None
        ids = [
            identity for identities in collected.identities for identity in identities if identity
        ]
        assert len(ids) == collected.count
        ledger.store(collected.bodies, ids)
    link.close()  # the broker has ended meanwhile: nothing is settled

    with artemis.running():
        steps = bridged(session, url)

        assert bridged(session, url) == []
    assert numbers_in(session) == list(range(300))
    assert sum(step.repeated for step in steps) == collected.count


def test_a_topic_keeps_its_messages_while_the_bridge_is_away(
    artemis: Artemis, session: penstock.Session
) -> None:
    url = artemis.url("news")
    with artemis.running():
        assert bridged(session, url, is_subscription=True) == []
        artemis.send("news", range(50))
    with artemis.running():
        bridged(session, url, is_subscription=True)

    assert numbers_in(session) == list(range(50))
