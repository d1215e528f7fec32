"""Requests over AMQP that need several rights: all of them (SEM A2, A3). What else needs several is
not there over AMQP, which moves messages and manages nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("proton")  # packages/amqp/tests/test_installed.py says why it is not there

from proton import Delivery, Message
from proton.utils import LinkDetached

import penstock
import penstock_amqp
from packages.amqp.tests.clients import WAIT_S, Client
from packages.amqp.tests.transactions import TRANSACTIONAL, Transaction
from penstock_core.api.channels import CreateChannel
from penstock_core.api.durables import CreateDurable, DeleteDurable
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.reading import WatchEvents
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_core.vocabulary.identities import ChannelId
from tests.access.composed import CASES, Right
from tests.access.realms import QUICK, requests_in

pytestmark = pytest.mark.spec("A2", "A3")

READ, DURABLE = ("orders", "subscribe"), ("orders", "durable")
PUBLISH, BURY, PUSH, POP = (
    ("orders", "publish"),
    ("dead", "publish"),
    ("jobs", "push"),
    ("jobs", "pop"),
)


def durable_with_a_selector(client: Client) -> list[Delivery]:
    client.receiver("orders", "topic", durable=True, selector="a = 1", name="own")
    return []


def sent_to_both(client: Client) -> list[Delivery]:
    transaction = Transaction(client)
    for name in ("orders", "dead"):
        transaction.send(client.sender(name, "topic"), "a")
    return [transaction.discharge()]


def relayed_to_both(client: Client) -> list[Delivery]:
    """Send over one link to the address that each message names."""
    transaction = Transaction(client)
    sender = client.sender(None)
    sent = []
    for name in ("orders", "dead"):
        delivery = sender.link.delivery(sender.link.delivery_tag())
        sender.link.stream(bytes(Message(address=name, body="a").encode()))
        delivery.local.data = [transaction.name]
        delivery.update(TRANSACTIONAL)
        sender.link.advance()
        sent.append(delivery)
    client.blocking.wait(lambda: all(delivery.remote_state for delivery in sent))
    return [*sent, transaction.discharge()]


def taken_and_sent(client: Client) -> list[Delivery]:
    """One event leaves a queue as another is published."""
    transaction = Transaction(client)
    receiver = client.receiver("jobs", "queue")
    receiver.receive(WAIT_S)
    transaction.accept(receiver)
    transaction.send(client.sender("dead", "topic"), "a")
    return [transaction.discharge()]


WAYS: dict[str, tuple[tuple[Right, ...], Callable[[Client], list[Delivery]]]] = {
    "a durable with a selector": ((DURABLE, READ), durable_with_a_selector),
    "a transaction of two senders": ((PUBLISH, BURY), sent_to_both),
    "a transaction of a sender to anywhere": ((PUBLISH, BURY), relayed_to_both),
    "a transaction that takes and sends": ((POP, BURY), taken_and_sent),
}
"""The AMQP requests that need several rights, with these rights."""


@pytest.fixture
def realm() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as session:
            session.channels.create("dead", engine="jms")
            session.channels.create("orders", engine="jms")
            session.queues.create("jobs").push(b"a")
            session.access.create_user("alice", "secret")
            session.access.grant("alice@*", "access")
        yield realm


@contextmanager
def granted(realm: penstock.Realm, rights: tuple[Right, ...]) -> Iterator[None]:
    with realm.connect() as trusted:
        for where, right in rights:
            trusted.access.grant("alice@*", right, **{_kind(where): where})
        yield
        for where, right in rights:
            trusted.access.revoke("alice@*", right, **{_kind(where): where})


def _kind(where: str) -> str:
    return "queue" if where == "jobs" else "channel"


def refusal(realm: penstock.Realm, way: str, rights: tuple[Right, ...]) -> str:
    """Return the error of a refusal; empty if the request succeeded."""
    url = realm.listen_amqp().replace("//", "//alice:secret@")
    with granted(realm, rights), Client(url, sasl_enabled=True, allowed_mechs="PLAIN") as client:
        try:
            deliveries = WAYS[way][1](client)
        except LinkDetached as error:
            return str(error.link.remote_condition.description)
    refused = [delivery for delivery in deliveries if delivery.remote.condition is not None]
    return str(refused[0].remote.condition.description) if refused else ""


@pytest.mark.parametrize("way", WAYS)
def test_a_request_needs_every_right_it_names(realm: penstock.Realm, way: str) -> None:
    rights = WAYS[way][0]
    for left_out in rights:
        fewer = tuple(right for right in rights if right != left_out)
        assert refusal(realm, way, fewer).startswith("access-denied"), f"without {left_out}"

    with realm.connect() as trusted:
        channels = [trusted.channels.get(name) for name in ("orders", "dead")]
        assert [channel.info().last_event_id for channel in channels] == [-1, -1], (
            "nothing was done"
        )
        assert [channel.durables.list() for channel in channels] == [[], []]
        assert trusted.queues.get("jobs").info().events == 1

    assert refusal(realm, way, rights) == ""


def test_amqp_has_no_requests_for_the_other_combined_rights() -> None:
    requests = requests_in(penstock_amqp)

    assert requests == {
        CreateChannel,
        PublishEvents,
        Subscribe,
        Attach,
        WatchEvents,
        CreateDurable,
        DeleteDurable,
    }
    numbers = {"orders": ChannelId(1), "dead": ChannelId(2)}
    others = {
        name for name, (_, native, _) in CASES.items() if type(native(numbers)) not in requests
    }
    assert CASES.keys() - others == {"a durable with a selector"}
