"""``penstock cluster drain``, ``move``, ``take-over`` and ``remove``, on engine servers in memory
whose nodes do what they are told."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from packages.cluster.tests.cli.engines import ENGINE, Renewing, fill, register
from penstock_cluster.nodes.node import orders_of
from penstock_cluster.owning.operator_orders import ORDERS_KEY, MoveOrder, Orders
from penstock_cluster.owning.register_records import ClaimRecord
from penstock_core.vocabulary.node_figures import SHARD
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.cli.program import app
from penstock_testing.engine import EngineServers
from tests.terminal import TerminalRunner

Run = Callable[..., Result]


class Obedient(Renewing):
    """The owner hands over as soon as it is ordered to."""

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        if prefix == "shard/0":
            await self._obey()
        return await super().records(prefix)

    async def _obey(self) -> None:
        records = self._servers.records
        held = await records.get("shard/0")
        assert held is not None
        claim = msgspec.json.decode(held.value, type=ClaimRecord)
        orders = orders_of(await records.get(ORDERS_KEY))
        move = orders.move_of(SHARD, claim.epoch)
        if move is None and orders.is_drained((claim.owner, claim.nonce)):
            move = MoveOrder("n2", "n2!", claim.epoch)
        if move is not None:
            after = ClaimRecord(move.node, move.nonce, claim.epoch + 1, format=1, confirmed=1)
            await records.cas("shard/0", held.version, msgspec.json.encode(after))


@pytest.fixture
def servers() -> EngineServers:
    made = EngineServers()
    asyncio.run(fill(made))
    return made


@pytest.fixture
def run(servers: EngineServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    register(tmp_path, monkeypatch, servers, Obedient)

    def ran(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["cluster", *arguments, "--cluster", ENGINE])

    return ran


@pytest.fixture
def refusing_address() -> Iterator[str]:
    """An address without a listener, so that connections are refused."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*unused.getsockname())


def orders(servers: EngineServers) -> Orders:
    return orders_of(asyncio.run(servers.records.get(ORDERS_KEY)))


def test_the_owner_is_drained_and_another_one_owns(servers: EngineServers, run: Run) -> None:
    ran = run("drain", "n1")

    assert ran.exit_code == 0, ran.output
    assert ran.stdout == "n1 is drained: n2 owns the realm in epoch 5, after 0.0 s\n"
    assert orders(servers).is_drained(("n1", "n1!"))
    rows = [" ".join(row.split()) for row in run("status").stdout.splitlines()]
    assert any(row.startswith("n1 drained 1.0") for row in rows)


def test_a_node_that_stands_by_is_drained_at_once_and_may_own_again(
    servers: EngineServers, run: Run
) -> None:
    assert run("drain", "n2").stdout == "n2 is drained; n1 owns the realm in epoch 4\n"

    ran = run("drain", "n2", "--end")

    assert ran.stdout == "n2 may own the realm again\n"
    assert orders(servers).drained == {}


def test_the_realm_moves_to_a_node(run: Run) -> None:
    ran = run("move", "n2")

    assert ran.exit_code == 0, ran.output
    assert ran.stdout == "n2 owns the realm in epoch 5, after 0.0 s\n"
    assert run("move", "n2").stdout == "n2 owns the realm already, in epoch 5\n"


def test_what_was_done_as_json(run: Run) -> None:
    drained = json.loads(run("drain", "n1", "--json").stdout)
    assert drained.pop("took_s") < 5
    assert drained == {"node": "n1", "drained": True, "owner": "n2", "epoch": 5}
    assert json.loads(run("drain", "n1", "--end", "--json").stdout) == {
        "node": "n1",
        "drained": False,
    }
    assert json.loads(run("move", "n1", "--json").stdout)["owner"] == "n1"
    assert json.loads(run("take-over", "n2", "--yes", "--json").stdout)["epoch"] == 7


def test_a_takeover_by_force_asks_first(servers: EngineServers, run: Run) -> None:
    unasked = run("take-over", "n2")
    assert unasked.exit_code == 2
    assert "Make n2 take over the realm by force?" in unasked.stderr
    assert "pass --yes" in " ".join(unasked.stderr.replace("│", " ").split())
    refused = TerminalRunner().invoke(
        app, ["cluster", "take-over", "n2", "--cluster", ENGINE], input="n\n"
    )
    assert refused.exit_code == 1
    assert orders(servers) == Orders()

    ran = run("take-over", "n2", "--yes")

    assert ran.stdout == "n2 owns the realm in epoch 5, after 0.0 s\n"
    assert orders(servers).moves[SHARD].by_force


async def claim_for(servers: EngineServers, node: str) -> None:
    held = await servers.records.get("shard/0")
    assert held is not None
    claim = ClaimRecord(node, f"{node}!", 4, format=1, confirmed=1)
    await servers.records.cas("shard/0", held.version, msgspec.json.encode(claim))


def test_an_owner_that_is_not_there_is_asked_for_nothing(servers: EngineServers, run: Run) -> None:
    asyncio.run(claim_for(servers, "n7"))

    ran = run("move", "n2")

    assert ran.exit_code == 1
    assert "the owner of the realm (n7) does not renew its lease and cannot hand" in ran.stderr
    assert run("take-over", "n2", "--yes").stdout.startswith("n2 owns the realm in epoch 5")


def test_a_node_that_is_there_is_not_removed(run: Run) -> None:
    ran = run("remove", "n2")

    assert ran.exit_code == 1
    assert "error: n2 is running (stands by): stop it first" in ran.stderr


def test_a_node_that_is_gone_is_removed(
    servers: EngineServers, run: Run, refusing_address: str
) -> None:
    record = msgspec.json.encode(
        {"node": "n3", "nonce": "n3!", "counter": 4, "address": refusing_address, "renews": False}
    )
    asyncio.run(servers.records.cas("node/n3", 0, record))
    assert "n3 gone" in " ".join(run("status").stdout.split())

    ran = run("remove", "n3")

    assert ran.stdout == "n3 is no longer a node of the cluster\n"
    assert "n3" not in run("status").stdout
    assert json.loads(run("status", "--json").stdout)["owner"] == "n1"


def test_without_a_majority_nothing_is_waited_for(servers: EngineServers, run: Run) -> None:
    servers.running = 1

    ran = run("move", "n2")

    assert ran.exit_code == 1
    assert "error: the engine in memory has no majority of its servers" in ran.stderr
