"""The interface of a scene: some stores, their clients and the checks of both."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Scene(Protocol):
    async def prepare(self) -> None:
        """Create the stores at the start of a life, and check the state that the last life left."""
        ...

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        """Start the clients. In a ``quiet`` life nothing fails, and each client ends once it is
        done."""
        ...

    async def check(self) -> None:
        """Check at the end of the quiet life that all promises were kept."""
        ...
