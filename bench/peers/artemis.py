"""ActiveMQ Artemis: its embedded server, AMQP 1.0, python-qpid-proton."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import jars
from bench.ledger import Ledger
from bench.processes import server_process, without_client
from bench.shape import WINDOW, Broker, Client, Missing, Server
from bench.workload import Encoded, Events, decode, encode
from penstock_testing.ports import free_port

STREAM = "orders"
ROUND_TRIP = "round-trip"
"""A queue for one message, whose confirmation follows those of everything sent before it."""
PENDING_MAX = 4_000
MAIN = "org.apache.activemq.artemis.core.server.embedded.Main"
CONFIGURATION = """<configuration xmlns="urn:activemq"><core xmlns="urn:activemq:core">
<persistence-enabled>true</persistence-enabled><security-enabled>false</security-enabled>
<journal-type>NIO</journal-type><journal-datasync>{sync}</journal-datasync>{more}
<journal-directory>{stored}/journal</journal-directory>
<bindings-directory>{stored}/bindings</bindings-directory>
<large-messages-directory>{stored}/large</large-messages-directory>
<paging-directory>{stored}/paging</paging-directory>
<global-max-size>1G</global-max-size>
<acceptors><acceptor name="amqp">tcp://127.0.0.1:{port}?protocols=AMQP</acceptor></acceptors>
<address-settings><address-setting match="#">
<auto-delete-queues>false</auto-delete-queues>
<auto-delete-addresses>false</auto-delete-addresses>
<default-address-routing-type>ANYCAST</default-address-routing-type>
<default-queue-routing-type>ANYCAST</default-queue-routing-type>
</address-setting></address-settings></core></configuration>
"""


class Artemis:
    name = "artemis"

    def __init__(self, buffer_timeout_ns: int | None = None) -> None:
        """``buffer_timeout_ns`` is the time that the journal waits for further writes; None means
        the default of Artemis."""
        self._more = ""
        if buffer_timeout_ns is not None:
            self._more = f"<journal-buffer-timeout>{buffer_timeout_ns}</journal-buffer-timeout>"

    def missing(self) -> str:
        if reason := jars.missing("artemis"):
            return reason
        return without_client("python-qpid-proton")

    def version(self) -> str:
        proton = version("python-qpid-proton")
        return f"{jars.version_of('artemis')} (python-qpid-proton {proton})"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve Artemis. D2: the journal is synced before a message is accepted; D1: it is
        written."""
        port = free_port()
        place = directory.parent / "artemis"
        (place / "etc").mkdir(parents=True, exist_ok=True)
        sync = "true" if durability == "D2" else "false"
        (place / "etc" / "broker.xml").write_text(
            CONFIGURATION.format(sync=sync, more=self._more, stored=directory, port=port)
        )
        command = [shutil.which("java") or "", "-Xms1g", "-Xmx2g"]
        command += ["-cp", jars.class_path("artemis"), MAIN, str(place)]
        with server_process(
            command, port, f"amqp://127.0.0.1:{port}", directory=directory
        ) as server:
            yield server

    async def connect(self, url: str) -> Broker:
        return await ArtemisBroker.connected(url)


