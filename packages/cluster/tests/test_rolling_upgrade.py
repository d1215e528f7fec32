"""Nodes in processes, and servers of their engine, are replaced one after the other under load."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from packages.cluster.tests import processes
from packages.cluster.tests.newer import NEWER
from packages.cluster.tests.processes import addresses, refusal
from penstock import aio
from penstock_testing.nats_servers import NatsServers
from penstock_testing.ports import free_ports
from penstock_testing.process import ServerProcess
from tests.loops import on_a_loop

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAME: Final = "rolling"
OLDER: Final = ("-m", "penstock")
WITH_NEWER: Final = ("-m", "packages.cluster.tests.newer")


class Load:
    """Publishes one event after the other, and remembers what was acknowledged."""

    def __init__(self, channel: aio.Channel) -> None:
        self.channel = channel
        self.ids: list[int] = []
        self._is_over = False
        self._came = asyncio.Condition()

    async def run(self) -> None:
        while not self._is_over:
            self.ids.append(await self.channel.publish(b"%d" % len(self.ids)))
            async with self._came:
                self._came.notify_all()

    async def more(self, count: int = 20) -> None:
        """Wait for so many more acknowledgements."""
        wanted = len(self.ids) + count
        async with self._came:
            await self._came.wait_for(lambda: len(self.ids) >= wanted)

    def end(self) -> None:
        self._is_over = True


def command(servers: NatsServers, *words: str) -> Any:
    ran = processes.command(servers.engine, *words, name=NAME, monitors=servers.monitors)
    return json.loads(ran.stdout) if ran.returncode == 0 else ran.stderr


def all_current(servers: NatsServers) -> bool:
    """Whether every server of the engine is there and has everything, as an operator looks."""
    engine = command(servers, "status", "--json")["engine"]
    return bool(engine["present"] == engine["servers"] == 3 and engine["lag"] == 0)


@pytest.mark.spec("N3", "N4")
@on_a_loop
async def test_nodes_and_engine_servers_are_replaced_one_after_the_other_under_load(
    tmp_path: Path,
) -> None:
    (tmp_path / "engine").mkdir()
    with NatsServers(tmp_path / "engine") as servers:
        ports = dict(zip(("n1", "n2"), free_ports(2), strict=True))

        def node(name: str, program: tuple[str, ...]) -> ServerProcess:
            return processes.node(
                servers.engine,
                tmp_path / name,
                "--port",
                str(ports[name]),
                name=NAME,
                monitors=servers.monitors,
                program=program,
            )

        with ExitStack() as running:
            nodes = {name: node(name, OLDER) for name in ports}
            for node_process in nodes.values():
                await asyncio.to_thread(running.enter_context, node_process)
            session = await aio.connect(addresses(*nodes.values()))
            load = Load(await session.channels.create("orders", type="persistent"))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(load.run())
                for name in ports:
                    await load.more()
                    await asyncio.to_thread(nodes[name].terminate)
                    nodes[name] = node(name, WITH_NEWER)
                    await asyncio.to_thread(running.enter_context, nodes[name])
                await load.more()
                finish = partial(command, servers, "upgrade", "--finish", "--format", "json")
                assert (await asyncio.to_thread(finish))["format"] == NEWER
                for number in range(3):
                    await load.more()
                    await asyncio.to_thread(servers.kill, number)
                    servers.start(number)
                    while not await asyncio.to_thread(all_current, servers):
                        await load.more(1)
                await asyncio.to_thread(nodes["n1"].terminate)
                reason = await asyncio.to_thread(refusal, node("n1", OLDER))
                assert f"the cluster writes format {NEWER}" in reason
                await load.more()
                load.end()

            assert load.ids == list(range(len(load.ids)))
            stored = [event.data async for event in load.channel.browse()]
            assert stored == [b"%d" % number for number in load.ids]
            await session.close()
