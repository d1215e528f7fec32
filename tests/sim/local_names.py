"""Lives of local stores next to cluster-wide ones: nodes whose engine loses answers and disappears,
owners that replace each other without knowing it, and clients that create and delete stores of a
few names everywhere.

A name must exist only once, and local stores must keep working without the engine. To repeat a
life: ``python -m tests.sim.local_names SEED``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any, Final, TypeVar

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import Owning, body, publish
from penstock_cluster.nodes.local_names import ClusterWideNames, LocalStoreNames, local_names_in
from penstock_cluster.owning.local_names import LocalNames
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Fenced, NoQuorum, PenstockError, Refused
from penstock_core.vocabulary.ports import inline
from penstock_server.bootstrap import rules
from penstock_server.runtime.delivery.owner_lease import ENDLESS, OwnerLease
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import InMemory, MemoryPages
from penstock_testing.engine import EngineServers, MemoryEngine, NoAnswer
from penstock_testing.loop import SimLoop, pass_time, simulate

T = TypeVar("T")
Mistake = Callable[[pytest.MonkeyPatch], None]

NAMES: Final = ("orders", "prices", "readings")
NODES: Final = ("n1", "n2", "n3")
TROUBLE_S: Final = 40.0
CALM_S: Final = 25.0
"""Anything that is still unsettled this long after the last failure never settles."""
PERSISTENT: Final = Definition(type="persistent")


class Link:
    """Requests of one process to the engine."""

    def __init__(self, world: LocalNamesWorld) -> None:
        self._world = world
        self.cut_until_s = 0.0

    @property
    def is_cut(self) -> bool:
        return self._world.loop.time() < self.cut_until_s

    async def __call__(self, call: Callable[[], T]) -> T:
        world, random = self._world, self._world.random
        if world.is_calm:
            await pass_time(0.001)
            return call()
        await pass_time(random.expovariate(200))
        if self.is_cut:
            await pass_time(random.uniform(0.1, 0.5))
            raise NoAnswer
        answer = call()
        await pass_time(random.expovariate(200))
        if self.is_cut or random.random() < 0.05:
            raise NoAnswer
        return answer


class LocalNode:
    """The local stores of a node, over its restarts."""

    def __init__(self, world: LocalNamesWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.link = Link(world)
        self.stores = InMemory()
        self.realm: RunningRealm | None = None

    async def run(self) -> None:
        """Run one start after the other until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.world.until_a_restart_s()):
                    await self._serve()

    async def _serve(self) -> None:
        registry = await MemoryEngine(self.world.servers, call=self.link).registry()
        realm = await RunningRealm.open(
            self.stores.journal,
            self.stores.blobs,
            MemoryPages(),
            replace(rules(), local_to=self.name),
            self.world.loop,
            inline,
            identity=self.name,
            lease=self.world.local_lease(self),
        )
        names = LocalStoreNames(registry, self.name)
        names.directory = realm.directory
        realm.name_with(names)
        self.realm = realm
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(realm.run())
                tasks.create_task(names.run(realm.incidents))
        finally:
            self.realm = None


class WideOwner:
    """An owner of the cluster-wide realm; it may be deposed without knowing it yet."""

    def __init__(self, world: LocalNamesWorld, epoch: int) -> None:
        self.world = world
        self.epoch = epoch
        self.link = Link(world)
        self.realm: RunningRealm | None = None

    async def run(self) -> None:
        """Serve until deposed or cancelled."""
        engine = MemoryEngine(self.world.servers, call=self.link)
        with suppress(Fenced):
            realm = await RunningRealm.open(
                await engine.journal(0, self.epoch),
                await engine.blobs(0),
                MemoryPages(),
                rules(),
                self.world.loop,
                inline,
                identity="wide",
                lease=Owning(self.epoch),
            )
            names = ClusterWideNames(
                await engine.registry(), self.epoch, realm.directory, addresses=dict[str, str]
            )
            await names.begin()
            realm.name_with(names)
            self.realm = realm
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(realm.run())
                    tasks.create_task(names.run(realm.incidents))
            except* Fenced:
                pass
            finally:
                self.realm = None


class LocalNamesWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed}/local names")
        self.servers = EngineServers()
        self.is_calm = False
        self.nodes = [LocalNode(self, name) for name in NODES]
        self.owners: list[WideOwner] = []
        self.created = 0
        """Number of stores whose creation was acknowledged."""
        self.published_alone = 0
        """Number of publishes to local stores while their node did not reach the engine."""

    @property
    def loop(self) -> SimLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return loop

    def local_lease(self, node: LocalNode) -> OwnerLease:
        """Return the lease of local stores. It has no end, because no other node can own them."""
        return ENDLESS

    def until_a_restart_s(self) -> float | None:
        return None if self.is_calm else self.random.expovariate(1 / 20)

    async def live(self) -> None:
        async with AsyncExitStack() as ends:
            tasks = await ends.enter_async_context(asyncio.TaskGroup())
            running = [tasks.create_task(node.run()) for node in self.nodes]
            running.append(tasks.create_task(self._replace_owners(tasks, running)))
            clients = [tasks.create_task(self._local_client(node)) for node in self.nodes]
            clients += [tasks.create_task(self._wide_client()) for _ in range(2)]
            clients.append(tasks.create_task(self._cut_off()))
            await pass_time(TROUBLE_S)
            self.is_calm = True
            await asyncio.wait(clients)
            await pass_time(CALM_S)
            await self._check_the_end()
            for task in running:
                task.cancel()

    # --- failures and clients -------------------------------------------------------------

    async def _replace_owners(
        self, tasks: asyncio.TaskGroup, running: list[asyncio.Task[None]]
    ) -> None:
        """Start a new owner now and then, whatever the last one does."""
        while True:
            owner = WideOwner(self, len(self.owners) + 1)
            self.owners.append(owner)
            running.append(tasks.create_task(owner.run()))
            await pass_time(self.random.uniform(1, 8))
            if self.is_calm:
                return

    async def _cut_off(self) -> None:
        while not self.is_calm:
            await pass_time(self.random.expovariate(1))
            links = [node.link for node in self.nodes]
            link = self.random.choice(links + [owner.link for owner in self.owners[-3:]])
            link.cut_until_s = self.loop.time() + self.random.uniform(0.5, 8)

    async def _local_client(self, node: LocalNode) -> None:
        while not self.is_calm:
            await pass_time(self.random.expovariate(3))
            if (realm := node.realm) is None:
                continue
            name = self.random.choice(NAMES)
            if realm.directory.find(name) is None:
                await self._make(realm, name)
            elif self.random.random() < 0.2:
                await self._do(realm, realm.delete_channel(name))
            else:
                await self._publish(node, realm, name)

    async def _publish(self, node: LocalNode, realm: RunningRealm, name: str) -> None:
        is_alone = node.link.is_cut
        try:
            async with asyncio.timeout(0.4):
                number = realm.directory.channel_id_of(name)
                await self._do(realm, publish(realm, number, body([b"an event"])))
        except TimeoutError:
            if node.realm is realm:
                raise AssertionError("a local publish has waited for the cluster") from None
        self.published_alone += is_alone

    async def _wide_client(self) -> None:
        while not self.is_calm:
            await pass_time(self.random.expovariate(2))
            owners = [owner.realm for owner in self.owners[-3:] if owner.realm is not None]
            if not owners:
                continue
            realm, name = self.random.choice(owners), self.random.choice(NAMES)
            if realm.directory.find(name) is None:
                await self._make(realm, name)
            else:
                await self._do(realm, realm.delete_channel(name))

    async def _make(self, realm: RunningRealm, name: str) -> None:
        if not await self._do(realm, realm.create_channel(name, PERSISTENT)):
            return
        self.created += 1
        other_realms = [served for served in self._serving() if served is not realm]
        # Another client may have deleted it by now, and another node may have created it.
        if realm in self._serving() and realm.directory.find(name) is not None:
            holders = [
                other_realm.identity
                for other_realm in other_realms
                if other_realm.directory.find(name) is not None
            ]
            assert not holders, f"{name} of {realm.identity} is a store of {holders}, too"

    async def _do(self, realm: RunningRealm, work: Any) -> bool:
        """Await the work. Return whether it was done: it may be refused, and it ends with its
        realm."""
        try:
            async with asyncio.timeout(12):
                await work
        except (Refused, NoQuorum):
            return False
        except (PenstockError, TimeoutError):
            return False
        return True

    def _serving(self) -> list[RunningRealm]:
        """Return the realms that count: those of the nodes and that of the newest owner."""
        locals_ = [node.realm for node in self.nodes if node.realm is not None]
        newest = self.owners[-1].realm
        return locals_ if newest is None else [*locals_, newest]

    async def _check_the_end(self) -> None:
        holders: dict[str, list[str]] = {}
        for realm in self._serving():
            for name in realm.directory.names("channel"):
                holders.setdefault(name, []).append(realm.identity)
        assert all(len(identities) == 1 for identities in holders.values()), (
            f"a name twice: {holders}"
        )
        registry = await MemoryEngine(self.servers).registry()
        granted = (await local_names_in(registry)).names
        local = {name: identity for name, (identity,) in holders.items() if identity != "wide"}
        assert {name: grant.node for name, grant in granted.items()} == local


