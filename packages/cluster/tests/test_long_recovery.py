"""A recovery may take longer than a lease: the node goes on renewing it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from packages.cluster.tests.machines import until
from packages.cluster.tests.nodes import URL, Machine, end
from penstock import aio
from penstock_core.vocabulary.ports import READ_BYTES_MAX, Block, DamagedBlock
from penstock_testing.engine import EngineJournal, EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

BLOCKS: Final = 200
BLOCK_S: Final = 0.1
"""Processor time that each block takes: all of them take three leases."""


class SlowBlocks(list[Block | DamagedBlock]):
    """Blocks that keep the processor busy, one by one."""

    applied: Callable[[], object]

    def __iter__(self) -> Iterator[Block | DamagedBlock]:
        for block in super().__iter__():
            yield block
            the_loop().elapsed_s += BLOCK_S
            self.applied()


class SlowJournal(EngineJournal):
    applied: Callable[[], object]

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        blocks = SlowBlocks(await super().read(first, limit, bytes_max))
        blocks.applied = self.applied
        return blocks


class SlowEngine(MemoryEngine):
    journals = SlowJournal

    def __init__(self, servers: EngineServers, applied: Callable[[], object]) -> None:
        """``applied`` is called after each block of a recovery."""
        super().__init__(servers)
        self._applied = applied

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        journal = await super().journal(shard, epoch, begins=begins)
        assert isinstance(journal, SlowJournal), "journals of this engine are"
        journal.applied = self._applied
        return journal


@pytest.mark.spec("N4")
@simulated
async def test_a_node_keeps_its_lease_while_it_recovers() -> None:
    servers = EngineServers()
    owner = Machine(servers, 1)
    await until(lambda: owner.owns)
    session = await aio.connect(URL)
    channel = await session.channels.create("orders", type="persistent")
    for number in range(BLOCKS):
        await channel.publish(b"%d" % number)
    held: list[bool] = []
    engine = SlowEngine(servers, lambda: held.append(successor.owns))
    successor = Machine(servers, 2, engine=engine)
    await pass_time(1)

    owner.kill()
    await until(lambda: successor.server.realm is not None)

    assert len(held) > BLOCKS, "it takes longer than leases last"
    assert all(held), f"the lease was over after block {held.index(False)}"
    assert len(successor.server.opened) == 1
    assert await channel.publish(b"more") == BLOCKS
    await session.close()
    await end(successor)