class Wire:
    """Proton's loop in a separate thread, and the calls between it and the asyncio loop."""

    def __init__(self, url: str) -> None:
        from proton.handlers import MessagingHandler
        from proton.reactor import ApplicationEvent, Container, EventInjector

        self._loop = asyncio.get_running_loop()
        self._event = ApplicationEvent
        self._injector = EventInjector()
        self._senders: dict[str, Any] = {}
        self._waiting: deque[tuple[str, Any, Callable[[], None]]] = deque()
        self._unconfirmed: dict[Any, Callable[[], None]] = {}
        self._messages: deque[tuple[Any, Any]] = deque()
        self._has_messages = asyncio.Event()
        self._is_told = False
        self.is_open = asyncio.Event()
        wire = self

        class WireHandler(MessagingHandler):  # type: ignore[misc,unused-ignore]  # proton has no types, if it is installed
            def on_start(self, event: Any) -> None:
                wire.connection = event.container.connect(url, reconnect=False)
                event.container.selectable(wire._injector)

            def on_connection_opened(self, event: Any) -> None:
                wire._loop.call_soon_threadsafe(wire.is_open.set)

            def on_call(self, event: Any) -> None:
                event.subject()

            def on_sendable(self, event: Any) -> None:
                wire._send_waiting()

            def on_accepted(self, event: Any) -> None:
                wire._unconfirmed.pop(event.delivery)()

            def on_message(self, event: Any) -> None:
                wire._messages.append((event.message, event.delivery))
                if not wire._is_told:
                    wire._is_told = True
                    wire._loop.call_soon_threadsafe(wire._has_messages.set)

        self.connection: Any = None
        handler = WireHandler(prefetch=0, auto_accept=False)
        self.container = Container(handler)
        self._thread = threading.Thread(target=self.container.run)
        self._thread.start()

    def call(self, work: Callable[[], None]) -> None:
        """Run ``work`` in proton's thread."""
        self._injector.trigger(self._event("call", subject=work))

    async def done(self, work: Callable[[], None]) -> None:
        """Run ``work`` in proton's thread, and wait until it is done."""
        finished = asyncio.Event()

        def work_and_tell() -> None:
            work()
            self._loop.call_soon_threadsafe(finished.set)

        self.call(work_and_tell)
        await finished.wait()

    def sent(self, queue: str, payloads: Sequence[bytes]) -> asyncio.Future[None]:
        """Pass messages to proton's thread; the future is done when the last one is accepted."""
        from proton import Message

        confirmed = self._loop.create_future()
        unconfirmed = len(payloads)

        def accepted() -> None:
            nonlocal unconfirmed
            unconfirmed -= 1
            if not unconfirmed:
                self._loop.call_soon_threadsafe(confirmed.set_result, None)

        def send() -> None:
            if queue not in self._senders:
                self._senders[queue] = self.container.create_sender(self.connection, queue)
            for payload in payloads:
                message = Message(body=payload, durable=True, inferred=True)
                self._waiting.append((queue, message, accepted))
            self._send_waiting()

        self.call(send)
        return confirmed

    def _send_waiting(self) -> None:
        while self._waiting and self._senders[self._waiting[0][0]].credit:
            queue, message, accepted = self._waiting.popleft()
            self._unconfirmed[self._senders[queue].send(message)] = accepted

    async def receive_messages(self) -> list[tuple[Any, Any]]:
        """Return the messages that have arrived; wait until there is at least one."""
        while not self._messages:
            self._has_messages.clear()
            self._is_told = False
            if not self._messages:
                await self._has_messages.wait()
        return [self._messages.popleft() for _ in range(len(self._messages))]

    async def receive(self, queue: str) -> None:
        """Receive a window of messages, and one more for each settled one."""

        def attach() -> None:
            self.receiver = self.container.create_receiver(self.connection, queue)
            self.receiver.flow(WINDOW)

        await self.done(attach)

    def settle(self, kept: Sequence[Any], flawed: Sequence[Any]) -> None:
        from proton import Delivery

        def settle() -> None:
            for delivery in kept:
                delivery.update(Delivery.ACCEPTED)
                delivery.settle()
            for delivery in flawed:
                delivery.local.failed = True
                delivery.update(Delivery.MODIFIED)
                delivery.settle()
            self.receiver.flow(len(kept) + len(flawed))

        self.call(settle)

    async def settled(self) -> None:
        await self.sent(ROUND_TRIP, [b"?"])

    async def close(self) -> None:
        self.call(self.connection.close)
        self.call(self._injector.close)
        await asyncio.to_thread(self._thread.join)


class ArtemisBroker:
    def __init__(self, wire: Wire, url: str) -> None:
        self._wire = wire
        self._url = url
        self._stream = STREAM
        self._room = asyncio.Semaphore(PENDING_MAX)
        self._sent: list[asyncio.Future[None]] = []

    @classmethod
    async def connected(cls, url: str) -> ArtemisBroker:
        wire = Wire(url)
        await wire.is_open.wait()
        return cls(wire, url)

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.attach(STREAM, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        """Do nothing: Artemis creates a queue when a client sends to it."""

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        if kind != "shared" or len(names) > 1:
            raise Missing("the queue serves all clients at once")

    async def client(self, durable: str) -> Client:
        wire = Wire(self._url)
        await wire.is_open.wait()
        await wire.receive(STREAM)
        return ArtemisClient(wire)

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._stream = stream
        if consumes:
            await self._wire.receive(stream)

    async def publish_batch(self, events: Events, api: str) -> None:
        payloads = [_payload(events, row) for row in range(len(events))]
        await self._wire.sent(self._stream, payloads)

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        self._stream = stream
        for _ in range(rounds):
            for batch in batches:
                await self.publish_batch(batch, "rows")

    async def send(self, events: Events, row: int) -> None:
        await self._room.acquire()
        sending = self._wire.sent(self._stream, [_payload(events, row)])
        sending.add_done_callback(lambda _: self._room.release())
        self._sent.append(sending)

    async def flush(self) -> None:
        sent, self._sent = self._sent, []
        for sending in sent:
            await sending

    async def publish_one(self, events: Events, row: int) -> None:
        await self._wire.sent(self._stream, [_payload(events, row)])

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        messages = await self._wire.receive_messages()
        price = 0.0
        for message, _ in messages:
            event = decode(message.body)
            assert event.data, "every event has data"
            price += event.properties["price"]
        self._wire.settle([delivery for _, delivery in messages], [])
        return len(messages), price

    async def settled(self) -> None:
        await self._wire.settled()

    async def close(self) -> None:
        await self._wire.close()


class ArtemisClient:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            price, kept, flawed = 0.0, [], []
            for message, delivery in await self._wire.receive_messages():
                event = decode(message.body)
                assert event.data, "every event has data"
                worth = event.properties["price"]
                if worth == ledger.flaw and not message.delivery_count:
                    flawed.append(delivery)
                else:
                    price += worth
                    kept.append(delivery)
            self._wire.settle(kept, flawed)
            ledger.add(len(kept), price, len(flawed))

    async def hold(self) -> None:
        """Do nothing: Artemis sends the window by itself."""

    async def settled(self) -> None:
        await self._wire.settled()

    async def close(self) -> None:
        await self._wire.close()


def _payload(events: Events, row: int) -> bytes:
    return encode(Encoded(events.datas[row], events.properties[row]))


PEER = Artemis()
