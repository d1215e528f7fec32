"""An unmodified python-qpid-proton: its blocking client, its reactor, native clients beside it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_testing.process import ServerProcess
from tests.interop.programs import InteropRealm

pytest.importorskip("proton", reason="python-qpid-proton is not installed: `make setup` says why")

from proton import Delivery, Message, Terminus, Timeout, int32, symbol, ulong
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy, DurableSubscription, Selector
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached

pytestmark = [pytest.mark.slow, pytest.mark.process]

PATIENCE_S = 60.0
_runs = count()
QUIET_S = 0.3


@pytest.fixture
def connection(amqp: str) -> Iterator[BlockingConnection]:
    connection = BlockingConnection(amqp, timeout=PATIENCE_S)
    yield connection
    connection.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Name of a destination that no other test has, and no other run of this one."""
    return f"proton_{request.node.name}_{next(_runs)}"


def send(connection: BlockingConnection, address: str, *messages: Message) -> None:
    sender = connection.create_sender(address)
    for message in messages:
        assert sender.send(message).remote_state == Delivery.ACCEPTED
    sender.close()


def is_empty(receiver: BlockingReceiver) -> bool:
    try:
        receiver.receive(QUIET_S)
    except Timeout:
        return True
    return False


def test_messages_come_in_order_and_are_settled(connection: BlockingConnection, name: str) -> None:
    send(connection, name, *(Message(body=f"m{number}") for number in range(50)))
    receiver = connection.create_receiver(name, credit=10)

    for number in range(50):
        assert receiver.receive().body == f"m{number}"
        receiver.accept()
    assert is_empty(receiver)


def test_every_part_of_a_message_comes_out_as_it_went_in(
    connection: BlockingConnection, name: str
) -> None:
    sent = Message(
        body={"list": [1, 2.5, None], "bytes": b"\x00\xff"},
        id=ulong(7),
        correlation_id="c",
        subject="s",
        reply_to="answers",
        properties={"text": "ß", "int": int32(-3), "yes": True, "none": None, "half": 0.5},
        annotations={"x-opt-mine": "kept"},
        durable=True,
        priority=9,
        ttl=60.0,
        group_id="g",
        group_sequence=4,
        user_id=b"u",
    )
    send(connection, name, sent)
    receiver = connection.create_receiver(name)
    message = receiver.receive()
    receiver.accept()

    parts = ("body", "id", "correlation_id", "subject", "reply_to", "properties", "durable")
    for part in (*parts, "priority", "group_id", "group_sequence", "user_id"):
        assert getattr(message, part) == getattr(sent, part), part
    assert message.annotations["x-opt-mine"] == "kept"
    assert 0 < message.ttl <= 60.0
    assert message.delivery_count == 0


def test_what_is_released_comes_again_and_what_is_rejected_does_not(
    connection: BlockingConnection, name: str
) -> None:
    """``delivered`` makes it "modified"; nothing has failed, so that is not counted either."""
    send(connection, name, Message(body="a"))
    receiver = connection.create_receiver(name)
    messages = []
    for delivered in (False, True):
        messages.append(receiver.receive())
        receiver.release(delivered=delivered)
    messages.append(receiver.receive())
    receiver.reject()

    assert [(message.body, message.delivery_count) for message in messages] == [("a", 0)] * 3
    assert is_empty(receiver)


def test_selectors_and_browsers(connection: BlockingConnection, name: str) -> None:
    send(connection, name, *(Message(body=n, properties={"n": n}) for n in range(6)))
    looking = connection.create_receiver(name, credit=10, options=[Copy(), Selector("n > 3")])
    assert [looking.receive().body for _ in range(2)] == [4, 5]
    looking.close()
    odd = connection.create_receiver(name, options=Selector("n = 1 OR n = 3"))
    for expected in (1, 3):
        assert odd.receive().body == expected
        odd.accept()
    odd.close()
    rest = connection.create_receiver(name)

    for expected in (0, 2, 4, 5):
        assert rest.receive().body == expected
        rest.accept()


def test_a_selector_that_is_none_is_refused(connection: BlockingConnection, name: str) -> None:
    with pytest.raises(LinkDetached, match="amqp:invalid-field"):
        connection.create_receiver(name, options=Selector("n = = 1"))


