"""The common account of several clients of durables, and the check that it is correct."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from operator import ge
from typing import Any

FLAW = 18.5
"""Events of this price, one in 100, are rolled back at their first delivery."""
NO_FLAW = math.nan
"""A price that no event has: nothing is rolled back."""


class Ledger:
    """Counts acknowledged events up to the expected number.

    ``order`` selects the events whose keys must increase over all clients: none if it is empty,
    with ``first`` the first delivery of each event, with ``strict`` each acknowledged event.
    ``flaw`` is the price of the events that are rolled back.
    """

    def __init__(self, wanted: int, order: str = "", flaw: float = FLAW) -> None:
        self.wanted = wanted
        """Number of expected events."""
        self.order = order
        self.flaw = flaw
        self.acked = 0
        self.rolled_back = 0
        self.price = 0.0
        """Sum of the prices of acknowledged events."""
        self.is_complete = asyncio.Event()
        self._awaited = 0
        """Number of events that :meth:`reached` waits for."""
        self._is_reached = asyncio.Event()
        self._newest: Any = None
        """Newest key of :meth:`record_in_order`."""

    def add(self, acked: int, price: float, rolled_back: int = 0) -> None:
        """Record the events that a client has settled."""
        self.acked += acked
        self.price += price
        self.rolled_back += rolled_back
        if self.acked >= self.wanted:
            self.is_complete.set()
        if self.acked >= self._awaited:
            self._is_reached.set()

    async def reached(self, count: int) -> None:
        """Wait until ``count`` events are acknowledged; only one caller may wait at a time."""
        while self.acked < count:
            self._awaited = count
            self._is_reached.clear()
            await self._is_reached.wait()

    def expect(self, more: int) -> None:
        """Expect ``more`` further events, so that the ledger is complete after them."""
        self.wanted += more
        if self.acked < self.wanted:
            self.is_complete.clear()

    def record_in_order(self, keys: Sequence[Any]) -> None:
        """Record the ids of delivered events, or their data, which begin with a number; these must
        be in order. Raises ``AssertionError`` if they are not."""
        if not keys:
            return
        first = self._newest is None or keys[0] > self._newest
        if not first or any(map(ge, keys, keys[1:])):
            raise AssertionError(f"events out of order after {self._newest!r}")
        self._newest = keys[-1]

    def check(self, price: float, flawed: int | None = None) -> None:
        """Raise ``AssertionError`` unless each event was acknowledged once, and each of ``flawed``
        events was rolled back once."""
        if self.acked != self.wanted or abs(self.price - price) > 1e-6 * max(price, 1.0):
            raise AssertionError(
                f"{self.wanted} events of {price}, acknowledged {self.acked} of {self.price}"
            )
        if flawed is not None and self.rolled_back != flawed:
            raise AssertionError(f"{self.rolled_back} of {flawed} events rolled back")
