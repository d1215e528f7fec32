"""What several clients of durables have done together, and whether it was right."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from operator import ge
from typing import Any

FLAW = 18.5
"""Events of this price, one in 100, are rolled back when they come for the first time."""
NO_FLAW = math.nan
"""No event has it: nothing is rolled back."""


class Ledger:
    """Counts what is acknowledged, until all that is wanted is.

    ``order`` is what has to grow from one event to the next, over all clients: ``""`` nothing,
    ``first`` what comes for the first time, ``strict`` whatever is acknowledged. ``flaw`` is the
    price of what is rolled back.
    """

    def __init__(self, wanted: int, order: str = "", flaw: float = FLAW) -> None:
        self.wanted = wanted
        self.order = order
        self.flaw = flaw
        self.acked = 0
        self.rolled_back = 0
        self.price = 0.0
        self.is_complete = asyncio.Event()
        self._awaited = 0
        self._is_reached = asyncio.Event()
        self._newest: Any = None

    def add(self, acked: int, price: float, rolled_back: int = 0) -> None:
        """A client has settled some."""
        self.acked += acked
        self.price += price
        self.rolled_back += rolled_back
        if self.acked >= self.wanted:
            self.is_complete.set()
        if self.acked >= self._awaited:
            self._is_reached.set()

    async def reached(self, count: int) -> None:
        """Wait until so many are acknowledged; one may wait at a time."""
        while self.acked < count:
            self._awaited = count
            self._is_reached.clear()
            await self._is_reached.wait()

    def expect(self, more: int) -> None:
        """It is complete again once so many more are acknowledged."""
        self.wanted += more
        if self.acked < self.wanted:
            self.is_complete.clear()

    def came(self, keys: Sequence[Any]) -> None:
        """The ids or the data, which have the number in front, of what has to be in order.
        Raises ``AssertionError`` when it is not."""
        if not keys:
            return
        first = self._newest is None or keys[0] > self._newest
        if not first or any(map(ge, keys, keys[1:])):
            raise AssertionError(f"events out of order after {self._newest!r}")
        self._newest = keys[-1]

    def check(self, price: float, flawed: int | None = None) -> None:
        """Raises ``AssertionError`` unless each event was acknowledged once, and each of
        ``flawed`` rolled back once."""
        if self.acked != self.wanted or abs(self.price - price) > 1e-6 * max(price, 1.0):
            raise AssertionError(
                f"{self.wanted} events of {price}, acknowledged {self.acked} of {self.price}"
            )
        if flawed is not None and self.rolled_back != flawed:
            raise AssertionError(f"{self.rolled_back} of {flawed} events rolled back")