def test_a_temporary_address_answers(connection: BlockingConnection, name: str) -> None:
    answers = connection.create_receiver(None, dynamic=True)
    send(connection, name, Message(body="question", reply_to=answers.remote_source.address))
    requests = connection.create_receiver(name)
    request = requests.receive()
    requests.accept()
    relay = connection.create_sender(None)
    relay.send(Message(address=request.reply_to, body="answer"))

    assert answers.receive().body == "answer"


@pytest.mark.spec("R2")
def test_requests_of_either_client_are_answered_by_the_other(
    realm: InteropRealm, connection: BlockingConnection, name: str
) -> None:
    with penstock.connect(realm.url) as session, ThreadPoolExecutor(1) as pool:
        work = session.queues.create(name)
        answers = connection.create_receiver(None, dynamic=True)
        address = answers.remote_source.address
        send(connection, name, Message(body="question", reply_to=address, id=ulong(17)))
        asked_event = work.pop(PATIENCE_S)
        assert asked_event is not None
        asked_event.reply(b"answer")
        answer = answers.receive()
        assert (answer.body, answer.correlation_id) == ("answer", 17)
        answers.accept()

        replied = pool.submit(work.request, b"question", PATIENCE_S)
        requests = connection.create_receiver(name)
        request = requests.receive()
        requests.accept()
        relay = connection.create_sender(None)
        correlation_id = request.correlation_id
        relay.send(Message(address=request.reply_to, body=b"answer", correlation_id=correlation_id))
        assert replied.result(PATIENCE_S).data == b"answer"


class Subscriber(MessagingHandler):  # type: ignore[misc]  # proton is untyped
    """Attaches a durable subscription to a topic, takes so many messages, and goes."""

    def __init__(self, url: str, address: str, count: int) -> None:
        super().__init__()
        self.bodies: list[Any] = []
        self._url, self._address, self._count = url, address, count

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url, reconnect=False)
        link = event.container.create_receiver(
            connection, self._address, name="kept", options=[AsTopic(), DurableSubscription()]
        )
        assert link.source.durability == Terminus.DELIVERIES

    def on_link_opened(self, event: Any) -> None:
        self._leave(event)

    def on_message(self, event: Any) -> None:
        self.bodies.append(event.message.body)
        self._leave(event)

    def _leave(self, event: Any) -> None:
        if len(self.bodies) == self._count:
            event.receiver.detach()
            event.connection.close()


class AsTopic:
    """A link option: the address is a topic's."""

    def test(self, link: Any) -> bool:
        return True

    def apply(self, link: Any) -> None:
        end = link.source if link.is_receiver else link.target
        end.capabilities.put_object(symbol("topic"))


def test_a_durable_subscription_keeps_what_comes_meanwhile(
    connection: BlockingConnection, amqp: str, name: str
) -> None:
    def attached(count: int) -> list[Any]:
        subscriber = Subscriber(amqp, name, count)
        container = Container(subscriber)
        container.container_id = "proton-durable"
        container.run()
        return subscriber.bodies

    assert attached(0) == []
    sender = connection.create_sender(name, options=AsTopic())
    sender.send(Message(body="a"))
    sender.send(Message(body="b"))

    assert attached(2) == ["a", "b"]


class Transfer(MessagingHandler, TransactionHandler):  # type: ignore[misc]  # proton is untyped
    """Moves what is in one queue to another in one transaction, after one that it gave up."""

    def __init__(self, url: str, source: str, target: str, count: int) -> None:
        super().__init__(prefetch=count, auto_accept=False)
        self.said: list[str] = []
        self._url, self._source, self._target, self._count = url, source, target, count
        self._taken: list[Any] = []
        self._gives_up = True

    def on_start(self, event: Any) -> None:
        self._container = event.container
        self._connection = event.container.connect(self._url, reconnect=False)
        self._sender = event.container.create_sender(self._connection, self._target)
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        self._transaction = event.transaction
        if self._gives_up:
            self._transaction.send(self._sender, Message(body="never"))
            self._transaction.abort()
        else:
            event.container.create_receiver(self._connection, self._source)

    def on_message(self, event: Any) -> None:
        self._transaction.send(self._sender, Message(body=event.message.body))
        self._transaction.accept(event.delivery)
        self._taken.append(event.message.body)
        if len(self._taken) == self._count:
            self._transaction.commit()

    def on_transaction_aborted(self, event: Any) -> None:
        self.said.append("aborted")
        self._gives_up = False
        self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_committed(self, event: Any) -> None:
        self.said.append("committed")
        self._connection.close()


