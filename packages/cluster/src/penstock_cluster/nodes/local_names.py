"""The names of a cluster: those of cluster-wide stores and those of local ones on a single node.

The node of a local store requests its name in the register, and the owner of the realm rules: see
:mod:`penstock_cluster.owning.local_names`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from penstock_cluster.nodes.register_poller import poll_forever
from penstock_cluster.nodes.register_updates import change_record
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
from penstock_core.vocabulary.reach import check_not_local
from penstock_core.vocabulary.temporary import is_temporary
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.writer.store_names import StoreNames

ASK_S: Final = 0.05
"""Pause between two polls while waiting for a ruling."""
RULED_S_MAX: Final = 10.0
"""Longest wait for a ruling."""

_log = logger("penstock.cluster")


async def local_names_in(registry: Registry) -> LocalNames:
    """Return the local stores of all nodes. Raises ``Damaged``."""
    return local_names_of(await registry.get(LOCAL_NAMES_KEY))


async def change_local_names(
    registry: Registry, change: Callable[[LocalNames], LocalNames]
) -> LocalNames:
    """Change the record with a compare-and-set. Raises ``Damaged``, and the errors of
    ``change``."""
    return await change_record(registry, LOCAL_NAMES_KEY, local_names_of, change=change)


class ClusterWideNames(StoreNames):
    """The names of a cluster's realm. The owner of the realm holds them, and grants or refuses
    local names."""

    def __init__(
        self,
        registry: Registry,
        epoch: int,
        directory: Directory,
        addresses: Callable[[], Mapping[str, str]],
    ) -> None:
        """``addresses`` returns the address of each node's local stores, by node."""
        self._registry = registry
        self.local = LocalNames()
        """Local names as they were read last."""
        self._unreadable = ""
        """Reason why the local names are unknown; empty if they are known."""
        self.epoch = epoch
        self.directory = directory
        self._addresses = addresses

    async def begin(self) -> None:
        """Take over the decisions on local names, and read the names granted before. Must be called
        before clients are served.

        While the record cannot be read the realm is served without it: no name is granted, and no
        store is created that might have a local name. Raises ``Deposed``.
        """
        try:
            names = await change_local_names(
                self._registry, lambda names: names.with_owner(self.epoch)
            )
        except Damaged as error:
            self._unreadable = str(error)
        else:
            self._apply(names)

    async def run(self, incidents: Incidents) -> None:
        """Grant or refuse the requested local names until cancelled. Raises ``Deposed`` once a
        later owner does so."""
        await poll_forever(
            self._registry, LOCAL_NAMES_KEY, self._update, incidents=incidents, task="local names"
        )

    async def _update(self) -> None:
        """Rule on new requests. Raises ``Damaged`` while the record cannot be read."""
        if self._unreadable:
            await self.begin()
        if self._unreadable:
            raise Damaged(self._unreadable)
        self._apply(await change_local_names(self._registry, self._rule))

    def _rule(self, names: LocalNames) -> LocalNames:
        """Return the record with a ruling on each request."""
        # Applied before the grant is written, so that no cluster-wide store gets that name
        # meanwhile.
        self._apply(names)
        return names.with_rulings(self.epoch, self.directory.is_taken)

    def _apply(self, names: LocalNames) -> None:
        """Make the realm refuse cluster-wide stores with these names, with the node's address in
        the error text."""
        self.local, self._unreadable = names, ""
        addresses = self._addresses()
        self.directory.local_names = {
            name: f"{local.kind} of node {local.node}" + _address_text(addresses.get(local.node))
            for name, local in names.reserved.items()
        }

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """Reserve a canonical name while a store is created within the block
        (:class:`~penstock_server.runtime.writer.store_names.StoreNames`). Refuses a store of one
        node, which has to be created at that node."""
        kind = self.directory.rules.types.get(definition.type)
        if kind is not None and kind.clusterable:
            check_not_local(name, definition, self._addresses())
        if self._unreadable and not is_temporary(name):
            raise Damaged(self._unreadable)
        yield


def _address_text(address: str | None) -> str:
    return f", at {address}" if address else ""


