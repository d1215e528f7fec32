"""kombu's own producers and consumers over a realm in a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.asynchronous.hub import Hub
from kombu.exceptions import ChannelError
from kombu.transport.virtual import NotEquivalentError

import penstock
from penstock_celery.delivery import QueueSource
from penstock_celery.intake import WAIT_S
from penstock_testing.process import ServerProcess

pytestmark = pytest.mark.process

SOON_S = 20.0
"""Seconds in which a message has to arrive on a busy machine."""


class Inbox:
    """A consumer that keeps the messages that it receives."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch_count: int = 0) -> None:
        self._connection = connection
        self.messages: list[Message] = []
        self.channel = connection.channel()
        self.consumer = Consumer(self.channel, list(queues), on_message=self.messages.append)
        self.consumer.qos(prefetch_count=prefetch_count)
        self.consumer.consume()

    def receive(self, count: int = 1) -> list[Any]:
        """Return the bodies of the next messages."""
        end = len(self.messages) + count
        while len(self.messages) < end:
            self._connection.drain_events(timeout=SOON_S)
        return [message.payload for message in self.messages[-count:]]

    def is_idle(self, timeout_s: float = 0.2) -> bool:
        """Whether no further message arrives."""
        try:
            self._connection.drain_events(timeout=timeout_s)
        except TimeoutError:
            return True
        return False


def put(connection: Connection, queue: str, *bodies: Any, **properties: Any) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, routing_key=queue, declare=[Queue(queue)], **properties)


def size(connection: Connection, queue: str) -> int:
    with connection.channel() as channel:
        return int(channel.queue_declare(queue, passive=True).message_count)


def test_a_message_is_consumed_once_and_leaves_when_it_is_acknowledged(
    connection: Connection,
) -> None:
    put(connection, "jobs", {"n": 1}, b"\xff\xfe")
    inbox = Inbox(connection, Queue("jobs"))

    bodies = inbox.receive(2)
    for message in inbox.messages:
        message.ack()

    assert bodies == [{"n": 1}, b"\xff\xfe"]
    assert inbox.messages[0].delivery_info["redelivered"] is False
    assert inbox.is_idle()
    assert size(connection, "jobs") == 0


