"""Approval of the names of new stores, for realms in a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock_core.vocabulary.definitions import Definition


class StoreNames:
    """Approves names without asking anything, for a realm outside a cluster. A cluster replaces it
    with a subclass, as ``realm.names``."""

    asks = False
    """Whether approval needs requests to other nodes. The realm then checks first whether the store
    could be created."""

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """Reserve a canonical name while a store is created within the block. Raises
        ``NameAlreadyBound``, ``NoQuorum`` and ``InvalidArgument`` before the block."""
        yield

    def deleted(self, name: str) -> None:
        """Called after the store of this name was deleted."""
