"""The part of a world that scenes with programs on other machines use. One realm on a failing disk
implements it, and so does a cluster."""

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
    """Tasks of other machines, which continue when a realm ends."""

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
        """The URL of the realm."""
        ...

    @property
    def now_us(self) -> int: ...

    @property
    def latest_us(self) -> int:
        """The latest time that a clock of the realm has ever shown, in µs."""
        ...

    @property
    def passed_us(self) -> int:
        """The most time that can have passed by the realm's clocks, in µs."""
        ...

    @property
    def lives(self) -> int:
        """Number of times that a realm or owner has started to serve the stored events."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Whether no more failures happen to the realm."""
        ...

    def note(self, what: str) -> None: ...

    def draw_type(self, types: Sequence[str]) -> str:
        """Draw one of the types that survive the failures of this world."""
        ...

    def life_of(self, machine: str) -> int:
        """Return the life of the realm that a machine is connected to; 0 if it has no
        connection."""
        ...

    def is_stale(self, machine: str) -> bool:
        """Return whether events that a machine receives now were sent before the realm gave it
        up."""
        ...

    def check_refusal(self, error: PenstockError) -> None:
        """Report a refusal that cannot be right in this world."""
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
        """Return whether no event is outstanding. Raises the error of a refused request."""
        ...

    async def stored_on(self, store: str) -> list[tuple[int, bytes]]:
        """Return all events of a store in order, as ids and data."""
        ...

    async def live_on(self, store: str) -> int:
        """Return the number of events of a store."""
        ...
