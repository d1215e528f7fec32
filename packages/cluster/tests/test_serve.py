"""Nodes in processes of their own, on three NATS servers: started, killed, and refused."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import nats
import pytest

from packages.cluster.tests import processes
from packages.cluster.tests.first_password import first_password
from packages.cluster.tests.processes import (
    LEASE_S,
    addresses,
    check_a_takeover,
    check_there_and_back,
    refusal,
)
from penstock import aio
from penstock_core.vocabulary.errors import AccessDenied, NameDoesNotExist
from penstock_testing.nats_servers import NatsServers
from penstock_testing.process import ServerProcess
from tests.contract.nats_monitoring import JSZ, VARZ, monitoring
from tests.loops import on_a_loop
from tests.patience import PATIENCE_S, until

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServers]:
    with NatsServers(tmp_path_factory.mktemp("engine")) as running:
        yield running


def node(
    servers: NatsServers, directory: Path, *arguments: str, name: str = "penstock"
) -> ServerProcess:
    return processes.node(
        servers.engine, directory, *arguments, name=name, monitors=servers.monitors
    )


@pytest.mark.spec("N3", "N4")
@on_a_loop
async def test_the_owner_is_killed_and_nothing_is_lost_or_doubled(
    servers: NatsServers, tmp_path: Path
) -> None:
    await check_a_takeover(partial(node, servers), tmp_path)


@pytest.mark.spec("N3", "E4")
def test_a_realm_moves_into_a_cluster_and_out_of_it(servers: NatsServers, tmp_path: Path) -> None:
    how: dict[str, Any] = {"name": "moved", "monitors": servers.monitors}
    tell = partial(processes.command, servers.engine, **how)
    check_there_and_back(partial(node, servers, name="moved"), tell, tmp_path)


def command(servers: NatsServers, what: str, name: str) -> dict[str, Any]:
    """Return the output of a command about a healthy cluster."""
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "cluster", what, "--cluster", servers.engine, "--json"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PENSTOCK_CLUSTER_NAME": name,
            "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
            "PENSTOCK_CLUSTER_MONITORS": ",".join(servers.monitors),
        },
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    outcome: dict[str, Any] = json.loads(ran.stdout)
    return outcome


def test_commands_show_owner_nodes_and_engine(servers: NatsServers, tmp_path: Path) -> None:
    first = node(servers, tmp_path / "n1", name="shown")
    with first, node(servers, tmp_path / "n2", name="shown") as second:
        checks = command(servers, "doctor", "shown")["checks"]
        assert {check["status"] for check in checks} == {"ok"}, checks
        state = command(servers, "status", "shown")
        assert (state["owner"], state["epoch"], state["engine"]["present"]) == ("n1", 1, 3)
        nodes = {member["node"]: member["serves"]["native"] for member in state["members"]}
        assert nodes == {"n1": first.url, "n2": second.url}

        first.kill()
        killed = command(servers, "status", "shown")["members"]
        assert {member["node"]: member["condition"] for member in killed}["n1"] == "gone"


@on_a_loop
async def test_a_user_that_was_added_on_one_node_is_known_to_the_next_owner(
    servers: NatsServers, tmp_path: Path
) -> None:
    options = ("--settings", str(tmp_path / "settings.toml"))
    (tmp_path / "settings.toml").write_text(
        "[access]\nmode = 'mandatory'\npassword_rounds = 4096\n[http]\nenabled = false\n"
    )
    first = node(servers, tmp_path / "n1", *options, name="users")
    with first, node(servers, tmp_path / "n2", *options, name="users") as second:
        password = "a long password"
        made = first_password(first.output)
        session = await aio.connect(addresses(first).replace("somebody", f"admin:{made}"))
        await session.access.create_user("ann", password)
        await session.access.grant("ann@*", "access")
        await session.close()

        await asyncio.to_thread(first.terminate)

        url = addresses(second).replace("somebody", f"ann:{password.replace(' ', '%20')}")
        session = await aio.connect(url)
        with pytest.raises((AccessDenied, NameDoesNotExist)):
            await session.channels.get("orders")
        await session.close()
        assert not second.output, "the first administrator was shown by the first owner"


@on_a_loop
async def test_a_node_refuses_a_stream_that_has_one_replica_or_was_made_anew(
    servers: NatsServers, tmp_path: Path
) -> None:
    with node(servers, tmp_path / "n1", name="anew"):
        pass
    connection = await nats.connect(servers.urls[0], connect_timeout=int(PATIENCE_S))
    streams = connection.jetstream(timeout=PATIENCE_S)

    config = (await streams.stream_info("anew-shard-0")).config
    config.num_replicas = 1
    await streams.update_stream(config)
    alone = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "num_replicas is 1, not 3" in alone
    assert "nats stream edit anew-shard-0 --replicas" in alone

    await streams.delete_stream("anew-shard-0")
    refusal_text = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "stream anew-shard-0 is missing" in refusal_text

    config.num_replicas = 3
    config.metadata = {"penstock-incarnation": "another"}
    await streams.add_stream(config)
    anew = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "stream anew-shard-0 was re-created" in anew
    assert "To fix: restore the stream from a backup" in anew

    for stream in ("KV_anew", "anew-shard-0", "anew-blobs-0"):
        await streams.delete_stream(stream)
    lost = refusal(node(servers, tmp_path / "n1", name="anew"))
    assert "the engine has no realm under the name 'anew'" in lost
    await connection.close()


def test_a_node_refuses_servers_that_put_on_disk_later(tmp_path: Path) -> None:
    with NatsServers(tmp_path, sync=dict.fromkeys(range(3), "2m")) as lazy:
        reason = refusal(node(lazy, tmp_path / "n1"))

    assert "To fix: set sync_interval: always" in reason
    assert not (tmp_path / "n1" / "journal").exists()


def test_a_node_refuses_servers_of_an_old_version(servers: NatsServers, tmp_path: Path) -> None:
    with ExitStack() as answering:
        monitors = [
            answering.enter_context(
                monitoring({**VARZ, "server_name": f"n{number}", "version": "2.13.4"}, JSZ)
            )
            for number in range(3)
        ]
        old = processes.node(servers.engine, tmp_path / "n1", name="old", monitors=monitors)
        reason = refusal(old)

    assert "is NATS 2.13.4, and 2.14 or newer is needed" in reason
    assert "To fix: install nats-server 2.14 or newer there" in reason


def test_a_node_names_the_other_clusters_on_its_engine(
    servers: NatsServers, tmp_path: Path
) -> None:
    """A name that is mistyped begins another realm, which is empty."""
    with node(servers, tmp_path / "n1", name="orders") as first:
        until(lambda: first.logged("shard.claimed"))

        with node(servers, tmp_path / "n2", name="ordes") as second:
            until(lambda: second.logged("engine.other_clusters"))
            (line,) = second.logged("engine.other_clusters")

    assert line["cluster"] == "ordes"
    assert "orders" in line["others"]
    assert "ordes" not in line["others"]


def test_the_directory_of_a_node_has_its_name_and_no_events(
    servers: NatsServers, tmp_path: Path
) -> None:
    with node(servers, tmp_path / "n1", name="names"):
        kept = json.loads((tmp_path / "n1" / "node.json").read_text())

    assert (kept["node"], kept["cluster"]) == ("n1", "names")
    assert kept["realm"]
    assert not {"journal", "segments", "registry"} & {
        path.name for path in (tmp_path / "n1").iterdir()
    }
