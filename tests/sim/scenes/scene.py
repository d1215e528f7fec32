"""What a world plays: some stores, their clients, and what these may expect."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Scene(Protocol):
    async def prepare(self) -> None:
        """At the start of a life: make the stores, look at what the last life left of them."""
        ...

    def start(self, group: asyncio.TaskGroup, *, quiet: bool) -> None:
        """Let the clients come. In a ``quiet`` life nothing goes wrong, and each of them ends
        once all it has to do is done."""
        ...

    async def check(self) -> None:
        """At the end of the quiet life: what is there is what was promised."""
        ...
