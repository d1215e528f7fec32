"""What scenes ask for whose clients are programs on other machines: one realm on a failing disk
offers it, and so does a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol

from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import PenstockError
from penstock_testing.loop import SimLoop
from penstock_testing.network import SimNetwork
from tests.sim.gate import Gate


class WiredWorld(Protocol):
    gate: Gate
    outside: asyncio.TaskGroup
    """What runs elsewhere, and goes on when a realm ends."""

    @property
    def seed(self) -> int: ...

    @property
    def random(self) -> Random: ...

    @property
    def loop(self) -> SimLoop: ...

    @property
    def network(self) -> SimNetwork: ...

    @property
    def url(self) -> str:
        """Where programs find a realm."""
        ...

    @property
    def now_us(self) -> int: ...

    @property
    def latest_us(self) -> int:
        """The latest time that a clock of the realm has ever shown, in µs."""
        ...

    @property
    def passed_us(self) -> int:
        """How much time has passed at most, as the realm's clocks show it, in µs."""
        ...

    @property
    def lives(self) -> int:
        """How often somebody has begun to serve what is stored."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Nothing happens to whoever serves any more."""
        ...

    def note(self, what: str) -> None: ...

    def draw_type(self, types: Sequence[str]) -> str:
        """One of the types, of those that outlive what happens here."""
        ...

    def life_of(self, machine: str) -> int:
        """In which of the lives that realm is to which a machine is connected; 0: to none."""
        ...

    def is_stale(self, machine: str) -> bool:
        """Whether what a machine is told now was sent by somebody who has given it up since."""
        ...

    def hear(self, error: PenstockError) -> None:
        """A program was refused something, or is not answered: complain if that cannot be."""
        ...

    async def create(self, name: str, definition: Definition) -> None: ...

    async def create_durable(
        self,
        store: str,
        name: str,
        kind: str = "shared",
        *,
        strict_order: bool = False,
        order_by: str = "",
    ) -> None: ...

    async def number_of(self, store: str) -> int: ...

    async def is_consumed(self, store: str, durable: str) -> bool:
        """Whether nobody waits for anything. Raises what the realm refuses to tell."""
        ...

    async def stored_on(self, store: str) -> list[tuple[int, bytes]]:
        """All that a store holds, in order: ids and content."""
        ...

    async def live_on(self, store: str) -> int:
        """How many events a store has."""
        ...
