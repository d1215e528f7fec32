"""Queues over AMQP: who gets what, and what becomes of it."""

from __future__ import annotations

import pytest
from proton import Delivery, Message, Timeout
from proton.reactor import Copy
from proton.utils import LinkDetached, SendException

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, plain, texts
from packages.amqp.tests.conftest import Connect
from packages.amqp.tests.serving import listen_with
from penstock_core.vocabulary.temporary import SESSION_STORES_MAX
from tests.named import TRICKY


@pytest.mark.spec("Q1")
def test_what_is_sent_to_a_queue_goes_to_one_receiver_and_leaves(
    connect: Connect, session: penstock.Session
) -> None:
    client = connect()
    sender = client.sender("jobs")
    for text in ("a", "b", "c"):
        sender.send(Message(body=text))
    receiver = client.receiver("jobs")

    assert texts(receiver, 3) == ["a", "b", "c"]
    client.close()
    assert session.queues.get("jobs").pop(0) is None


@pytest.mark.spec("E9")
def test_a_message_that_failed_comes_again_counted_and_a_released_one_is_not(
    connect: Connect,
) -> None:
    client = connect()
    client.sender("jobs").send(Message(body="a"))
    receiver = client.receiver("jobs", credit=1)
    counts = []
    for failed in (False, True, True):
        message = receiver.receive(WAIT_S)
        counts.append(message.delivery_count)
        delivery = receiver.fetcher.unsettled.pop()
        delivery.local.failed = failed
        delivery.update(Delivery.MODIFIED if failed else Delivery.RELEASED)
        delivery.settle()

    assert counts == [0, 0, 1]
    assert receiver.receive(WAIT_S).delivery_count == 2


@pytest.mark.spec("Q3")
def test_what_a_lost_receiver_held_goes_to_another(connect: Connect) -> None:
    client, other_client = connect(), connect()
    client.sender("jobs").send(Message(body="a"))
    receiver = client.receiver("jobs")
    assert receiver.receive(WAIT_S).body == "a"

    client.close()

    message = other_client.receiver("jobs").receive(WAIT_S)
    assert (message.body, message.delivery_count) == ("a", 1)


def test_a_browser_takes_nothing_away(connect: Connect) -> None:
    client = connect()
    client.sender("jobs").send(Message(body="a"))

    for _ in range(2):
        browser = client.blocking.create_receiver("jobs", credit=5, options=Copy(), name="b")
        assert browser.receive(WAIT_S).body == "a"
        browser.close()
    assert texts(client.receiver("jobs"), 1) == ["a"]


@pytest.mark.spec("F1")
def test_a_receiver_gets_what_its_selector_matches(connect: Connect) -> None:
    client = connect()
    sender = client.sender("jobs")
    sender.send(Message(body="a", properties={"n": 1}))
    sender.send(Message(body="b", properties={"n": 2}))

    assert texts(client.receiver("jobs", selector="n = 2"), 1) == ["b"]
    assert texts(client.receiver("jobs"), 1) == ["a"]


@pytest.mark.spec("F4")
def test_a_selector_that_is_none_is_refused(connect: Connect) -> None:
    with pytest.raises(LinkDetached, match="invalid-selector"):
        connect().receiver("jobs", selector="n =")


def test_an_empty_queue_gives_credit_back_when_it_is_drained(connect: Connect) -> None:
    client = connect()
    receiver = client.receiver("jobs", credit=0)
    receiver.link.drain(5)

    client.blocking.wait(lambda: not receiver.link.draining(), msg="drained")

    assert receiver.link.credit == 0
    with pytest.raises(Timeout):
        receiver.receive(0.05)


def test_an_anonymous_sender_says_where_each_message_goes(connect: Connect) -> None:
    client = connect()
    sender = client.sender(None)
    for name in ("one", "two", "one"):
        sender.send(Message(body=name, address=name))

    assert texts(client.receiver("one"), 2) == ["one", "one"]
    assert texts(client.receiver("two"), 1) == ["two"]
    with pytest.raises(SendException):
        sender.send(Message(body="nowhere"))


def test_a_temporary_queue_ends_with_the_link_that_wanted_it(
    connect: Connect, session: penstock.Session
) -> None:
    client = connect()
    receiver = client.receiver(None, dynamic=True)
    address = receiver.remote_source.address
    sender = client.sender(address)
    sender.send(Message(body="a"))
    assert texts(receiver, 1) == ["a"]
    assert session.queues.get(address).info().name == address
    assert address not in session.queues.list()
    sender.close()  # else it hears that its queue was deleted

    receiver.close()

    with pytest.raises(penstock.NameDoesNotExist):
        session.queues.get(address)