def test_ten_priorities_are_the_order_of_delivery(connection: Connection) -> None:
    for priority in (0, 5, 9, 1, 8, 2, 7, 3, 6, 4):
        put(connection, "jobs", priority, priority=priority)
    put(connection, "jobs", "second of 9", priority=9)
    inbox = Inbox(connection, Queue("jobs"), prefetch_count=1)
    received = []
    for _ in range(11):
        received += inbox.receive()
        inbox.messages[-1].ack()

    assert received == [9, "second of 9", 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_a_running_consumer_notices_a_priority_that_was_never_used(connection: Connection) -> None:
    inbox = Inbox(connection, Queue("jobs"))
    put(connection, "jobs", "plain")
    inbox.receive()
    put(connection, "jobs", "urgent", priority=7)

    assert inbox.receive() == ["urgent"]


def test_a_rejected_message_leaves_and_a_requeued_one_comes_back(connection: Connection) -> None:
    put(connection, "jobs", "bad", "again")
    inbox = Inbox(connection, Queue("jobs"))
    inbox.receive(2)
    inbox.messages[0].reject()
    inbox.messages[1].requeue()

    assert inbox.receive() == ["again"]
    assert inbox.messages[-1].delivery_info["redelivered"] is True
    assert inbox.messages[-1].delivery_info["redelivery_count"] == 1
    inbox.messages[-1].ack()
    assert inbox.is_idle()


def test_a_rejected_message_goes_to_the_dead_event_store_of_the_queue(
    connection: Connection, server: ServerProcess
) -> None:
    vhost = connection.virtual_host
    with penstock.connect(server.url) as session:
        dead = session.queues.create(f"{vhost}/dead")
        session.queues.create(f"{vhost}/jobs", dead_event_store=dead.name)
        put(connection, "jobs", "bad")
        inbox = Inbox(connection, Queue("jobs"))
        inbox.receive()
        inbox.messages[0].reject()

        events = list(dead.peek())

    assert [event.data for event in events] == [b"bad"]


def test_prefetch_limits_unacknowledged_messages_and_others_get_the_rest(url: str) -> None:
    with Connection(url) as first, Connection(url) as second:
        put(first, "jobs", 1, 2, 3, 4)
        slow = Inbox(first, Queue("jobs"), prefetch_count=2)
        slow.receive(2)

        assert slow.is_idle(WAIT_S)
        assert Inbox(second, Queue("jobs")).receive(2) == [3, 4]
        slow.messages[0].ack()
        assert slow.is_idle()


def test_what_a_consumer_has_not_acknowledged_returns_when_it_closes(url: str) -> None:
    with Connection(url) as first, Connection(url) as second:
        put(first, "jobs", "unfinished")
        Inbox(first, Queue("jobs")).receive()
        first.close()
        second_inbox = Inbox(second, Queue("jobs"))

        assert second_inbox.receive() == ["unfinished"]
        assert second_inbox.messages[0].delivery_info["redelivered"] is True


def test_a_cancelled_consumer_may_still_acknowledge(url: str) -> None:
    with Connection(url) as first, Connection(url) as second:
        put(first, "jobs", 1)
        inbox = Inbox(first, Queue("jobs"))
        inbox.receive()
        inbox.consumer.cancel()
        put(first, "jobs", 2)

        assert Inbox(second, Queue("jobs")).receive() == [2]
        inbox.messages[0].ack()
        first.close()
        assert size(second, "jobs") == 0


def test_a_message_returns_when_its_visibility_ends(url: str) -> None:
    with (
        Connection(url, transport_options={"visibility_timeout": "200ms"}) as first,
        Connection(url) as second,
    ):
        put(first, "jobs", "slow")
        slow = Inbox(first, Queue("jobs"))
        slow.receive()
        second_inbox = Inbox(second, Queue("jobs"))

        assert second_inbox.receive() == ["slow"]
        slow.messages[0].ack()  # too late: logged, and without effect
        second_inbox.messages[0].ack()
        assert size(second, "jobs") == 0


def test_a_message_expires(connection: Connection) -> None:
    put(connection, "jobs", "old", expiration=0.001)
    put(connection, "jobs", "new")

    assert Inbox(connection, Queue("jobs")).receive() == ["new"]


def test_purging_removes_the_messages_of_all_priorities(connection: Connection) -> None:
    put(connection, "jobs", 1, 2)
    put(connection, "jobs", 3, priority=9)
    before = size(connection, "jobs")

    with connection.channel() as channel:
        purged = channel.queue_purge("jobs")

    assert (before, purged, size(connection, "jobs")) == (3, 3, 0)


def test_a_deleted_queue_does_not_exist(connection: Connection) -> None:
    put(connection, "jobs", 1, priority=9)
    with connection.channel() as channel:
        channel.queue_delete("jobs", if_empty=True)
        kept = channel.queue_declare("jobs", passive=True).message_count
        channel.queue_delete("jobs")

        assert kept == 1
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.queue_declare("jobs", passive=True)


def test_direct_and_topic_exchanges_route_by_bindings_of_other_clients(url: str) -> None:
    direct, topic = Exchange("d", type="direct"), Exchange("t", type="topic")
    with Connection(url) as consuming, Connection(url) as publishing:
        inbox = Inbox(
            consuming,
            Queue("red", direct, routing_key="red"),
            Queue("all", topic, routing_key="log.#"),
            Queue("errors", topic, routing_key="*.error"),
        )
        producer = Producer(publishing.channel())
        for exchange, key in (
            (direct, "red"),
            (direct, "blue"),
            (topic, "log.error"),
            (topic, "log.disk.full"),
            (topic, "audit"),
        ):
            producer.publish(key, exchange=exchange, routing_key=key, declare=[exchange])
        inbox.receive(4)
        routed = sorted(
            (message.payload, message.delivery_info["exchange"]) for message in inbox.messages
        )

        assert routed == [
            ("log.disk.full", "t"),
            ("log.error", "t"),
            ("log.error", "t"),
            ("red", "d"),
        ]
        assert inbox.is_idle()


def test_publishers_need_not_declare_the_exchange_of_a_consumer(url: str) -> None:
    topic = Exchange("t", type="topic")
    with Connection(url) as consuming, Connection(url) as publishing:
        inbox = Inbox(consuming, Queue("all", topic, routing_key="#"))
        channel = publishing.channel()
        Producer(channel).publish("found", exchange="t", routing_key="a.b")

        assert inbox.receive() == ["found"]
        channel.exchange_declare("t", passive=True)
        with pytest.raises(NotEquivalentError, match="topic"):
            channel.exchange_declare("t", type="direct")
        channel.exchange_delete("t")
        channel.exchange_declare("t", type="direct")


def test_an_unbound_queue_gets_nothing_more(connection: Connection) -> None:
    exchange = Exchange("d", type="direct")
    queue = Queue("red", exchange, routing_key="red")
    inbox = Inbox(connection, queue)
    queue(inbox.channel).unbind_from(exchange, routing_key="red")
    Producer(connection.channel()).publish("lost", exchange=exchange, routing_key="red")

    assert inbox.is_idle()


def test_every_queue_of_a_fanout_exchange_gets_every_message(url: str) -> None:
    """Queues that end with their consumer get what is published while they are bound; a queue that
    stays is filled while it has no consumer."""
    exchange = Exchange("news", type="fanout")
    stored = Queue("stored", exchange)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(Connection(url)) for _ in range(3))
        inboxes = [
            Inbox(connection, Queue(name, exchange, auto_delete=True, durable=False))
            for connection, name in ((first, "a"), (second, "b"))
        ]
        stored(third.channel()).declare()
        Producer(third.channel()).publish("hello", exchange=exchange)

        assert [inbox.receive() for inbox in inboxes] == [["hello"], ["hello"]]
        assert Inbox(third, stored).receive() == ["hello"]


