"""RabbitMQ: Debian's ``rabbitmq-server``, quorum queues, aio-pika."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.ledger import Ledger
from bench.processes import server_process, without_client
from bench.shape import WINDOW, Broker, Client, Missing, Server, Subscriber
from bench.workload import Encoded, Events, decode, encode
from penstock_core.tasks import start_task
from penstock_testing.ports import free_port

STREAM = "orders"
HOME = Path("/usr/lib/rabbitmq/bin")
EXCHANGE = "fan"
PENDING_MAX = 4_000
"""Largest number of unconfirmed publishes, as for NATS."""
CONFIGURATION = """
listeners.tcp.1 = 127.0.0.1:{port}
loopback_users.guest = true
log.console = false
"""
ADVANCED = "[{{ra, [{{wal_sync_method, {sync}}}]}}].\n"


class Rabbit:
    name = "rabbitmq"

    def __init__(self, *plugins: str, configuration: str = "") -> None:
        """``plugins`` are enabled in the server; ``configuration`` has further lines of its
        configuration file."""
        self._plugins = plugins
        self._configuration = CONFIGURATION + configuration

    def missing(self) -> str:
        if not (HOME / "rabbitmq-server").exists() or shutil.which("epmd") is None:
            return "rabbitmq-server is not installed: apt-get install rabbitmq-server"
        for plugin in self._plugins:
            if not any((HOME.parent / "lib").glob(f"rabbitmq_server-*/plugins/{plugin}-*")):
                return (
                    f"its plugin {plugin} is not installed; installed ones: rabbitmq-plugins list"
                )
        return without_client("aio-pika")

    def version(self) -> str:
        return f"{self.server_version() or '?'} (aio-pika {version('aio-pika')})"

    def server_version(self) -> str:
        """Return the version; empty if RabbitMQ is not installed."""
        folders = (HOME.parent / "lib").glob("rabbitmq_server-*")
        return next((folder.name.rpartition("-")[2] for folder in folders), "")

    @contextmanager
    def serve(self, directory: Path, durability: str) -> Iterator[Server]:
        """Serve RabbitMQ. D2: the log of the quorum queues is synced before a confirmation; D1: it
        is written."""
        port, epmd_port, node_port = free_port(), free_port(), free_port()
        kept = directory.parent / "rabbitmq"
        environment = node_environment(
            kept,
            directory,
            f"bench{port}@localhost",
            port=node_port,
            epmd_port=epmd_port,
            configuration=self._configuration.format(port=port),
            durability=durability,
            plugins=self._plugins,
        )
        with (
            server_process(epmd_command(epmd_port), epmd_port, "", directory=directory),
            server_process(
                [str(HOME / "rabbitmq-server")],
                port,
                f"amqp://guest:guest@127.0.0.1:{port}/",
                directory=directory,
                more=environment,
            ) as server,
        ):
            yield server

    async def connect(self, url: str) -> Broker:
        return await RabbitBroker.connected(url)


def epmd_command(port: int) -> list[str]:
    """Return the command of the daemon from which nodes learn the ports of other nodes. Without it,
    each node would start a separate daemon."""
    return [shutil.which("epmd") or "", "-port", str(port), "-address", "127.0.0.1"]


def node_environment(
    kept: Path,
    directory: Path,
    name: str,
    port: int,
    epmd_port: int,
    configuration: str,
    durability: str,
    plugins: Sequence[str] = (),
) -> dict[str, str]:
    """Write the files of a node into ``kept``, and return the variables with their paths. ``port``
    is for other nodes; the node stores its data in ``directory``."""
    kept.mkdir(exist_ok=True)
    (kept / "rabbitmq.conf").write_text(configuration)
    sync = "datasync" if durability == "D2" else "none"
    (kept / "advanced.config").write_text(ADVANCED.format(sync=sync))
    (kept / "plugins").write_text(f"[{','.join(plugins)}].\n")
    return {
        "HOME": str(kept),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_DIST_PORT": str(port),
        "RABBITMQ_CONFIG_FILE": str(kept / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(kept / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(kept / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory),
        "RABBITMQ_LOG_BASE": str(kept),
        "RABBITMQ_LOGS": str(kept / "rabbit.log"),
        "RABBITMQ_PID_FILE": str(kept / "pid"),
        "RABBITMQ_CONF_ENV_FILE": str(kept / "none"),
    }


class RabbitBroker:
    def __init__(self, connection: Any, channel: Any, url: str, *, replicas: int = 1) -> None:
        """``replicas`` is the number of nodes that store a queue."""
        self._replicas = replicas
        self._connection = connection
        self._channel = channel
        self._url = url
        self._stream = STREAM
        self._exchange = channel.default_exchange
        self._room = asyncio.Semaphore(PENDING_MAX)
        self._sent: set[asyncio.Future[Any]] = set()
        self._messages: list[Any] = []
        self._has_messages = asyncio.Event()

    @classmethod
    async def connected(cls, url: str, *, replicas: int = 1) -> RabbitBroker:
        import aio_pika

        connection = await aio_pika.connect(url)
        channel = await connection.channel(publisher_confirms=True)
        return cls(connection, channel, url, replicas=replicas)

    async def prepare(self, durability: str, *, consumes: bool) -> None:
        await self.prepare_streams(durability, [STREAM])
        await self.attach(STREAM, consumes=consumes)

    async def prepare_streams(self, durability: str, names: Sequence[str]) -> None:
        for name in names:
            await self._queue(name)

    async def _queue(self, name: str) -> Any:
        kept_by = {"x-queue-type": "quorum", "x-quorum-initial-group-size": self._replicas}
        return await self._channel.declare_queue(name, durable=True, arguments=kept_by)

    async def prepare_durables(
        self, durability: str, names: Sequence[str], kind: str, clients: int, mode: str
    ) -> None:
        """Make a queue for each durable, bound to an exchange that sends to all of them."""
        if kind != "shared":
            raise Missing("a single active consumer gets rolled-back events out of order")
        import aio_pika

        self._exchange = await self._channel.declare_exchange(
            EXCHANGE, aio_pika.ExchangeType.FANOUT, durable=True
        )
        for name in names:
            await (await self._queue(name)).bind(self._exchange)

    async def client(self, durable: str) -> Client:
        more = await self.connected(self._url, replicas=self._replicas)
        client = RabbitClient(more, durable)
        await more.attach(durable)
        return client

    async def prepare_broadcast(self, durability: str) -> None:
        """Make the exchange. Each subscriber binds a queue, which ends with its connection."""
        if durability != "D0":
            raise Missing("only queues store events on disk; the cases with durables measure them")
        import aio_pika

        self._exchange = await self._channel.declare_exchange(
            EXCHANGE, aio_pika.ExchangeType.FANOUT
        )

    async def subscriber(self) -> Subscriber:
        more = await self.connected(self._url, replicas=self._replicas)
        queue = await more._channel.declare_queue(exclusive=True)
        await queue.bind(EXCHANGE)
        await queue.consume(more._arrived, no_ack=True)
        return RabbitSubscriber(more)

    async def attach(self, stream: str, *, consumes: bool = True) -> None:
        self._stream = stream
        if consumes:
            await self._channel.set_qos(prefetch_count=WINDOW)
            queue = await self._channel.get_queue(stream, ensure=False)
            await queue.consume(self._arrived)

    async def _arrived(self, message: Any) -> None:
        self._messages.append(message)
        self._has_messages.set()

    async def publish_batch(self, events: Events, api: str) -> None:
        async with asyncio.TaskGroup() as publishing:
            for row in range(len(events)):
                publishing.create_task(self._publish(events, row))

    async def _publish(self, events: Events, row: int) -> None:
        from aio_pika import DeliveryMode, Message

        message = Message(
            encode(Encoded(events.datas[row], events.properties[row])),
            delivery_mode=DeliveryMode.PERSISTENT,
        )
        await self._exchange.publish(message, self._stream)

    async def fill(self, stream: str, batches: Sequence[Events], rounds: int) -> None:
        self._stream = stream
        for _ in range(rounds):
            for batch in batches:
                await self.publish_batch(batch, "rows")

    async def send(self, events: Events, row: int) -> None:
        await self._room.acquire()
        sending = start_task(self._publish(events, row))
        self._sent.add(sending)
        sending.add_done_callback(self._confirmed)

    def _confirmed(self, sending: asyncio.Future[Any]) -> None:
        self._sent.discard(sending)
        self._room.release()

    async def flush(self) -> None:
        for sending in list(self._sent):
            await sending

    async def publish_one(self, events: Events, row: int) -> None:
        await self._publish(events, row)

    async def receive_messages(self) -> list[Any]:
        """Return the messages that have arrived; wait until there is at least one."""
        while not self._messages:
            self._has_messages.clear()
            await self._has_messages.wait()
        messages, self._messages = self._messages, []
        return messages

    async def consume(self, count: int, api: str) -> tuple[int, float]:
        """Consume events; the acknowledgement of the last one includes all earlier ones."""
        messages = await self.receive_messages()
        price = 0.0
        for message in messages:
            event = decode(message.body)
            assert event.data, "every event has data"
            price += event.properties["price"]
        await messages[-1].ack(multiple=True)
        return len(messages), price

    async def settled(self) -> None:
        """Wait for a round trip, which follows the acknowledgements: the server does not confirm
        these."""
        await self._channel.get_queue(self._stream, ensure=True)

    async def close(self) -> None:
        await self._connection.close()


class RabbitSubscriber:
    def __init__(self, broker: RabbitBroker) -> None:
        self._broker = broker

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            price = 0.0
            messages = await self._broker.receive_messages()
            for message in messages:
                event = decode(message.body)
                assert event.data, "every event has data"
                price += event.properties["price"]
            ledger.add(len(messages), price)

    async def close(self) -> None:
        await self._broker.close()


class RabbitClient:
    def __init__(self, broker: RabbitBroker, queue: str) -> None:
        self._broker = broker

    async def work(self, ledger: Ledger, api: str) -> None:
        while True:
            price, rolled_back = 0.0, 0
            messages = await self._broker.receive_messages()
            for message in messages:
                event = decode(message.body)
                assert event.data, "every event has data"
                worth = event.properties["price"]
                if worth == ledger.flaw and not message.headers.get("x-delivery-count"):
                    rolled_back += 1
                    await message.nack(requeue=True)
                else:
                    price += worth
                    await message.ack()
            ledger.add(len(messages) - rolled_back, price, rolled_back)

    async def hold(self) -> None:
        """Do nothing: RabbitMQ sends the window by itself."""

    async def settled(self) -> None:
        await self._broker.settled()

    async def close(self) -> None:
        await self._broker.close()


PEER = Rabbit()