@pytest.mark.spec("R2")
@pytest.mark.parametrize("kind", ["queue", "topic"])
def test_only_the_connection_that_made_a_temporary_destination_consumes_from_it(
    connect: Connect, kind: str
) -> None:
    client, other_client = connect("a"), connect("b")
    receiver = client.receiver(None, f"temporary-{kind}", dynamic=True)
    address = receiver.remote_source.address

    with pytest.raises(LinkDetached, match="resource-locked"):
        other_client.receiver(address, kind)

    second = client.receiver(address, kind)
    other_client.sender(address, kind).send(Message(body="a"))
    assert texts(second if kind == "topic" else receiver, 1) == ["a"]


@pytest.mark.spec("R4")
def test_a_connection_has_so_many_temporary_queues_at_a_time(connect: Connect) -> None:
    client = connect()
    receivers = [client.receiver(None, dynamic=True) for _ in range(SESSION_STORES_MAX)]

    with pytest.raises(LinkDetached, match="resource-limit-exceeded"):
        client.receiver(None, dynamic=True)

    receivers[0].close()
    client.receiver(None, dynamic=True)


def test_a_large_message_comes_in_many_frames(connect: Connect) -> None:
    client = connect()
    data = bytes(range(256)) * 4_000
    client.sender("jobs").send(Message(body=data))

    message = client.receiver("jobs").receive(WAIT_S)

    assert plain(message.body) == data


@pytest.mark.spec("E7")
def test_a_message_that_is_too_large_ends_its_link_and_nothing_else() -> None:
    with (
        penstock.Realm(limits__max_event_bytes=1_024) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        sender = client.sender("jobs")
        with pytest.raises((SendException, LinkDetached)):
            sender.send(Message(body=bytes(2_000)))
        client.sender("jobs").send(Message(body=b"small"))

        assert texts(client.receiver("jobs"), 1) == [b"small"]


def test_a_sender_with_much_on_its_way_waits_and_loses_nothing() -> None:
    with (
        penstock.Realm(limits__in_flight_bytes_max=20_000) as realm,
        Client(realm.listen_amqp()) as client,
    ):
        sender = client.sender("jobs")
        sent = [sender.link.send(Message(body=bytes(10_000))) for _ in range(60)]
        client.blocking.wait(
            lambda: all(delivery.remote_state for delivery in sent), msg="60 answers"
        )

        assert {int(delivery.remote_state) for delivery in sent} == {int(Delivery.ACCEPTED)}
        assert len(texts(client.receiver("jobs"), 60)) == 60


@pytest.mark.parametrize("kind", ["queue", "topic"])
@pytest.mark.parametrize("state", [Delivery.ACCEPTED, Delivery.RELEASED])
def test_who_settles_nothing_gets_no_more(kind: str, state: int) -> None:
    with penstock.Realm() as realm, Client(listen_with(realm, unsettled_max=2)) as client:
        sender, receiver = client.sender("jobs", kind), client.receiver("jobs", kind)
        for text in ("a", "b", "c"):
            sender.send(Message(body=text))
        assert [receiver.receive(WAIT_S).body for _ in range(2)] == ["a", "b"]
        with pytest.raises(Timeout):
            receiver.receive(0.2)

        receiver.settle(state)

        assert receiver.receive(WAIT_S).body == ("c" if state == Delivery.ACCEPTED else "a")


@pytest.mark.spec("C2")
@pytest.mark.parametrize("name", [name for name in TRICKY if len(name) < 255])
def test_an_address_is_the_name_as_it_is(
    connect: Connect, session: penstock.Session, name: str
) -> None:
    client = connect()
    client.sender(name).send(Message(body="sent"))
    client.sender(f"topic://{name}/below").send(Message(body="dropped"))
    receiver = client.receiver(f"queue://{name}")

    assert session.queues.list() == [name]
    assert session.channels.list() == [f"{name}/below"]
    assert texts(receiver, 1) == ["sent"]
    assert receiver.link.remote_source.address in (name, f"queue://{name}")


@pytest.mark.spec("C2")
def test_an_address_that_is_no_name_is_refused_with_the_reason(
    connect: Connect, session: penstock.Session
) -> None:
    client = connect()
    with pytest.raises(LinkDetached, match=r"invalid-name: .*'\*' alone is a wildcard"):
        client.receiver("orders/*")

    assert session.queues.list() == []