def test_a_queue_that_ends_with_its_consumer_is_deleted(connection: Connection) -> None:
    inbox = Inbox(connection, Queue("reply", auto_delete=True, durable=False))
    put(connection, "reply", "answer")
    received = inbox.receive()
    inbox.consumer.cancel()

    assert received == ["answer"]
    with connection.channel() as channel, pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare("reply", passive=True)


def test_a_queue_whose_client_ended_without_deleting_it_is_deleted_later(url: str) -> None:
    arguments = {"x-expires": 1}
    with Connection(url) as first, Connection(url) as second:
        first.channel().queue_declare("left", auto_delete=True, arguments=arguments)
        second.channel().queue_declare("next", auto_delete=True)

        with pytest.raises(ChannelError, match="NOT_FOUND"):
            second.channel().queue_declare("left", passive=True)


def test_virtual_hosts_do_not_share_queues(server: ServerProcess, url: str) -> None:
    with Connection(f"{server.url}/eu-{url[-4:]}") as eu, Connection(url) as us:
        put(eu, "jobs", "eu")
        put(us, "jobs", "us")

        assert Inbox(us, Queue("jobs")).receive() == ["us"]


def test_a_wait_does_not_poll_and_ends_with_the_first_message(url: str) -> None:
    with Connection(url) as consuming, Connection(url) as publishing:
        inbox = Inbox(consuming, Queue("a"), Queue("b"))
        timer = threading.Timer(0.5, put, (publishing, "b", "late"))
        timer.start()
        polls = counted_polls(consuming)
        received = inbox.receive()
        timer.join()

    assert received == ["late"]
    assert polls() <= 2 + SOON_S / WAIT_S  # once before each wait, and once after


def test_messages_are_fetched_together_up_to_the_prefetch_count(url: str) -> None:
    with Connection(url) as connection:
        put(connection, "jobs", *range(30))
        inbox = Inbox(connection, Queue("jobs"), prefetch_count=20)
        counts: list[int] = []
        fetch = QueueSource.fetch

        def recording(source: QueueSource, count: int, timeout_s: float) -> list[penstock.Event]:
            events = fetch(source, count, timeout_s)
            counts.append(len(events))
            return events

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(QueueSource, "fetch", recording)
            assert inbox.receive(20) == [*range(20)]
            assert counts == [20]
            inbox.messages[0].ack()
            assert inbox.receive() == [20]

        with Connection(url) as second:
            assert Inbox(second, Queue("jobs")).receive(9) == [*range(21, 30)]


def test_an_event_loop_delivers_until_the_connection_closes(url: str) -> None:
    loop = Hub()
    with Connection(url) as connection:
        inbox = Inbox(connection, Queue("jobs"))
        connection.register_with_event_loop(loop)
        with Connection(url) as publishing:
            put(publishing, "jobs", *range(150))
        while len(inbox.messages) < 150:
            loop.run_once()
        assert [message.payload for message in inbox.messages] == [*range(150)]
        assert loop.readers
        assert loop.on_tick
    assert not loop.readers
    assert not loop.on_tick
    loop.close()


def counted_polls(connection: Connection) -> Any:
    """Return a function that counts the rounds of ``drain_events`` from now on."""
    cycle, count = connection.transport.cycle, [0]
    get = cycle.get

    def counting(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        return get(*arguments, **named)

    cycle.get = counting
    return lambda: count[0]


@contextmanager
def killed_and_restarted(server: ServerProcess) -> Iterator[ServerProcess]:
    """Kill a realm, and start its successor on the same port."""
    port = server.port
    server.kill()
    with ServerProcess(server.directory, "--port", str(port)) as successor:
        yield successor


def test_a_killed_realm_loses_nothing_and_kombu_connects_again(tmp_path: Any) -> None:
    with ServerProcess(tmp_path) as server, Connection(server.url) as connection:
        put(connection, "jobs", 1, 2)
        inbox = Inbox(connection, Queue("jobs"), prefetch_count=1)
        inbox.receive()
        with killed_and_restarted(server):
            with pytest.raises(penstock.Unavailable):
                connection.drain_events(timeout=SOON_S)
            with pytest.raises(penstock.ConnectionLost):
                inbox.messages[0].ack()
            connection.close()
            connection.ensure_connection(max_retries=5)
            again = Inbox(connection, Queue("jobs"))

            assert again.receive(2) == [1, 2]
            assert [message.delivery_info["redelivered"] for message in again.messages] == [
                False,
                False,
            ]


def test_a_publish_waits_for_a_realm_that_restarts(tmp_path: Any) -> None:
    options = {"reconnect_timeout": 60}
    with (
        ServerProcess(tmp_path) as server,
        Connection(server.url, transport_options=options) as connection,
    ):
        put(connection, "jobs", 1)
        with killed_and_restarted(server):
            put(connection, "jobs", 2)

            assert size(connection, "jobs") == 2
