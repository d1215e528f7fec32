"""Nodes in processes of their own: started, refused, and taken over from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from penstock import aio
from penstock.testing.process import ServerDidNotStart, ServerProcess
from tests.patience import until

PUBLISHED: Final = 100
LEASE_S: Final = "10"
"""Longer than a busy machine keeps a process from its processors and its disk: whoever loses the
lease meanwhile is not the owner any more."""

Node = Callable[[Path], ServerProcess]
"""Gives a node with this directory, which is not started yet."""


def node(
    engine: str,
    directory: Path,
    *arguments: str,
    name: str = "penstock",
    monitors: Sequence[str] = (),
) -> ServerProcess:
    """A node that is not started yet."""
    return ServerProcess(
        directory,
        *("--cluster", engine, "--node", directory.name, *arguments),
        environment={
            "PENSTOCK_CLUSTER_NAME": name,
            "PENSTOCK_CLUSTER_LEASE_S": LEASE_S,
            "PENSTOCK_CLUSTER_MONITORS": ",".join(monitors),
        },
    )


def refusal(process: ServerProcess) -> str:
    """Why a node did not start."""
    with pytest.raises(ServerDidNotStart, match="exit status 1"):
        process.start()
    (failed,) = process.logged("realm.failed")
    return str(failed["reason"])


def addresses(*nodes: ServerProcess) -> str:
    return "penstock://somebody@" + ",".join(each.url.partition("://")[2] for each in nodes)


async def check_a_takeover(node: Node, folder: Path) -> None:
    """The owner is killed while a client publishes; then the node that took over is stopped."""
    with node(folder / "n1") as owner, node(folder / "n2") as other:
        (told,) = other.logged("realm.standing_by")
        assert (told["owner"], told["owner_url"]) == ("n1", owner.url)
        session = await aio.connect(addresses(other, owner))
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
        until(lambda: other.logged("shard.claimed"))
        (claimed,) = other.logged("shard.claimed")
        assert claimed["epoch"] == 2

        with node(folder / "n1") as again:
            (told,) = again.logged("realm.standing_by")
            assert told["owner"] == "n2"
            await asyncio.to_thread(other.terminate)
            assert other.logged("shard.given_up")
            session = await aio.connect(addresses(again))
            assert await session.channels.list() == ["orders"]
            await session.close()
