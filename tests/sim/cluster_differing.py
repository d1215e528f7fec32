"""Worlds in which one machine of three sometimes starts without the files of the realm, with other
settings, or with another lease. Such a machine must not take over, nor keep others from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.loop import simulate
from tests.sim.cluster import ClusterWorld
from tests.sim.cluster_machines import LEASE_S, ClusterMachine

DIFFERING: Final = "differing"
SETTINGS: Final = {"access.mode": "mandatory", "cluster.lease_s": f"{LEASE_S}"}
DOWN_S: Final = 0.5
"""Seconds that a machine is down before it is restarted."""
_OTHER_LEASES_S: Final = (2.0, 11.0)


class DifferingWorld(ClusterWorld):
    """A cluster world that has at most one machine with a difference at a time."""

    settings = SETTINGS

    def __init__(self, seed: int, scene: str = "") -> None:
        super().__init__(seed, DIFFERING, scene)
        self.differs: ClusterMachine | None = None

    def serves(self, machine: ClusterMachine) -> None:
        if machine is self.differs:
            self.promises.broken.append(f"{machine.name} took the realm over, and differs")

    def plan(self) -> list[Callable[[ClusterMachine, float], None]]:
        kinds = [self._without_blobs, self._with_other_settings, self._with_another_lease]
        return [*super().plan(), *kinds, *kinds]

    def _without_blobs(self, machine: ClusterMachine, for_s: float) -> None:
        def spoil(machine: ClusterMachine) -> None:
            machine.other_place = MemoryBlobs(grows=False)

        self._restart(machine, for_s, "without the blobs", spoil=spoil)

    def _with_other_settings(self, machine: ClusterMachine, for_s: float) -> None:
        def spoil(machine: ClusterMachine) -> None:
            machine.settings = {**SETTINGS, "access.mode": "off"}

        self._restart(machine, for_s, "with other settings", spoil=spoil)

    def _with_another_lease(self, machine: ClusterMachine, for_s: float) -> None:
        def spoil(machine: ClusterMachine) -> None:
            machine.lease_s = self.random.choice(_OTHER_LEASES_S)
            machine.settings = {**SETTINGS, "cluster.lease_s": f"{machine.lease_s}"}

        self._restart(machine, for_s, "with another lease", spoil=spoil)

    def _restart(
        self,
        machine: ClusterMachine,
        for_s: float,
        how: str,
        spoil: Callable[[ClusterMachine], None],
    ) -> None:
        """Restart a machine with a difference for a while, and kill the owner once the machine has
        joined, so that another machine has to take over meanwhile."""
        if machine is self.owner():
            machine = next(peer for peer in self.machines.values() if peer is not machine)
        if self.differs is not None or not machine.is_running:
            return
        self.note(f"{machine.name} is started {how}")
        machine.kill()
        self.differs = machine
        spoil(machine)
        self.loop.call_later(DOWN_S, machine.start)
        self.loop.call_later(LEASE_S, self._kill_owner, for_s)
        self.loop.call_later(for_s + 2 * LEASE_S, self._restart_equal, machine)

    def _kill_owner(self, for_s: float) -> None:
        if (owner := self.owner()) is not self.differs:
            self.kill(owner, for_s)

    def _restart_equal(self, machine: ClusterMachine) -> None:
        if machine.is_running:
            machine.kill()
        self._mend(machine)
        self.differs = None
        self.loop.call_later(DOWN_S, machine.start)

    def _mend(self, machine: ClusterMachine) -> None:
        machine.settings, machine.lease_s, machine.other_place = SETTINGS, LEASE_S, None


def differing_life_of(seed: int, scene: str = "") -> DifferingWorld:
    """Return the world after its end. Raises the error of a failed life."""
    world = DifferingWorld(seed, scene)
    simulate(world.live(), world.random)
    return world
