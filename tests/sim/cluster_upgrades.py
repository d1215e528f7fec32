"""A rolling upgrade during all other failures: the nodes change between two formats one by one, the
upgrade is finished, and a node of the older version then tries to join."""

from __future__ import annotations

from contextvars import copy_context
from typing import Final

import msgspec

from penstock_cluster.nodes.upgrading import finish_upgrade, upgrade_state
from penstock_cluster.owning.register_records import ClaimRecord
from penstock_core.vocabulary.errors import IllegalState, NewerFormat
from penstock_core.vocabulary.formats import FORMAT
from penstock_testing.engine import MemoryInspector, at_once
from penstock_testing.loop import pass_time, simulate
from penstock_testing.network import MACHINE
from tests.sim.cluster import ALONE, ClusterWorld
from tests.sim.cluster_machines import LEASE_S, PORTS, ClusterMachine

NEWER: Final = FORMAT + 1
PAUSE_S_MAX: Final = 4.0
REFUSED_S_MAX: Final = 60.0
"""Until then a node of the older version may be frozen, or killed and restarted."""


class UpgradedWorld(ClusterWorld):
    """All nodes start with the older version; each is replaced with the newer one."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, scene=ALONE)
        self.newest = 0
        """The newest format that an owner has claimed the shard with."""
        self.refusals = 0
        """Number of times that a node of the older version was refused."""

    def serves(self, machine: ClusterMachine) -> None:
        """Check that an owner supports every format written before."""
        self.newest = max(self.newest, self._claimed_format())
        if machine.format < self.newest:
            self.promises.broken.append(
                f"{machine.name} knows format {machine.format}, and serves what was written in "
                f"format {self.newest}"
            )

    def _claimed_format(self) -> int:
        record = at_once(self.servers.records.get("shard/0"))
        return 0 if record is None else msgspec.json.decode(record.value, type=ClaimRecord).format

    async def trouble(self) -> None:
        context = copy_context()
        context.run(MACHINE.set, "")
        upgrading = self.loop.create_task(self._upgrade(), context=context)
        await super().trouble()
        await upgrading

    async def _upgrade(self) -> None:
        for name in self.random.sample(sorted(PORTS), len(PORTS)):
            await self._replace(self.machines[name], NEWER)
            # a rollback: until the upgrade is finished, a node may return to the older version
            if self.random.random() < 0.3:
                await self._replace(self.machines[name], FORMAT)
                await self._replace(self.machines[name], NEWER)
        await self._finish()
        while self._claimed_format() < NEWER:
            await pass_time(0.2)
        self.newest = NEWER
        machine = self.machines[self.random.choice(sorted(PORTS))]
        await self._replace(machine, FORMAT)
        until_s = self.loop.time() + REFUSED_S_MAX
        while not _is_refused(machine) and self.loop.time() < until_s:
            await pass_time(0.2)
        await self._replace(machine, NEWER)

    async def _replace(self, machine: ClusterMachine, format: int) -> None:
        """Kill a node and start it with another version."""
        await machine.thaw.wait()
        if machine.is_running:
            machine.kill()
        task, machine.task = machine.task, None
        if task is not None and task.done() and not task.cancelled():
            error = task.exception()
            self.refusals += isinstance(error, NewerFormat)
            if not isinstance(error, NewerFormat | None):
                self.promises.broken.append(f"{machine.name} ended: {error!r}")
        machine.format = format
        await pass_time(self.random.uniform(0.1, PAUSE_S_MAX))
        machine.start()
        self.note(f"{machine.name} knows format {format}")
        await pass_time(self.random.uniform(0.1, PAUSE_S_MAX))

    async def _finish(self) -> None:
        """Finish the upgrade as an operator does: repeat until all nodes have the newer version."""
        while True:
            state = await upgrade_state(
                MemoryInspector(self.servers), self.loop, LEASE_S, cluster="simulated"
            )
            try:
                written = await finish_upgrade(self.servers.records, state)
            except IllegalState as refusal:
                self.note(f"not finished: {refusal}")
                await pass_time(1.0)
                continue
            if written == NEWER:
                self.note("finished")
                return
            await pass_time(1.0)


def _is_refused(machine: ClusterMachine) -> bool:
    """Return whether the machine's version does not support the format that the cluster writes."""
    task = machine.task
    has_ended = task is not None and task.done() and not task.cancelled()
    return has_ended and task is not None and isinstance(task.exception(), NewerFormat)


def upgraded_life_of(seed: int) -> UpgradedWorld:
    """Return the world after its end. Raises the error of a failed life."""
    world = UpgradedWorld(seed)
    simulate(world.live(), world.random)
    return world
