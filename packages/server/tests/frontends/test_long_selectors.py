"""Long selectors are parsed in a thread, at every place where one comes in (SEM F4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_core.columns.selectors import Expression, parse, selector
from penstock_server.runtime.delivery.selection import PARSED_IN_THREAD_ABOVE

pytestmark = pytest.mark.spec("F4")

SHORT = "n = 1"
LONG = " OR ".join(f"n = {number}" for number in range(200))
WRONG = f"{LONG} OR"


class Parses:
    """Counts of texts that were parsed on a loop, and in other threads."""

    def __init__(self) -> None:
        self.on_a_loop = 0
        self.elsewhere = 0

    def count(self) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self.elsewhere += 1
        else:
            self.on_a_loop += 1


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> Parses:
    counted = Parses()

    def counting(text: str, *, is_stored: bool = False) -> Expression:
        counted.count()
        return parse(text, is_stored=is_stored)

    monkeypatch.setattr(selector, "parse", counting)
    return counted


class Doors:
    """A realm with a channel and a queue, and who asks it."""

    def __init__(self, realm: penstock.Realm, session: penstock.Session) -> None:
        self.realm = realm
        self.session = session
        self.orders = session.channels.create("orders")
        self.orders.durables.create("kept", type="shared")
        self.orders.durables.create("alone", type="exclusive")
        self.jobs = session.queues.create("jobs")
        session.channels.create("copies")
        session.channels.create("jms", engine="jms")
        self.orders.publish(b"", properties={"n": 1})
        self.jobs.push(b"", properties={"n": 1})
        self._web: Web | None = None

    @property
    def web(self) -> Web:
        self._web = self._web or Web(self.realm.listen_http())
        return self._web

    def watch(self, text: str) -> None:
        with self.web.watching("channels/orders/live", start="earliest", selector=text) as events:
            next(events)

    def receive(self, text: str, address: str, *capabilities: str, durable: bool = False) -> None:
        from packages.amqp.tests.clients import Client

        with Client(self.realm.listen_amqp(), "one") as client:
            client.receiver(address, *capabilities, name="r", durable=durable, selector=text)


Door = Callable[[Doors, str], object]

NATIVE: dict[str, Door] = {
    "subscribe": lambda open_doors, text: open_doors.orders.subscribe(selector=text).open().close(),
    "subscribe on the JMS engine": lambda open_doors, text: (
        open_doors.session.channels.get("jms").subscribe(selector=text).open().close()
    ),
    "attach to a durable": lambda open_doors, text: (
        open_doors.orders.durables.get("alone").subscribe(selector=text).open().close()
    ),
    "read a queue": lambda open_doors, text: open_doors.jobs.reader(selector=text).open().close(),
    "browse": lambda open_doors, text: open_doors.orders.browse(selector=text).open().close(),
    "peek": lambda open_doors, text: open_doors.jobs.peek(selector=text),
    "create a durable": lambda open_doors, text: open_doors.orders.durables.create(
        "own", type="shared", selector=text
    ),
    "purge": lambda open_doors, text: open_doors.orders.purge(selector=text),
    "purge a durable": lambda open_doors, text: open_doors.orders.durables.get("kept").purge(
        selector=text
    ),
    "join": lambda open_doors, text: open_doors.session.joins.create(
        "orders", "copies", selector=text
    ),
    "redrive": lambda open_doors, text: open_doors.session.redrive(
        "orders", selector=text, dry_run=True
    ),
}
HTTP: dict[str, Door] = {
    "live view": lambda open_doors, text: open_doors.watch(text),
    "browse over HTTP": lambda open_doors, text: open_doors.web.get(
        "channels/orders/events", selector=text
    ),
    "newest": lambda open_doors, text: open_doors.web.get(
        "channels/orders/events", selector=text, newest="true"
    ),
    "outstanding": lambda open_doors, text: open_doors.web.get(
        "channels/orders/durables/kept/events", selector=text
    ),
    "pop": lambda open_doors, text: open_doors.web.send(
        "POST", "queues/jobs/pop", {"selector": text}
    ),
    "check": lambda open_doors, text: open_doors.web.send(
        "POST", "selectors/check", {"selector": text, "channel": "orders"}
    ),
    "durable over HTTP": lambda open_doors, text: open_doors.web.send(
        "POST", "channels/orders/durables", {"name": "own", "type": "shared", "selector": text}
    ),
    "purge over HTTP": lambda open_doors, text: open_doors.web.send(
        "POST", "channels/orders/purge", {"selector": text}
    ),
}
AMQP: dict[str, Door] = {
    "AMQP subscription": lambda open_doors, text: open_doors.receive(text, "orders", "topic"),
    "AMQP queue": lambda open_doors, text: open_doors.receive(text, "jobs", "queue"),
    "AMQP durable": lambda open_doors, text: open_doors.receive(
        text, "orders", "topic", durable=True
    ),
}
if find_spec("proton") is None:  # packages/amqp/tests/test_installed.py says why
    AMQP = {}


@pytest.fixture
def open_doors() -> Iterator[Doors]:
    with penstock.Realm() as realm, realm.connect() as session:
        yield Doors(realm, session)


@pytest.mark.parametrize("door", [*NATIVE, *HTTP, *AMQP])
def test_a_long_selector_is_parsed_in_a_thread_and_a_short_one_is_not(
    open_doors: Doors, parses: Parses, door: str
) -> None:
    enter = (NATIVE | HTTP | AMQP)[door]
    assert len(LONG) > PARSED_IN_THREAD_ABOVE

    enter(open_doors, LONG)
    open_doors.orders.publish(
        b"", properties={"n": 2}
    )  # the stored events are now tested by the selector

    assert (parses.on_a_loop, parses.elsewhere > 0) == (0, True)
    if "durable" not in door and door != "join":  # the name is in use already
        enter(open_doors, SHORT)
        assert parses.on_a_loop


@pytest.mark.parametrize("door", NATIVE)
def test_a_long_text_that_is_no_selector_is_refused_as_a_short_one_is(
    open_doors: Doors, parses: Parses, door: str
) -> None:
    with pytest.raises(penstock.InvalidSelector, match="found end of text"):
        NATIVE[door](open_doors, WRONG)

    assert not parses.on_a_loop


def test_stored_selectors_are_parsed_before_a_realm_serves(tmp_path: Path, parses: Parses) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.durables.create("kept", type="shared", selector=LONG)
    selector.selector_of.keep("x" * 4_000_000, selector.Selector(SHORT))  # the others are dropped
    parses.on_a_loop = parses.elsewhere = 0

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        assert (parses.on_a_loop, parses.elsewhere) == (0, 1)
        session.channels.get("orders").publish(b"", properties={"n": 2})

        assert session.channels.get("orders").durables.get("kept").info().outstanding == 1
        assert (parses.on_a_loop, parses.elsewhere) == (0, 1)
