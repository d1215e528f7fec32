"""Nodes in processes: each takes clients of every protocol, and knows their addresses."""

from __future__ import annotations

import asyncio
import base64
import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from packages.cluster.tests import processes
from packages.cluster.tests.first_password import first_password
from packages.cluster.tests.processes import addresses, refusal
from penstock import aio
from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerProcess
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]

HERE: Final = "127.0.0.1"
ANN: Final = "127.0.0.7"
"""Where Ann has her rights, and nowhere else."""
WITH_PROTON: Final = find_spec("proton") is not None
PASSWORD: Final = "a-long-password"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("engine")) as running:
        yield running


class Node:
    """A process with ports for HTTP and AMQP."""

    def __init__(self, servers: NatsServers, folder: Path, n: int, *options: str) -> None:
        self.http, self.amqp = free_ports(2)
        ports = ("--http", "--http-port", f"{self.http}", "--amqp-port", f"{self.amqp}")
        self.process: ServerProcess = processes.node(
            servers.engine,
            folder / f"n{n}",
            "--settings",
            str(folder / "settings.toml"),
            *ports,
            *options,
            name="relays",
            monitors=servers.monitors,
        )

    def ask(self, path: str, user: str, host: str, body: Any = None) -> tuple[int, Any]:
        """Status and document, for a user who comes from a host."""
        status, text = self.text(path, user, host, body=body)
        return status, json.loads(text or "null")

    def text(self, path: str, user: str, host: str, body: Any = None) -> tuple[int, str]:
        """Status and text likewise."""
        connection = HTTPConnection(HERE, self.http, PATIENCE_S, source_address=(host, 0))
        credentials = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
        headers = {"authorization": f"Basic {credentials}", "content-type": "application/json"}
        sent = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, sent, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text


@pytest.fixture
def nodes(servers: NatsServers, tmp_path: Path) -> Iterator[list[Node]]:
    (tmp_path / "settings.toml").write_text(
        "[access]\nmode = 'mandatory'\npassword_rounds = 4096\nfailure_delay_s = 0.0\n"
        f"[cluster]\nsecret_file = '{tmp_path}/secret'\n"
    )
    (tmp_path / "secret").write_text("s" * 32 + "\n")
    with ExitStack() as running:
        cluster_nodes = [Node(servers, tmp_path, n) for n in (1, 2, 3)]
        for node in cluster_nodes:
            running.enter_context(node.process)
        asyncio.run(fill(cluster_nodes[0].process))
        yield cluster_nodes


async def fill(owner: ServerProcess) -> None:
    first = first_password(owner.output)
    session = await aio.connect(addresses(owner).replace("somebody", f"admin:{first}"))
    await session.channels.create("orders", type="persistent")
    await session.queues.create("jobs")
    await session.access.create_user("monitor", PASSWORD)
    await session.access.grant("monitor@*", "access", "monitor")
    for user, host in (("ann", ANN), ("bob", "*")):
        await session.access.create_user(user, PASSWORD)
        await session.access.grant(f"{user}@{host}", "access")
        await session.access.grant(f"{user}@{host}", "publish", "subscribe", channel="orders")
        await session.access.grant(f"{user}@{host}", "push", "pop", queue="jobs")
    await session.close()


def check_all(nodes: list[Node]) -> None:
    """Check that each user has the same rights through every node."""
    event = {"events": [{"data": "a"}]}
    for node in nodes:
        assert node.ask("/api/v1/channels/orders/events", "ann", ANN)[0] == 200
        status, document = node.ask("/api/v1/channels/orders/events", "ann", HERE)
        assert (status, document["error"]["code"]) == (403, "access-denied")
        assert f"ann@{HERE}" in document["error"]["message"]
        assert node.ask("/api/v1/channels/orders/events", "ann", ANN, event)[0] in (200, 201)
        assert node.ask("/api/v1/channels/orders/events", "bob", HERE)[0] == 200
        assert node.ask("/api/v1/users", "bob", HERE)[0] == 403


def check_amqp(node: Node, text: str) -> None:
    from proton import Message

    from packages.amqp.tests.clients import Client, texts

    for port in (node.amqp, node.process.port):
        url = f"amqp://{HERE}:{port}"
        more: dict[str, Any] = {"user": "bob", "password": PASSWORD, "allowed_mechs": "PLAIN"}
        with Client(url, **more) as client:
            client.sender("jobs").send(Message(body=text))
            assert texts(client.receiver("jobs"), 1) == [text]


def check_metrics(nodes: list[Node]) -> None:
    """The metrics of a node are those of its process, for those who may see them; the first one
    owns the realm."""

    def metrics(node: Node, user: str) -> tuple[int, dict[str, float]]:
        status, text = node.text("/metrics", user, HERE)
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        samples = dict(line.rsplit(" ", 1) for line in lines) if status == 200 else {}
        return status, {name: float(value) for name, value in samples.items()}

    assert [metrics(node, "bob")[0] for node in nodes] == [403, 403, 403]
    # the owner answers 503 until a node has told it of itself, with its next renewal
    until(lambda: all(metrics(node, "monitor")[0] == 200 for node in nodes))
    metrics_by_node = [metrics(node, "monitor")[1] for node in nodes]

    assert [node_values["penstock_node_serves"] for node_values in metrics_by_node] == [1, 0, 0]
    assert ["penstock_channels" in node_values for node_values in metrics_by_node] == [
        True,
        False,
        False,
    ]
    started = {node_values["process_start_time_seconds"] for node_values in metrics_by_node}
    assert len(started) == len(nodes), "each has told of its own process"
    for node, values in zip(nodes, metrics_by_node, strict=True):
        assert values["process_resident_memory_bytes"] == pytest.approx(memory_of(node), rel=0.5)
        assert values["penstock_node_epoch"] == 1


def memory_of(node: Node) -> int:
    pages = Path(f"/proc/{node.process.pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def test_every_node_takes_every_client_and_so_does_each_after_a_takeover(
    nodes: list[Node],
) -> None:
    check_all(nodes)
    for node in nodes if WITH_PROTON else ():
        check_amqp(node, "before")

    check_metrics(nodes)

    nodes[0].process.terminate()
    until(lambda: any(node.process.logged("realm.listening") for node in nodes[1:]))

    check_all(nodes[1:])
    for node in nodes[1:] if WITH_PROTON else ():
        check_amqp(node, "after")
    assert not any(node.process.logged("relay.refused") for node in nodes)


def test_a_secret_that_is_too_short_or_not_there_is_refused(
    servers: NatsServers, tmp_path: Path
) -> None:
    (tmp_path / "settings.toml").write_text(f"[cluster]\nsecret_file = '{tmp_path}/secret'\n")
    assert "cannot be read" in refusal(Node(servers, tmp_path, 1).process)

    (tmp_path / "secret").write_text("short\n")
    assert "which has 5 bytes; at least 32 are required" in refusal(
        Node(servers, tmp_path, 1).process
    )
