"""``penstock cluster node`` on three machines, which are processes here: a cluster from nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from packages.cluster.tests.first_password import first_password
from packages.cluster.tests.processes import LEASE_S, PUBLISHED, addresses, refusal
from penstock import aio
from penstock_testing.ports import free_row
from penstock_testing.process import ServerProcess
from tests.docs.pages import ROOT
from tests.loops import on_a_loop
from tests.patience import until

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES: Final = ("n1", "n2", "n3")
ENGINE_PORTS: Final = 3
"""Consecutive ports that the engine of a node needs."""
LOOPBACK: Final = "127.0.0.1"
AWAY: Final = "LOCALHOST"
"""Loopback by a name that nobody takes for it, so that there is TLS."""


class Machines:
    """Three directories, the secret that they share, and a command on each."""

    def __init__(self, folder: Path, host: str = LOOPBACK) -> None:
        self.folder = folder
        self.host = host
        self.peers = {name: free_row(ENGINE_PORTS) for name in NAMES}
        self.secret(folder, "0123456789abcdef" * 4)

    @staticmethod
    def secret(folder: Path, text: str) -> None:
        (folder / "cluster.secret").write_text(text)

    def node(self, name: str, *arguments: str, peers: str = "", secret: str = "") -> ServerProcess:
        wanted = ",".join(f"{peer}={self.host}:{port}" for peer, port in self.peers.items())
        file = self.folder / "cluster.secret"
        if secret:
            file = self.folder / f"{name}.secret"
            file.write_text(secret)
        return ServerProcess(
            self.folder / name,
            "--name",
            name,
            "--peers",
            peers or wanted,
            "--secret-file",
            str(file),
            *arguments,
            command=("cluster", "node"),
            environment={"PENSTOCK_CLUSTER_LEASE_S": LEASE_S},
        )

    def all(self, stack: ExitStack, *arguments: str) -> dict[str, ServerProcess]:
        """All of them, begun at once."""
        nodes = {name: self.node(name, *arguments) for name in NAMES}
        for node in nodes.values():
            stack.callback(node.__exit__, None, None, None)
            node.begin()
        for name, node in nodes.items():
            until(lambda node=node: bool(node.url) or not node.is_running)  # type: ignore[misc]
            assert node.url, f"{name}: {node.log}"
        return nodes

    def output_of(self, what: str, name: str = "n1") -> Any:
        """Return the JSON output of a command that finds the cluster through the file that a node
        has written."""
        ran = self.tell(what, name)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert not ran.stderr
        return json.loads(ran.stdout)

    def check(self) -> None:
        """Nothing is wrong, once copies have caught up with what was written meanwhile."""
        try:
            until(lambda: self.tell("doctor", "n1").returncode == 0)
        except AssertionError as error:
            raise AssertionError(self.tell("doctor", "n1").stdout) from error

    def tell(self, what: str, name: str) -> subprocess.CompletedProcess[str]:
        settings = self.folder / name / "penstock.toml"
        return subprocess.run(
            [sys.executable, "-m", "penstock", "cluster", what, "--settings", settings, "--json"],
            capture_output=True,
            text=True,
        )


def engine_of(node: ServerProcess) -> int:
    return int(node.logged("engine.started")[-1]["pid"])


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def serving(nodes: dict[str, ServerProcess]) -> str:
    return next(name for name, node in nodes.items() if node.epoch_served)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.mark.spec("N3", "N4")
@on_a_loop
async def test_three_commands_make_a_cluster_that_survives_the_owner_and_its_server(
    tmp_path: Path, stack: ExitStack
) -> None:
    machines = Machines(tmp_path)
    nodes = await asyncio.to_thread(machines.all, stack)
    await asyncio.to_thread(machines.check)
    session = await aio.connect(addresses(*nodes.values()))
    channel = await session.channels.create("orders", type="persistent")
    ids = [await channel.publish(b"%d" % number) for number in range(PUBLISHED // 2)]

    first = serving(nodes)
    engine = engine_of(nodes[first])
    await asyncio.to_thread(nodes[first].kill)
    ids += [await channel.publish(b"%d" % number) for number in range(len(ids), PUBLISHED)]

    assert ids == list(range(PUBLISHED))
    stored = [event.data async for event in channel.browse()]
    assert stored == [b"%d" % number for number in range(PUBLISHED)]
    await session.close()
    until(lambda: not is_there(engine))
    follower = next(name for name in NAMES if name != first)
    seen = {member["node"]: member for member in machines.output_of("status", follower)["members"]}
    assert seen[first]["condition"] == "gone"

    again = machines.node(first)
    stack.enter_context(again)
    engine = engine_of(again)
    os.kill(engine, signal.SIGKILL)
    until(lambda: len(again.logged("engine.started")) == 2)
    assert again.logged("engine.ended")[0]["status"] == -signal.SIGKILL
    until(lambda: machines.output_of("status", follower)["engine"]["present"] == 3)


@pytest.mark.spec("N3")
@on_a_loop
async def test_between_machines_there_is_tls_and_all_of_it_is_there_after_a_restart(
    tmp_path: Path, stack: ExitStack
) -> None:
    machines = Machines(tmp_path, AWAY)
    with ExitStack() as first:
        nodes = await asyncio.to_thread(machines.all, first)
        output = "".join(node.output for node in nodes.values())
        password = first_password(output)
        session = await aio.connect(named(nodes, password))
        await (await session.channels.create("orders", type="persistent")).publish(b"kept")
        await session.close()
        for node in nodes.values():
            await asyncio.to_thread(node.terminate)

    nodes = await asyncio.to_thread(machines.all, stack)
    await asyncio.to_thread(machines.check)
    session = await aio.connect(named(nodes, password))
    assert [event.data async for event in (await session.channels.get("orders")).browse()] == [
        b"kept"
    ]
    await session.close()
    configured = (tmp_path / "n1" / "engine" / "nats-server.conf").read_text()
    assert configured.count("verify: true") == 2

    stranger = machines.node("n2", secret="another secret".ljust(32, "."))
    nodes["n2"].terminate()
    assert "n1 at LOCALHOST" in (reason := refusal(stranger)), reason
    assert "it has another secret: --secret-file must be the same on all machines" in reason


@pytest.mark.spec("N4")
def test_each_node_answers_with_a_certificate_that_names_it_although_the_owner_shows_its_own(
    tmp_path: Path, stack: ExitStack
) -> None:
    """With the settings of docs/guide/cluster-machines.md: nodes that stand by relay clients to the
    owner, whose certificate has to name all of them."""
    machines, settings = Machines(tmp_path), tmp_path / "realm.toml"
    names = 'tls_self_signed = "{}"'
    page = (ROOT / "docs" / "guide" / "cluster-machines.md").read_text(encoding="utf-8")
    assert names.format("a,b,c") in page
    settings.write_text(f"[listen]\n{names.format(','.join(NAMES))}\n")
    settings.chmod(0o600)
    nodes = machines.all(stack, "--settings", str(settings))
    until(lambda: any(node.epoch_served for node in nodes.values()))
    trusted = ssl.create_default_context()
    for name in NAMES:
        trusted.load_verify_locations(tmp_path / name / "node" / "tls" / "realm.pem")

    shown = {certificate_at(node.port, name, trusted) for name, node in nodes.items()}

    owner = tmp_path / serving(nodes) / "node" / "tls" / "realm.pem"
    assert shown == {ssl.PEM_cert_to_DER_cert(owner.read_text())}


def certificate_at(port: int, name: str, trusted: ssl.SSLContext) -> bytes:
    """Return the certificate behind a port. Raises if it does not have the name."""
    with (
        socket.create_connection((LOOPBACK, port), timeout=20) as line,
        trusted.wrap_socket(line, server_hostname=name) as safe,
    ):
        certificate = safe.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate


def named(nodes: dict[str, ServerProcess], password: str) -> str:
    return addresses(*nodes.values()).replace("somebody", f"admin:{password}")


def test_a_machine_that_is_alone_waits_and_others_that_differ_are_refused(
    tmp_path: Path, stack: ExitStack
) -> None:
    machines = Machines(tmp_path)
    first = machines.node("n1")
    stack.callback(first.__exit__, None, None, None)
    first.begin()
    until(lambda: bool(first.logged("engine.waiting")))
    (waiting,) = first.logged("engine.waiting")[:1]
    assert [peer.partition(" at ")[0] for peer in waiting["peers"]] == ["n2", "n3"]
    assert "Connection refused" in waiting["peers"][0]

    reason = refusal(machines.node("n2", secret="another secret".ljust(32, ".")))
    assert "it has another secret" in reason
    ports = machines.peers
    swapped = f"n1={LOOPBACK}:{ports['n2']},n2={LOOPBACK}:{ports['n3']},n3={LOOPBACK}:{ports['n1']}"
    reason = refusal(machines.node("n2", peers=swapped))
    assert "the engine's server 'n1' answers there: --peers must be the same" in reason
    reason = refusal(machines.node("n1", peers=swapped.replace("n3=", "x=").replace("n1=", "n3=")))
    assert "--name is 'n1', and --peers has n3, n2, x" in reason
    wrong_peers = f"n1={LOOPBACK}:{ports['n2']},n2={LOOPBACK}:{ports['n1'] - 1},n3={LOOPBACK}:1"
    reason = refusal(machines.node("n2", peers=wrong_peers))
    assert f"port {ports['n1']} of 127.0.0.1 is in use" in reason
    first.signal(signal.SIGTERM)
    assert first.wait() != 0
    until(lambda: not is_there(engine_of(first)))
