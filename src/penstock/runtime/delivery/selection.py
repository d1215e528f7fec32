"""Selectors applied to the events read for a subscription: in a thread where that takes long, for
a limited time, and only while somebody is there to get the events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from penstock.columns.selectors import EventFrame, Selector
from penstock.columns.selectors.frames import Messages
from penstock.columns.selectors.patterns import Check
from penstock.core.vocabulary.errors import LimitReached
from penstock.core.vocabulary.ports import Clock, Offload
from penstock.runtime.store.outgoing_batch import Rows

BESIDE_ABOVE: Final = 16 << 20
"""Bytes to look at, each as often as the selector does, above which a thread does it: some
hundredths of a second."""
BUDGET_S: Final = 5.0
"""A selector may take so long for what is sent at once."""


def patience(clock: Clock, first: int) -> Check:
    """A check that raises ``LimitReached`` once a selector has taken too long for the events from
    ``first`` on."""
    ends_us = clock.now_us() + int(BUDGET_S * 1_000_000)

    def check() -> None:
        if clock.now_us() > ends_us:
            raise LimitReached(
                f"the selector took longer than {BUDGET_S:g} s for some of the events from id "
                f"{first} on; simplify it: use fewer comparisons and wildcards"
            )

    return check


class Choosing:
    """Applies selectors to what is on its way out."""

    def __init__(self, offload: Offload, clock: Clock) -> None:
        self._offload = offload
        self._clock = clock

    async def chosen(
        self,
        part: Rows,
        selector: Selector,
        now_us: int,
        messages: Messages | None,
        is_wanted: Callable[[], bool],
    ) -> Rows | None:
        """The rows ``selector`` matches: ``part`` itself if all, None if none.

        Raises ``LimitReached`` when it takes too long, or nobody wants it any more.
        """
        if selector.work * part.weight <= BESIDE_ABOVE:
            return part.chosen(selector, now_us, messages)
        check = self._check(part.spans[0].first, while_wanted(is_wanted))
        return await self._offload(lambda: part.chosen(selector, now_us, messages, check))

    async def mask(
        self,
        batch: pa.RecordBatch,
        selector: Selector,
        now_us: int,
        messages: Messages | None,
        still: Check,
    ) -> pa.BooleanArray:
        """Which rows of a stored batch ``selector`` matches. Raises ``LimitReached`` when it takes
        too long, and what ``still`` does once nobody wants it any more."""
        check = self._check(int(batch.column("event_id")[0].as_py()), still)
        frame = EventFrame(batch, now_us, messages, check=check)
        check()
        if selector.work * batch.nbytes <= BESIDE_ABOVE:
            return selector.mask_in(frame)
        return await self._offload(lambda: selector.mask_in(frame))

    def _check(self, first: int, still: Check) -> Check:
        within = patience(self._clock, first)

        def check() -> None:
            still()
            within()

        return check


def while_wanted(is_wanted: Callable[[], bool]) -> Check:
    """A check that raises ``LimitReached`` once a subscription is over."""

    def check() -> None:
        if not is_wanted():
            raise LimitReached("the subscription is over")

    return check
