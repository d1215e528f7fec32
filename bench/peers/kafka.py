"""Apache Kafka: one node that is broker and controller (KRaft), with confluent-kafka."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import jars
from bench.ledger import Ledger
from bench.processes import server_process, without_client
from bench.shape import WINDOW, Broker, Client, Missing, Server, Subscriber
from bench.workload import Encoded, Events, decode, encode
from penstock_testing.ports import free_port

STREAM = "orders"
DURABLE = "billing"
CLUSTER = "cGVuc3RvY2stYmVuY2gtMA"
CONFIGURATION = """
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_step}
min.insync.replicas={in_step}
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
{flushing}
"""
LOOK_S = 0.01
"""Longest wait of a fetch, in seconds. Without it, the client waits until it has all requested
events."""
STEP_S = 0.2


class Kafka:
    name = "kafka"

    def missing(self) -> str:
        if reason := jars.missing("kafka"):
            return reason
        return without_client("confluent-kafka")

    def version(self) -> str:
        return f"{jars.version_of('kafka')} (confluent-kafka {version('confluent-kafka')})"

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve Kafka. D2: every write is flushed before it is confirmed; D1: the system flushes it
        later."""
        port, controller = free_port(), free_port()
        configuration = directory.parent / "kafka.properties"
        configuration.write_text(
            CONFIGURATION.format(
                number=1,
                voters=f"1@127.0.0.1:{controller}",
                replicas=1,
                in_step=1,
                port=port,
                controller=controller,
                directory=directory / "log",
                flushing="log.flush.interval.messages=1" if durability == "D2" else "",
            )
        )
        java = [shutil.which("java") or "", "-Xmx1g", "-Xms1g", "-XX:+UseG1GC"]
        java += ["-cp", jars.class_path("kafka")]
        if not (directory / "log" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(configuration)]
            subprocess.run([*java, *tool], check=True, capture_output=True)
        command = [*java, "kafka.Kafka", str(configuration)]
        with server_process(command, port, f"127.0.0.1:{port}", directory=directory) as server:
            yield server

    async def connect(self, url: str) -> Broker:
        return KafkaBroker(url)


