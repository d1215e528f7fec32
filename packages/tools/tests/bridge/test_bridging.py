"""Bridges from another server over AMQP 1.0: what arrives, and each once, whoever is killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from packages.client.tests.patience import eventually
from penstock_core.vocabulary.errors import EventTooLarge
from penstock_testing.process import ServerProcess, search_path

if find_spec("proton") is None:
    pytest.skip("python-qpid-proton is not installed", allow_module_level=True)

from packages.tools.tests.bridge.draining import bridged, source_link
from penstock_tools.bridge.ledger import BridgeLedger
from penstock_tools.bridge.sources import SourceLost

pytestmark = pytest.mark.slow


@pytest.fixture
def source() -> Iterator[penstock.Realm]:
    """A realm that is the other server."""
    with penstock.Realm() as realm:
        yield realm


def url_of(source: penstock.Realm, address: str = "old") -> str:
    return f"{source.listen_amqp()}/{address}"


def test_messages_arrive_in_order_with_all_their_parts(
    source: penstock.Realm, session: penstock.Session
) -> None:
    new = session.channels.create("new", type="persistent")
    with source.connect() as other:
        old = other.queues.create("old", type="persistent")
        for number in range(250):
            old.push(
                f"{number}".encode(),
                properties={"number": number, "name": "x"},
                headers={"message_id": f"m{number}", "correlation_id": "c", "reply_to": "r"},
                ttl=3_600_000,
                priority=7,
            )
        steps = bridged(session, url_of(source))

        assert old.info().events == 0
    events = list(new.subscribe(start="earliest", timeout=0.5))
    assert [event.data for event in events] == [f"{number}".encode() for number in range(250)]
    assert [event.properties["number"] for event in events] == list(range(250))
    first = events[0]
    assert (first.headers["message_id"], first.headers["correlation_id"]) == ("m0", "c")
    assert (first.headers["reply_to"], first.priority) == ("r", 7)
    assert 0 < (first.ttl or 0) <= 3_600_000
    assert sum(step.stored for step in steps) == 250
    assert len(steps) < 50, "one publish for each message"


def test_a_message_that_is_delivered_again_is_not_stored_again(
    source: penstock.Realm, session: penstock.Session
) -> None:
    new = session.channels.create("new", type="persistent")
    url = url_of(source)
    with source.connect() as other:
        old = other.queues.create("old", type="persistent")
        for number in range(20):
            old.push(b"x", headers={"message_id": f"m{number}"})
        ledger = BridgeLedger(session, "old", new, url)
        link = source_link(url)
        link.connect(b"")
        collected = link.receive(5.0)
        assert collected is not None
        ids = [
            identity for identities in collected.identities for identity in identities if identity
        ]
        ledger.store(collected.bodies, ids)
        link.close()  # killed here, before it has settled

        steps = bridged(session, url)

    assert sum(step.repeated for step in steps) == collected.count
    assert sum(step.stored for step in steps) == 20 - collected.count
    assert new.info().events == 20


def test_messages_without_an_id_are_stored_at_least_once(
    source: penstock.Realm, session: penstock.Session
) -> None:
    new = session.channels.create("new", type="persistent")
    with source.connect() as other:
        old = other.queues.create("old", type="persistent")
        for _ in range(5):
            old.push(b"the same")
        bridged(session, url_of(source))

    assert new.info().events == 5


def test_a_message_that_is_too_large_stays_at_the_source(
    source: penstock.Realm, session: penstock.Session
) -> None:
    new = session.channels.create("new", type="persistent")
    with source.connect() as other:
        old = other.queues.create("old", type="persistent")
        old.push(b"small")
        old.push(bytes(2 << 20))
        with pytest.raises(EventTooLarge, match="1,048,576 bytes"):
            bridged(session, url_of(source), window=1)

        assert old.info().events == 1
    assert new.info().events == 1


def test_a_source_that_is_away_is_told_at_the_beginning(session: penstock.Session) -> None:
    session.channels.create("new")
    with pytest.raises(SourceLost, match="cannot be reached"):
        bridged(session, "amqp://127.0.0.1:1/old")


# --- kills -------------------------------------------------------------------------------

EVENTS = 3_000


class Route:
    """A source, a destination and a bridge between them, each in a process that may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.old = self._server("old")
        self.new = self._server("new")
        url = str(self.old.logged("amqp.listening")[0]["url"])
        self._amqp_port = int(url.rpartition(":")[2])
        with penstock.connect(self.old.url) as session:
            queue = session.queues.create("old", type="persistent")
            queue.push_many(
                [
                    penstock.Event(f"{number}".encode(), headers={"message_id": f"m{number}"})
                    for number in range(EVENTS)
                ]
            )
        with penstock.connect(self.new.url) as session:
            session.channels.create("new", type="persistent")
        self.bridge = self._started_bridge()

    def _server(self, side: str, port: int = 0, amqp_port: int = 0) -> ServerProcess:
        options = ("--port", f"{port}", "--amqp-port", f"{amqp_port}")
        return self._stack.enter_context(ServerProcess(self._folder / side, *options))

    def _started_bridge(self) -> subprocess.Popen[bytes]:
        source = f"amqp://127.0.0.1:{self._amqp_port}/old"
        command = [sys.executable, "-m", "penstock", "bridge", source, "new", "--name", "old"]
        command += ["--until-empty", "--idle", "2s", "--window", "40", "--url", self.new.url]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search_path()})

    def kill(self, victim: str) -> None:
        """Kill the bridge or one of the servers, and start it again."""
        if victim == "bridge":
            self.bridge.kill()
            self.bridge.wait()
            self.bridge = self._started_bridge()
        elif victim == "old":
            port = self.old.port
            self.old.kill()
            self.old = self._server("old", port, self._amqp_port)
        else:
            port = self.new.port
            self.new.kill()
            self.new = self._server("new", port)

    def finish(self) -> None:
        """Wait until a bridge has found the source empty."""
        while self.bridge.wait(120) != 0:
            self.bridge = self._started_bridge()

    def has_stored_more_than(self, count: int) -> bool:
        """Whether so many messages are stored. Starts the bridge again if it has ended because it
        was started while a server was away."""
        if self.bridge.poll() is not None:
            self.bridge = self._started_bridge()
        with penstock.connect(self.new.url) as session:
            return session.channels.get("new").info().events > count

    def close(self) -> None:
        self.bridge.kill()
        self.bridge.wait()
        self._stack.close()


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    route = Route(tmp_path)
    yield route
    route.close()


@pytest.mark.process
def test_each_message_is_stored_once_whoever_is_killed(route: Route) -> None:
    chance = random.Random(1)
    for kill in range(5):
        # Each kill meets a bridge that works: it has stored more than at the last one.
        eventually(partial(route.has_stored_more_than, kill * 400 + chance.randrange(400)))
        route.kill(chance.choice(("bridge", "bridge", "old", "new")))
    route.finish()

    with penstock.connect(route.new.url) as session:
        table = session.channels.get("new").read(columns=["data"])
    with penstock.connect(route.old.url) as session:
        assert session.queues.get("old").info().events == 0
    stored = Counter(int(data) for data in table["data"].to_pylist())
    assert [number for number, times in stored.items() if times > 1] == []
    assert stored.keys() == set(range(EVENTS))
