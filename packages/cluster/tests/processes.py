"""Starts nodes as processes, and checks refusals, takeovers and moves of realms."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock import aio
from penstock.client.copies.backup import restore
from penstock_testing.process import ServerDidNotStart, ServerProcess
from tests.patience import until

PUBLISHED: Final = 100
LEASE_S: Final = "10"
"""Longer than a busy machine delays a process or its disk, because a node that loses its lease in
the meantime is not the owner any more."""

Node = Callable[[Path], ServerProcess]
"""Returns a node with this directory that is not started yet."""


def node(
    engine: str,
    directory: Path,
    *arguments: str,
    name: str = "penstock",
    monitors: Sequence[str] = (),
    program: Sequence[str] = ("-m", "penstock"),
    environment: Mapping[str, str] | None = None,
) -> ServerProcess:
    """Return a node that is not started yet."""
    return ServerProcess(
        directory,
        "--cluster",
        engine,
        "--node",
        directory.name,
        *arguments,
        program=program,
        environment={
            "PENSTOCK_CLUSTER_NAME": name,
            "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
            "PENSTOCK_CLUSTER_MONITORS": ",".join(monitors),
            **(environment or {}),
        },
    )


def refusal(process: ServerProcess) -> str:
    """Return the reason why a node did not start."""
    with pytest.raises(ServerDidNotStart, match="exit status 1"):
        process.start()
    (failed,) = process.logged("realm.failed")
    return str(failed["reason"])


def addresses(*nodes: ServerProcess) -> str:
    return "penstock://somebody@" + ",".join(
        cluster_node.url.partition("://")[2] for cluster_node in nodes
    )


def command(
    engine: str, *words: str, name: str, monitors: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run ``penstock cluster`` with these arguments; return the process."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", "cluster", *words, "--cluster", engine],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "PENSTOCK_CLUSTER_NAME": name,
            "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
            "PENSTOCK_CLUSTER_MONITORS": ",".join(monitors),
        },
    )


def done(ran: subprocess.CompletedProcess[str]) -> Any:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def compared(one: Path, other: Path) -> str:
    """Run the script that compares realms; return its output."""
    script = Path(__file__).parents[3] / "scripts" / "compare_realms.py"
    ran = subprocess.run([sys.executable, script, one, other], capture_output=True, text=True)
    return ran.stdout + ran.stderr


def check_there_and_back(node: Node, tell: Callable[..., Any], folder: Path) -> None:
    """Move a realm into a cluster, serve it there with a node, and move it out again. ``tell`` runs
    ``penstock cluster`` with its arguments."""
    with penstock.Realm(folder / "one", access__mode="optional") as realm, realm.connect() as here:
        here.access.create_user("ann", "a long password")
        orders = here.channels.create("orders", storage={"events_per_spindle": 40})
        orders.durables.create("billing", type="shared")
        orders.publish_many([penstock.Event(b"%d" % n) for n in range(PUBLISHED)])
        until(lambda: orders.info().storage.sealed_files == 2)
    one, two, three = (str(folder / name) for name in ("one", "two", "three"))

    assert "nothing was changed" in tell("import", one, "--dry-run").stderr
    plan = done(tell("import", one, "--format", "json"))["plan"]
    assert (plan["channels"], plan["events"], plan["files"]) == (1, PUBLISHED, 2)
    done(tell("export", two, "--format", "json"))
    assert compared(folder / "one", folder / "two") == ""

    with node(folder / "n1") as serving:
        session = penstock.connect(addresses(serving))
        assert session.channels.get("orders").publish(b"in the cluster") == PUBLISHED
        assert done(tell("backup", str(folder / "backup"), "--format", "json"))["files"] > 3
        session.close()
    restore(folder / "backup", three)
    assert "orders > next_id: 100 and 101" in compared(folder / "one", folder / "three")
    with ServerProcess(folder / "three") as alone, penstock.connect(alone.url) as other_session:
        durable = other_session.channels.get("orders").durables.get("billing").info()
        assert durable.outstanding == PUBLISHED + 1
        assert other_session.channels.get("orders").publish(b"and on") == PUBLISHED + 1


async def check_a_takeover(node: Node, folder: Path) -> None:
    """Kill the owner while a client publishes; then stop the node that took over."""
    with node(folder / "n1") as owner, node(folder / "n2") as standby:
        (standing_by,) = standby.logged("realm.standing_by")
        assert (standing_by["owner"], standing_by["owner_url"]) == ("n1", owner.url)
        session = await aio.connect(addresses(standby, owner))
        channel = await session.channels.create("orders", type="persistent")
        ids = []
        for number in range(PUBLISHED):
            if number == PUBLISHED // 2:
                await asyncio.to_thread(owner.kill)
            ids.append(await channel.publish(b"%d" % number))

        assert ids == list(range(PUBLISHED))
        stored = [event.data async for event in channel.browse()]
        assert stored == [b"%d" % number for number in range(PUBLISHED)]
        await session.close()
        until(lambda: standby.logged("shard.claimed"))
        (claimed,) = standby.logged("shard.claimed")
        assert claimed["epoch"] == 2

        with node(folder / "n1") as again:
            (standing_by,) = again.logged("realm.standing_by")
            assert standing_by["owner"] == "n2"
            await asyncio.to_thread(standby.terminate)
            assert standby.logged("shard.given_up")
            session = await aio.connect(addresses(again))
            assert await session.channels.list() == ["orders"]
            await session.close()