def test_a_transaction_moves_all_or_nothing(
    connection: BlockingConnection, amqp: str, name: str
) -> None:
    send(connection, name, *(Message(body=n) for n in range(5)))
    transfer = Transfer(amqp, name, f"{name}_moved", count=5)

    Container(transfer).run()

    assert transfer.said == ["aborted", "committed"]
    moved = connection.create_receiver(f"{name}_moved", credit=10)
    assert [moved.receive().body for _ in range(5)] == [0, 1, 2, 3, 4]
    assert is_empty(moved)
    assert is_empty(connection.create_receiver(name))


class Pipeline(MessagingHandler):  # type: ignore[misc]  # proton is untyped
    """Sends numbers as fast as there is credit and counts what is accepted."""

    def __init__(self, url: str, address: str, count: int) -> None:
        super().__init__()
        self.accepted = 0
        self._url, self._address, self._count = url, address, count
        self._sent = 0

    def on_start(self, event: Any) -> None:
        connection = event.container.connect(self._url, reconnect=False)
        event.container.create_sender(connection, self._address)

    def on_sendable(self, event: Any) -> None:
        while event.sender.credit and self._sent < self._count:
            event.sender.send(Message(body=str(self._sent), durable=True))
            self._sent += 1

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        if self.accepted == self._count:
            event.connection.close()


def test_a_reactor_sends_without_waiting(
    connection: BlockingConnection, amqp: str, name: str
) -> None:
    pipeline = Pipeline(amqp, name, 5_000)
    Container(pipeline).run()
    receiver = connection.create_receiver(name, credit=500)

    assert pipeline.accepted == 5_000
    for number in range(5_000):
        assert receiver.receive().body == str(number)
        receiver.accept()


def test_a_native_client_reads_what_came_over_amqp(
    connection: BlockingConnection, realm: InteropRealm, name: str
) -> None:
    send(connection, name, Message(body=b"data", properties={"n": int32(3), "text": "t"}))

    with penstock.connect(realm.url) as session:
        event = session.queues.get(name).pop()

    assert event is not None
    assert event.properties == {"n": 3, "text": "t"}
    assert event.data == b"data"


def test_a_native_client_is_read_over_amqp(
    connection: BlockingConnection, realm: InteropRealm, name: str
) -> None:
    with penstock.connect(realm.url) as session:
        queue = session.queues.create(name)
        queue.push(b"data", properties={"n": 3, "text": "t", "x": 0.5})
    receiver = connection.create_receiver(name)
    message = receiver.receive()
    receiver.accept()

    assert message.properties == {"n": 3, "text": "t", "x": 0.5}
    assert message.body == b"data"


class Killer(Pipeline):
    """Has the realm killed in the middle of what it sends, and remembers what was accepted."""

    def __init__(self, server: ServerProcess, url: str, address: str, count: int) -> None:
        super().__init__(url, address, 1 << 30)
        self._server, self._kills_after = server, count

    def on_accepted(self, event: Any) -> None:
        super().on_accepted(event)
        if self.accepted == self._kills_after:
            self._server.kill()

    def on_transport_error(self, event: Any) -> None:
        """It has been killed, as it should."""


def test_what_was_accepted_outlives_the_realm(tmp_path: Path) -> None:
    options = ("--amqp-port", "0")
    with ServerProcess(tmp_path / "realm", *options) as server:
        url = str(server.logged("amqp.listening")[0]["url"])
        sender = Killer(server, url, "kept", count=1_000)
        Container(sender).run()

    with (
        ServerProcess(tmp_path / "realm", *options) as server,
        penstock.connect(server.url) as session,
    ):
        stored = [event.data for event in session.queues.get("kept").peek(count=10**6)]
    assert sender.accepted >= 1_000
    assert stored[: sender.accepted] == [b"%d" % n for n in range(sender.accepted)]
