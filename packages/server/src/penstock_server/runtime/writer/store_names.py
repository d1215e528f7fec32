"""Names of new stores, where others than the realm itself have a say in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock_core.vocabulary.definitions import Definition


class StoreNames:
    """Held by the realm as ``realm.names``. Here nobody else has a say."""

    asks = False
    """Whether others are asked, which takes time and is worth it only for what can be made."""

    @asynccontextmanager
    async def making(self, name: str, definition: Definition) -> AsyncIterator[None]:
        """A store of this canonical name is made within the block. Raises ``NameAlreadyBound``,
        ``NoQuorum`` and ``InvalidArgument`` before anything is made."""
        yield

    def deleted(self, name: str) -> None:
        """The store of this name is gone."""
