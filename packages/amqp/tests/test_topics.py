"""Topics over AMQP: subscriptions that last, that are shared, and that do neither."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message, Timeout
from proton.utils import BlockingReceiver, BlockingSender, LinkDetached

import penstock
from packages.amqp.tests.clients import WAIT_S, Client, texts
from packages.amqp.tests.conftest import Connect
from packages.amqp.tests.serving import service_of
from packages.client.tests.patience import eventually
from penstock_amqp.consumers import Consumer
from penstock_amqp.engine import AmqpEngine
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.temporary import TEMPORARY


def publish(sender: BlockingSender, *bodies: Any, **properties: Any) -> None:
    for body in bodies:
        sender.send(Message(body=body, durable=True, properties=properties or None))


def settle(receiver: Any, state: int, *, failed: bool = False) -> None:
    delivery = receiver.fetcher.unsettled.pop()
    delivery.local.failed = failed
    delivery.update(state)
    delivery.settle()


@pytest.mark.spec("J1", "J2")
def test_a_topic_is_a_channel_with_the_rules_of_jms(
    connect: Connect, session: penstock.Session
) -> None:
    client = connect()
    sender = client.sender("news", "topic")
    publish(sender, "unheard")
    one, other_receiver = client.receiver("news", "topic"), client.receiver("news", "topic")
    publish(sender, "a", "b")

    assert texts(one, 2) == texts(other_receiver, 2) == ["a", "b"]
    assert session.channels.get("news").info().definition.engine == "jms"


@pytest.mark.spec("D1", "D4")
def test_a_durable_subscription_goes_on_where_it_was(connect: Connect) -> None:
    client = connect("me")
    receiver = client.receiver("news", "topic", name="sub", durable=True)
    sender = connect().sender("news", "topic")
    publish(sender, "a", "b")
    assert texts(receiver, 1) == ["a"]
    client.close()
    publish(sender, "c")

    again = connect("me").receiver("news", "topic", name="sub", durable=True)

    assert texts(again, 2) == ["b", "c"]


def test_it_is_an_exclusive_durable_and_ends_when_its_link_is_closed(
    connect: Connect, session: penstock.Session
) -> None:
    receiver = connect("me").receiver("news", "topic", name="a b", durable=True)
    durables = session.channels.get("news").durables
    assert [(durable.name, durable.type) for durable in durables.list()] == [
        ("me:a#20b", "exclusive")
    ]

    receiver.close()

    assert durables.list() == []


@pytest.mark.spec("D14")
def test_a_durable_subscription_has_one_client(connect: Connect) -> None:
    connect("me").receiver("news", "topic", name="sub", durable=True)

    with pytest.raises(LinkDetached, match="durable-in-use"):  # not the same link: not stolen
        connect("me").receiver("news", "topic", name="sub|2", durable=True)


def test_another_selector_makes_another_subscription(connect: Connect) -> None:
    client = connect("me")
    client.receiver("news", "topic", name="sub", durable=True, selector="n = 1")
    client.close()
    sender = connect().sender("news", "topic")
    publish(sender, "missed", n=2)

    again = connect("me").receiver("news", "topic", name="sub", durable=True, selector="n = 2")
    publish(sender, "other", n=1)
    publish(sender, "mine", n=2)

    assert texts(again, 1) == ["mine"]


def test_a_subscription_others_have_made_anew_is_not_compared_with_the_former(
    connect: Connect, session: penstock.Session
) -> None:
    client = connect("me")
    client.receiver("news", "topic", name="sub", durable=True, selector="n = 1")
    client.close()
    durables = session.channels.get("news").durables
    durables.delete("me:sub")
    durables.create("me:sub", type="exclusive")
    publish(connect().sender("news", "topic"), "kept", n=2)

    again = connect("me").receiver("news", "topic", name="sub", durable=True, selector="n = 2")

    assert texts(again, 1) == ["kept"]


def test_nothing_is_remembered_of_subscriptions_that_others_have_deleted(
    connect: Connect, realm: penstock.Realm, session: penstock.Session
) -> None:
    durables = service_of(realm).durables
    client = connect("me")
    for number in range(3):
        client.receiver("news", "topic", name=f"sub{number}", durable=True)
    assert len(durables.terms) == 3
    client.close()
    for number in range(3):
        session.channels.get("news").durables.delete(f"me:sub{number}")
    gc.collect()

    assert len(durables.terms) == 0


def test_after_a_restart_a_subscription_goes_on_with_the_selector_it_is_given(
    tmp_path: Path,
) -> None:
    with penstock.Realm(tmp_path) as realm:
        url = realm.listen_amqp()
        with Client(url, "me") as client:
            client.receiver("news", "topic", name="sub", durable=True, selector="n = 1")
        with Client(url) as client:
            publish(client.sender("news", "topic"), "one", n=1)
            publish(client.sender("news", "topic"), "two", n=2)

    with penstock.Realm(tmp_path) as realm, Client(realm.listen_amqp(), "me") as client:
        receiver = client.receiver("news", "topic", name="sub", durable=True, selector="n = 2")
        assert texts(receiver, 1) == ["two"]


@pytest.mark.parametrize("durable", [False, True])
def test_what_comes_back_is_delivered_again_in_order(connect: Connect, durable: bool) -> None:
    receiver = connect("me").receiver("news", "topic", name="sub", durable=durable)
    publish(connect().sender("news", "topic"), "a", "b")
    received = []
    for state, failed in ((Delivery.MODIFIED, True), (Delivery.RELEASED, False)):
        message = receiver.receive(WAIT_S)
        received.append((message.body, message.delivery_count))
        settle(receiver, state, failed=failed)
    for _ in range(2):
        message = receiver.receive(WAIT_S)
        received.append((message.body, message.delivery_count))
        receiver.accept()

    assert received == [("a", 0), ("b", 0), ("a", 1), ("b", 0)]


@pytest.mark.spec("D8")
@pytest.mark.parametrize("durable", [False, True])
def test_a_shared_subscription_gives_each_event_to_one(
    connect: Connect, session: penstock.Session, durable: bool
) -> None:
    client = connect("me")
    receivers = [
        client.receiver("news", "topic", "shared", name=f"sub|{n}", durable=durable, credit=1)
        for n in range(2)
    ]
    publish(connect().sender("news", "topic"), "a", "b")

    assert {texts(receiver, 1)[0] for receiver in receivers} == {"a", "b"}
    durables = session.channels.get("news").durables
    assert [durable.type for durable in durables.list()] == ["shared"]
    client.close()
    assert len(durables.list()) == durable


def test_a_durable_made_elsewhere_is_read_by_its_name(
    connect: Connect, session: penstock.Session
) -> None:
    channel = session.channels.create("orders")
    channel.durables.create("workers", type="serial")
    channel.publish(b"native")

    receiver = connect().receiver(
        "orders", "topic", "shared", "global", name="workers", durable=True
    )
    message = receiver.receive(WAIT_S)

    assert bytes(message.body) == b"native"


@pytest.mark.parametrize("kind", ["serial", "priority", "shared"])
def test_a_clients_durable_made_elsewhere_keeps_its_kind(
    connect: Connect, session: penstock.Session, kind: penstock.DurableType
) -> None:
    """As JMS subscribes, which has no word for kinds."""
    channel = session.channels.create("orders", engine="jms")
    channel.durables.create("me:sub", type=kind)

    receiver = connect("me").receiver("orders", "topic", name="sub", durable=True)
    channel.publish(b"native")

    assert bytes(receiver.receive(WAIT_S).body) == b"native"
    (kept,) = channel.durables.list()
    assert (kept.name, kept.type) == ("me:sub", kind)


@pytest.mark.parametrize("kind", ["serial", "priority", "shared-queued"])
def test_a_link_says_of_which_kind_its_durable_is(
    connect: Connect, session: penstock.Session, kind: str
) -> None:
    connect("me").receiver("news", "topic", kind, name="sub", durable=True)

    (made,) = session.channels.get("news").durables.list()
    assert made.type == kind.replace("-", "_")


def test_a_serial_durable_has_one_client_after_the_other(connect: Connect) -> None:
    def receiver(of: Client, number: int) -> BlockingReceiver:
        return of.receiver(
            "news", "topic", "serial", "shared", "global", name=f"sub|{number}", durable=True
        )

    holder = connect()
    first = receiver(holder, 1)
    publish(connect().sender("news", "topic"), "a", "b")
    assert [first.receive(WAIT_S).body for _ in range(2)] == ["a", "b"]
    second = receiver(connect(), 2)
    with pytest.raises(Timeout):
        second.receive(0.2)

    holder.close()

    assert texts(second, 2) == ["a", "b"]


@pytest.mark.parametrize("durable", [False, True])
def test_no_local_leaves_out_what_the_client_itself_sends(connect: Connect, durable: bool) -> None:
    client = connect("me")
    receiver = client.receiver("news", "topic", name="sub", durable=durable, no_local=True)
    publish(client.sender("news", "topic"), "mine")
    publish(connect("other").sender("news", "topic"), "yours")

    assert texts(receiver, 1) == ["yours"]


def test_a_queue_is_no_topic(connect: Connect) -> None:
    client = connect()
    client.sender("jobs", "queue")

    with pytest.raises(LinkDetached, match="jobs is a queue"):
        client.receiver("jobs", "topic")


def test_a_client_that_wants_to_be_alone_is(connect: Connect) -> None:
    connect("me", sole=True)

    with pytest.raises(Exception, match="already connected"):
        Client(connect.url, "me", sole=True)


@pytest.mark.spec("D11")
def test_what_is_taken_back_before_it_was_sent_comes_once(
    connect: Connect, session: penstock.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = session.channels.create("news")
    channel.durables.create("me:sub", type="serial", strict_order=True)
    client = connect("me")
    receiver = client.receiver("news", "topic", name="sub", durable=True, credit=2)
    withdrawn, held, recalled = threading.Event(), threading.Event(), threading.Event()
    deliver, recall = Consumer.deliver, Consumer.recall

    def noted_deliver(self: Consumer, *args: Any) -> None:
        deliver(self, *args)
        held.set()

    def noted_recall(self: Consumer, *args: Any) -> None:
        recall(self, *args)
        recalled.set()

    channel.publish(b"a")
    assert bytes(receiver.receive(WAIT_S).body) == b"a"
    with monkeypatch.context() as patched:  # the credit is gone before the realm knows
        patched.setattr(Consumer, "flow", lambda self: withdrawn.set())
        receiver.link.flow(-1)
        client.sender("news", "topic")  # it is said
        assert withdrawn.is_set()
        patched.setattr(Consumer, "deliver", noted_deliver)
        channel.publish(b"b")
        assert held.wait(WAIT_S)
    monkeypatch.setattr(Consumer, "recall", noted_recall)
    settle(receiver, Delivery.MODIFIED, failed=True)
    client.sender("news", "topic")
    assert recalled.wait(WAIT_S)
    channel.publish(b"c")

    received = []
    for _ in range(3):
        message = receiver.receive(WAIT_S)
        received.append((bytes(message.body), message.delivery_count))
        receiver.accept()
    assert received == [(b"a", 1), (b"b", 0), (b"c", 0)]


@pytest.mark.spec("D15")
def test_what_was_taken_back_does_not_undo_what_is_accepted_with_it(
    connect: Connect, session: penstock.Session
) -> None:
    channel = session.channels.create("news")
    durable = channel.durables.create("me:sub", type="serial", order_by="lane")
    client = connect("me")
    receiver = client.receiver("news", "topic", name="sub", durable=True, credit=0)
    receiver.link.flow(5)
    for lane in (1, 1, 2, 2, 2):
        channel.publish(b"x", properties={"lane": lane})
    fetched = receiver.fetcher
    client.blocking.wait(lambda: len(fetched.incoming) == 5)
    assert [fetched.pop().properties["lane"] for _ in range(5)] == [1, 1, 2, 2, 2]
    deliveries = list(fetched.unsettled)
    fetched.unsettled.clear()
    deliveries[0].local.failed = True
    deliveries[0].update(Delivery.MODIFIED)
    deliveries[0].settle()
    client.sender("news", "topic")  # the second is taken back with the first

    for delivery in deliveries[1:]:
        delivery.update(Delivery.ACCEPTED)
        delivery.settle()

    again = []
    for _ in range(2):
        message = receiver.receive(WAIT_S)
        again.append((message.properties["lane"], message.delivery_count))
        receiver.accept()
    assert again == [(1, 1), (1, 0)]
    client.close()
    assert not durable.outstanding().id_set


@pytest.mark.spec("D20")
@pytest.mark.parametrize("kind", ["exclusive", "shared"])
def test_a_durable_that_is_moved_is_consumed_from_there(
    connect: Connect, session: penstock.Session, kind: Any
) -> None:
    channel = session.channels.create("news", retain_consumed=True)
    durable = channel.durables.create("me:sub", type=kind)
    channel.publish_many([penstock.Event(properties={"n": n}) for n in range(4)])
    client = connect("me")
    shared = ["shared"] if kind == "shared" else []
    receiver = client.receiver("news", "topic", *shared, name="sub", durable=True)

    def take(count: int) -> list[int]:
        payloads = []
        for _ in range(count):
            payloads.append(receiver.receive(WAIT_S).properties["n"])
            receiver.accept()
        return payloads

    assert take(3) == [0, 1, 2]
    client.sender("news", "topic")  # what was accepted has arrived
    durable.seek(1)

    assert take(4) == [3, 1, 2, 3], "the first was in its hands already"
    client.close()
    assert not durable.outstanding().id_set


def test_a_delivery_is_forgotten_before_its_event_comes_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    send, forget = AmqpEngine.send, AmqpEngine.forget

    def noted_send(self: AmqpEngine, *args: Any) -> None:
        done.append("send")
        send(self, *args)

    def noted_forget(self: AmqpEngine, *args: Any) -> None:
        done.append("forget")
        forget(self, *args)

    monkeypatch.setattr(AmqpEngine, "send", noted_send)
    monkeypatch.setattr(AmqpEngine, "forget", noted_forget)
    receiver = connect().receiver("news", "topic")
    publish(connect().sender("news", "topic"), "a")
    assert receiver.receive(WAIT_S).body == "a"

    settle(receiver, Delivery.RELEASED)

    assert receiver.receive(WAIT_S).body == "a"
    assert done == ["send", "forget", "send"]


def test_a_drained_subscription_gives_back_the_credit_it_has_no_events_for(
    connect: Connect,
) -> None:
    client = connect()
    receiver = client.receiver("news", "topic", credit=0, selector="n = 1")
    sender = connect().sender("news", "topic")
    for number in (1, 2, 2, 1, 2):
        publish(sender, f"{number}", n=number)
    fetched = receiver.fetcher.incoming
    receiver.link.drain(5)

    client.blocking.wait(lambda: not receiver.link.draining() and len(fetched) == 2)

    assert receiver.link.credit == 0
    publish(sender, "1", n=1)
    receiver.link.drain(1)
    client.blocking.wait(lambda: not receiver.link.draining() and len(fetched) == 3)


@pytest.mark.spec("C2", "R2")
@pytest.mark.parametrize("serves_amqp", [True, False])
def test_a_start_removes_temporary_destinations_and_nothing_that_is_called_like_one(
    tmp_path: Path, *, serves_amqp: bool
) -> None:
    """Older versions let clients give any store such a name."""
    mine, foreign_name = f"temp-queue-{'0' * 32}", f"temp-queue-{'1' * 32}"
    topic = f"temp-topic-{'2' * 32}"
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        for name, definition in (
            (mine, Definition(kind="queue", type="persistent")),
            (foreign_name, TEMPORARY["queue"]),
            (topic, TEMPORARY["channel"]),
        ):
            realm.loop.call(realm.running.create_channel(name, definition, temporary=True))
        session.queues.get(mine).push(b"kept")
        assert session.queues.list() == [mine]
        assert session.channels.list() == []

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        if serves_amqp:
            realm.listen_amqp()
        else:
            view = realm.running.view
            eventually(lambda: not list(view.temporary_stores()))

        assert session.queues.list() == [mine]
        for get in (session.queues.get, session.channels.get):
            with pytest.raises(penstock.NameDoesNotExist):
                get(foreign_name if get == session.queues.get else topic)
        kept = session.queues.get(mine).pop(1.0)
        assert kept is not None
        assert kept.data == b"kept"
