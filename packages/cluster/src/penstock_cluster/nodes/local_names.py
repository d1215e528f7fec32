"""Who has a name in a cluster: cluster-wide stores, and local ones that one node has for itself.

The node of a local store asks for its name in the register, and the owner of the realm rules: see
:mod:`penstock_cluster.owning.local_names`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from penstock_cluster.nodes.changing import change_record
from penstock_cluster.nodes.looking import look_forever
from penstock_cluster.owning.local_names import (
    LOCAL_NAMES_KEY,
    LocalName,
    LocalNames,
    local_names_of,
)
from penstock_core.loggers import logger
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    Damaged,
    NameAlreadyBound,
    NoQuorum,
    Refused,
)
from penstock_core.vocabulary.ports import Registry
from penstock_core.vocabulary.reach import check_for_all
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.writer.store_names import StoreNames

ASK_S: Final = 0.05
"""How often who waits for a ruling looks."""
RULED_S_MAX: Final = 10.0
"""How long a ruling is waited for."""

_log = logger("penstock.cluster")


async def local_names_in(registry: Registry) -> LocalNames:
    """The local stores of all nodes. Raises ``Damaged``."""
    return local_names_of(await registry.get(LOCAL_NAMES_KEY))


async def change_local_names(
    registry: Registry, change: Callable[[LocalNames], LocalNames]
) -> LocalNames:
    """Write the record on top of what is there. Raises ``Damaged``, and what ``change`` raises."""
    return await change_record(registry, LOCAL_NAMES_KEY, local_names_of, change=change)


class ClusterWideNames(StoreNames):
    """The names of the realm of a cluster, held by its owner, who rules over local ones."""

    def __init__(
        self,
        registry: Registry,
        epoch: int,
        directory: Directory,
        doors: Callable[[], Mapping[str, str]],
    ) -> None:
        """``doors`` tells where each node has its local stores, by node."""
        self._registry = registry
        self.local = LocalNames()
        """As they were read last."""
        self._unreadable = ""
        """Why it is not known which names are local; empty: it is."""
        self._epoch = epoch
        self._directory = directory
        self._doors = doors

    async def begin(self) -> None:
        """Rule from now on, and know what was granted before; to be done before anybody is served.
        While the record cannot be read the realm is served without it: no node grants a name, and
        no store is made that might have one. Raises ``Deposed``."""
        try:
            begun = await change_local_names(self._registry, lambda each: each.begun(self._epoch))
        except Damaged as error:
            self._unreadable = str(error)
        else:
            self._take(begun)

    async def run(self, incidents: Incidents) -> None:
        """Rule until cancelled. Raises ``Deposed`` when a later owner does."""
        await look_forever(
            self._registry, LOCAL_NAMES_KEY, self._look, incidents=incidents, task="local names"
        )

    async def _look(self) -> None:
        if self._unreadable:
            await self.begin()
        if self._unreadable:
            raise Damaged(self._unreadable)
        self._take(await change_local_names(self._registry, self._rule))

    def _rule(self, found: LocalNames) -> LocalNames:
        self._take(found)  # before anything is granted: nothing of that name is made meanwhile
        return found.ruled(self._epoch, self._directory.is_taken)

    def _take(self, found: LocalNames) -> None:
        self.local, self._unreadable = found, ""
        doors = self._doors()
        self._directory.local_names = {
            name: f"{each.kind} of node {each.node}" + _at(doors.get(each.node))
            for name, each in found.taken.items()
        }

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """See :class:`~penstock_server.runtime.writer.store_names.StoreNames`. A store of one node
        is made at that node."""
        kind = self._directory.rules.types.get(definition.type)
        if kind is not None and kind.clusterable:
            check_for_all(name, definition, self._doors())
        if self._unreadable and not is_temporary(name):
            raise Damaged(self._unreadable)
        yield


def _at(door: str | None) -> str:
    return f", at {door}" if door else ""


class LocalStoreNames(StoreNames):
    """The names of the local stores of a node."""

    asks = True

    def __init__(self, registry: Registry, node: str, ruled_s_max: float = RULED_S_MAX) -> None:
        """``ruled_s_max``: seconds after which a store that cannot get its name is refused."""
        self._registry = registry
        self.directory: Directory | None = None
        """Set by the realm whose names these are."""
        self._node = node
        self._ruled_s_max = ruled_s_max
        self._making: Counter[str] = Counter()
        self._clashes: set[str] = set()
        self._changed = asyncio.Event()

    async def run(self, incidents: Incidents) -> None:
        """Give back the names of stores that are gone or were never made, and ask for those of
        stores whose names the register has lost, until cancelled."""
        await look_forever(
            self._registry,
            LOCAL_NAMES_KEY,
            self._look,
            incidents=incidents,
            task="local names",
            changed=self._changed,
        )

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """See :class:`~penstock_server.runtime.writer.store_names.StoreNames`. What cannot be told
        apart from a failure is left to :meth:`run`."""
        if is_temporary(name):  # nobody else draws the same
            yield
            return
        self._making[name] += 1
        try:
            await self._ask(name, definition.kind)
            yield
        finally:
            self._making[name] -= 1
            self._changed.set()

    def deleted(self, name: str) -> None:
        """See :class:`~penstock_server.runtime.writer.store_names.StoreNames`."""
        self._changed.set()

    async def _ask(self, name: str, kind: str) -> None:
        wanted = LocalName(self._node, kind, secrets.token_hex(8))

        def ask(found: LocalNames) -> LocalNames:
            known = found.names.get(name)
            if known is not None and known.asked == wanted.asked:
                return found  # it was written, and the answer was lost
            if self._making[name] == 1 and not self._has(name):  # left by one that was not made
                found = found.without(name, self._node)
            return found.asking(name, wanted)

        try:
            async with asyncio.timeout(self._ruled_s_max):
                await change_local_names(self._registry, ask)
                while True:
                    found = await self._ruling(name, wanted)
                    if found != "asked":
                        break
                    await asyncio.sleep(ASK_S)
        except TimeoutError:
            raise NoQuorum(
                f"the name {name} could not be kept for node {self._node}: nobody has ruled over "
                f"it for {self._ruled_s_max:.0f} s, because the engine of the cluster has no "
                f"majority of its servers, or no node owns the realm; channels that are there go "
                f"on"
            ) from None
        if found == "refused":
            raise NameAlreadyBound(f"{name} already exists, and is cluster-wide")

    async def _ruling(self, name: str, wanted: LocalName) -> str:
        names = await local_names_in(self._registry)
        return names.ruling_for(name, self._node, wanted.asked)

    def _has(self, name: str) -> bool:
        return self.directory is not None and self.directory.is_taken(name)

    async def _look(self) -> None:
        found = await change_local_names(self._registry, self._without_strays)
        for name, kind in self._stores():
            if name not in found.names and not self._making[name]:
                await self._ask_again(name, kind)
            elif (known := found.names.get(name)) is not None and known.ruling == "refused":
                self._clash(name)

    def _without_strays(self, found: LocalNames) -> LocalNames:
        for name, each in list(found.names.items()):
            if each.node == self._node and not self._has(name) and not self._making[name]:
                found = found.without(name, self._node)
        return found

    async def _ask_again(self, name: str, kind: str) -> None:
        """The register knows nothing of a store that is there: it was made anew."""
        wanted = LocalName(self._node, kind, secrets.token_hex(8))
        try:
            await change_local_names(
                self._registry,
                lambda found: found if name in found.names else found.asking(name, wanted),
            )
        except Refused:
            self._clash(name)

    def _clash(self, name: str) -> None:
        if name not in self._clashes:
            self._clashes.add(name)
            _log.error(
                "local.name_clash",
                name=name,
                reason="the register of the cluster has lost this name, and another store has it",
            )

    def _stores(self) -> list[tuple[str, str]]:
        directory = self.directory
        if directory is None:
            return []
        return [
            (name, kind)
            for kind in ("channel", "queue")
            for name in directory.names(kind)
            if not is_temporary(name)
        ] + [(each.state.name, "channel") for each in directory.internal.machines.values()]