def life_of(seed: int, world: Callable[[int], LocalNamesWorld] = LocalNamesWorld) -> Any:
    """Run one life to its end."""
    started_world = world(seed)
    simulate(started_world.live(), started_world.random)
    return started_world


# --- mistakes -----------------------------------------------------------------------------


def any_epoch(patch: pytest.MonkeyPatch) -> None:
    """Let an owner grant names after a later one has begun."""
    patch.setattr(LocalNames, "with_owner", lambda names, _: names)
    original = LocalNames.with_rulings
    patch.setattr(
        LocalNames,
        "with_rulings",
        lambda names, _, is_taken: original(names, names.epoch, is_taken),
    )


def grants_first(patch: pytest.MonkeyPatch) -> None:
    """Reserve a name only after its grant was written."""

    def rule(names: ClusterWideNames, granted: LocalNames) -> LocalNames:
        return granted.with_rulings(
            names.epoch, lambda name: names.directory.find(name) is not None
        )

    patch.setattr(ClusterWideNames, "_rule", rule)


def waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Let a node create its store as soon as it has requested the name."""

    async def granted(*_: Any) -> str:
        return "granted"

    patch.setattr(LocalStoreNames, "_ruling", granted)


class _OfTheCluster:
    """A lease that holds while the engine answers."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self.epoch, self.format = ENDLESS.epoch, ENDLESS.format

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        return ()

    def holds(self) -> bool:
        return not self._node.link.is_cut

    async def held(self) -> None:
        while not self.holds():
            await pass_time(0.1)


def under_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Let local stores answer only while the cluster has a quorum."""
    patch.setattr(LocalNamesWorld, "local_lease", lambda _, node: _OfTheCluster(node))


MISTAKES: Final[Mapping[Mistake, int]] = {
    any_epoch: 1,
    grants_first: 7,
    waits_for_nobody: 1,
    under_the_lease: 28,
}
"""Each with the seed of a life that notices it."""


def is_noticed(mistake: Mistake, seed: int) -> bool:
    """Return whether an assertion notices the mistake in this life."""
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        noticed = False
        try:
            life_of(seed)
        except* AssertionError:
            noticed = True
    return noticed


if __name__ == "__main__":
    lived = life_of(int(sys.argv[1]))
    sys.stdout.write(f"{lived.created} made, {lived.published_alone} published alone\n")