class LocalStoreNames(StoreNames):
    """The names of the local stores of a node."""

    asks = True

    def __init__(self, registry: Registry, node: str, ruled_s_max: float = RULED_S_MAX) -> None:
        """``ruled_s_max``: seconds after which a store that cannot get its name is refused."""
        self._registry = registry
        self.directory: Directory | None = None
        """Set by the realm that has these names."""
        self._node = node
        self._ruled_s_max = ruled_s_max
        self._making: Counter[str] = Counter()
        self._reported_clashes: set[str] = set()
        self._changed = asyncio.Event()

    async def run(self, incidents: Incidents) -> None:
        """Give back the names of deleted or never created stores, and request those that the
        register has lost, until cancelled."""
        await poll_forever(
            self._registry,
            LOCAL_NAMES_KEY,
            self._update,
            incidents=incidents,
            task="local names",
            changed=self._changed,
        )

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """Reserve a canonical name while a store is created within the block
        (:class:`~penstock_server.runtime.writer.store_names.StoreNames`). :meth:`run` gives back
        names whose store may not have been created."""
        if is_temporary(name):  # random, so no other store has it
            yield
            return
        self._making[name] += 1
        try:
            await self._request(name, definition.kind)
            yield
        finally:
            self._making[name] -= 1
            self._changed.set()

    def deleted(self, name: str) -> None:
        """Wake the task that gives back the names of deleted stores. Called after a store was
        deleted (:class:`~penstock_server.runtime.writer.store_names.StoreNames`)."""
        self._changed.set()

    async def _request(self, name: str, kind: str) -> None:
        """Request a name, and wait for the owner's ruling. Raises ``NoQuorum`` without a ruling in
        time, and ``NameAlreadyBound`` if it is refused."""
        local_name = LocalName(self._node, kind, secrets.token_hex(8))

        def request(names: LocalNames) -> LocalNames:
            local = names.names.get(name)
            if local is not None and local.asked == local_name.asked:
                return names  # it was written, but the answer was lost
            # Drop an earlier request of this node whose store was never created.
            if self._making[name] == 1 and not self._has(name):
                names = names.without(name, self._node)
            return names.with_request(name, local_name)

        try:
            async with asyncio.timeout(self._ruled_s_max):
                await change_local_names(self._registry, request)
                while True:
                    ruling = await self._ruling(name, local_name)
                    if ruling != "asked":
                        break
                    await asyncio.sleep(ASK_S)
        except TimeoutError:
            raise NoQuorum(
                f"the name {name} could not be reserved for node {self._node}: it got no ruling "
                f"for {self._ruled_s_max:.0f} s, because the engine of the cluster has no "
                "majority of its servers, or no node owns the realm; existing channels continue "
                "to work"
            ) from None
        if ruling == "refused":
            raise NameAlreadyBound(f"{name} already exists, and is cluster-wide")

    async def _ruling(self, name: str, local_name: LocalName) -> str:
        """Return the register's ruling on this node's request for a name."""
        names = await local_names_in(self._registry)
        return names.ruling_for(name, self._node, local_name.asked)

    def _has(self, name: str) -> bool:
        return self.directory is not None and self.directory.is_taken(name)

    async def _update(self) -> None:
        names = await change_local_names(self._registry, self._without_unused)
        for name, kind in self._stores():
            if name not in names.names and not self._making[name]:
                await self._request_again(name, kind)
            elif (local := names.names.get(name)) is not None and local.ruling == "refused":
                self._report_clash(name)

    def _without_unused(self, names: LocalNames) -> LocalNames:
        """Return the record without this node's names of stores that do not exist."""
        for name, local in list(names.names.items()):
            if local.node == self._node and not self._has(name) and not self._making[name]:
                names = names.without(name, self._node)
        return names

    async def _request_again(self, name: str, kind: str) -> None:
        """Request the name of an existing store that a re-created register does not know."""
        local_name = LocalName(self._node, kind, secrets.token_hex(8))
        try:
            await change_local_names(
                self._registry,
                lambda names: (
                    names if name in names.names else names.with_request(name, local_name)
                ),
            )
        except Refused:
            self._report_clash(name)

    def _report_clash(self, name: str) -> None:
        if name not in self._reported_clashes:
            self._reported_clashes.add(name)
            _log.error(
                "local.name_clash",
                name=name,
                reason="the register of the cluster has lost this name, and another store has it",
            )

    def _stores(self) -> list[tuple[str, str]]:
        """Return name and kind of each local store that needs a name in the register."""
        directory = self.directory
        if directory is None:
            return []
        return [
            (name, kind)
            for kind in ("channel", "queue")
            for name in directory.names(kind)
            if not is_temporary(name)
        ] + [(machine.state.name, "channel") for machine in directory.internal.machines.values()]
