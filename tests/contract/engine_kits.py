"""The kits of the contract tests for an engine that several nodes share."""

from __future__ import annotations

from typing import Protocol

from penstock_core.vocabulary.ports import Blobs, Journal, Registry, StorageEngine
from penstock_testing.contracts import BlobsContract, JournalContract, RegistryContract
from penstock_testing.engine_contracts import EngineContract, Fates


class Nodes(Protocol):
    """Nodes that share an engine, which is new and empty for the first node."""

    async def engine(self, fates: Fates | None = None) -> StorageEngine:
        """Return the engine as one more node sees it; the requests of this node have these
        ``fates``."""
        ...


class JournalKit(JournalContract):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open(self) -> Journal:
        return await (await self._nodes.engine()).journal(0, 1)


class BlobsKit(BlobsContract):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open(self) -> Blobs:
        return await (await self._nodes.engine()).blobs(0)


class RegistryKit(RegistryContract):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def open(self) -> Registry:
        return await (await self._nodes.engine()).registry()


class EngineKit(EngineContract):
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    async def engine(self, fates: Fates | None = None) -> StorageEngine:
        return await self._nodes.engine(fates)