class KafkaBroker:
    """A stream is a topic with one partition, which keeps the order of publishing."""

    def __init__(self, url: str, *, replicas: int = 1) -> None:
        """``replicas`` is the number of nodes that store a topic."""
        self._url = url
        self._replicas = replicas
        self._stream = STREAM
        self._loop = asyncio.get_running_loop()
        self._producer: Any = None
        self._polling: threading.Thread | None = None
        self._is_closed = False
        self._subscribers = 0
        self._sent: list[asyncio.Future[None]] = []
        self._consumer: KafkaConsumer | None = None

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [STREAM])
        await self.attach(STREAM, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": self._url})
        await asyncio.to_thread(_wait_for_brokers, admin, self._replicas)
        topics = [NewTopic(name, 1, self._replicas) for name in names]
        for making in admin.create_topics(topics).values():
            await asyncio.to_thread(making.result)

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make a consumer group for each durable."""
        if clients > 1:
            raise Missing("a partition has one consumer, and a single event cannot be returned")
        await self.prepare_streams(durability, [STREAM])

    async def client(self, durable: str) -> Client:
        consumer = KafkaConsumer(self._url, STREAM, durable)
        await consumer.assigned()
        return consumer

    async def prepare_broadcast(self, durability: str) -> None:
        if durability == "D0":
            raise Missing("Kafka writes every event to its log")
        await self.prepare_streams(durability, [STREAM])

    async def subscriber(self) -> Subscriber:
        """Return a consumer that does not commit its position."""
        self._subscribers += 1
        reader = KafkaConsumer(self._url, STREAM, f"reader-{self._subscribers}", commits=False)
        await reader.assigned()
        return reader

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._stream = stream
        if consumes:
            self._consumer = KafkaConsumer(self._url, stream, DURABLE)
            await self._consumer.assigned()

    def _produced(self, events: Events, rows: Sequence[int]) -> asyncio.Future[None]:
        """Pass rows to the client's own thread; the future is done when the last one is
        confirmed."""
        if self._producer is None:
            self._start()
        confirmed = self._loop.create_future()
        unconfirmed = len(rows)

        def delivered(error: Any, message: Any) -> None:
            nonlocal unconfirmed
            unconfirmed -= 1
            if error is not None:
                self._loop.call_soon_threadsafe(_fail, confirmed, RuntimeError(str(error)))
            elif not unconfirmed:
                self._loop.call_soon_threadsafe(_finish, confirmed)

        for row in rows:
            payload = encode(Encoded(events.datas[row], events.properties[row]))
            self._producer.produce(self._stream, payload, on_delivery=delivered)
        return confirmed

    def _start(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": self._url,
                "acks": "all",
                "linger.ms": 0,
                # A repetition after a late answer is stored once, as with Kafka's own client
                "enable.idempotence": self._replicas > 1,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._polling = threading.Thread(target=self._poll)
        self._polling.start()

    def _poll(self) -> None:
        while not self._is_closed:
            self._producer.poll(STEP_S)

    async def publish_batch(self, events: Events, api: str) -> None:
        await self._produced(events, range(len(events)))

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        self._stream = stream
        for _ in range(rounds):
            for batch in batches:
                await self.publish_batch(batch, "rows")

    async def send(self, events: Events, row: int) -> None:
        self._sent.append(self._produced(events, [row]))

    async def flush(self) -> None:
        sent, self._sent = self._sent, []
        for confirmed in sent:
            await confirmed

    async def publish_one(self, events: Events, row: int) -> None:
        await self._produced(events, [row])

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        assert self._consumer is not None, "it is attached"
        return await self._consumer.take(min(count, WINDOW))

    async def settled(self) -> None:
        assert self._consumer is not None, "it is attached"
        await self._consumer.settled()

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()
        if self._polling is not None:
            self._is_closed = True
            await asyncio.to_thread(self._polling.join)


class KafkaConsumer:
    """The only consumer of a group. It commits its position without waiting for the answer."""

    def __init__(self, url: str, stream: str, group: str, *, commits: bool = True) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(
            {
                "bootstrap.servers": url,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        self._assigned = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer.subscribe([stream], on_assign=self._on_assign)
        self._early: list[Any] = []
        self._commits = commits

    def _on_assign(self, *_: Any) -> None:
        self._loop.call_soon_threadsafe(self._assigned.set)

    async def assigned(self) -> None:
        """Wait until the group has assigned the partition to this consumer."""
        while not self._assigned.is_set():
            self._early += await self._fetched(WINDOW)

    async def _fetched(self, count: int) -> list[Any]:
        messages: list[Any] = await asyncio.to_thread(self._consumer.consume, count, LOOK_S)
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
        return messages

    async def take(self, count: int) -> tuple[int, float]:
        """Consume some events, at least one. Return their number and the sum of their prices."""
        messages, self._early = self._early, []
        while not messages:
            messages = await self._fetched(count)
        price = 0.0
        for message in messages:
            event = decode(message.value())
            assert event.data, "every event has data"
            price += event.properties["price"]
        if self._commits:
            self._consumer.commit(asynchronous=True)
        return len(messages), price

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            ledger.add(*await self.take(WINDOW))

    async def hold(self) -> None:
        self._early += await self._fetched(WINDOW)

    async def settled(self) -> None:
        await asyncio.to_thread(self._consumer.commit, asynchronous=False)

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)


def _wait_for_brokers(admin: Any, count: int) -> None:
    """Wait until a topic can have this number of replicas."""
    while len(admin.list_topics().brokers) < count:
        time.sleep(STEP_S)


def _finish(confirmed: asyncio.Future[None]) -> None:
    if not confirmed.done():
        confirmed.set_result(None)


def _fail(confirmed: asyncio.Future[None], error: Exception) -> None:
    if not confirmed.done():
        confirmed.set_exception(error)


PEER = Kafka()
