"""Selectors that are evaluated in a thread, and an offload that counts these evaluations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from packages.server.tests.runtime.lives import Lives, Outlet
from penstock_core.columns.selectors.patterns import Walk
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.realm import Limits

LETTERS = "abcdefgh"
SMALL_SLICES = Limits(
    selectors=SelectorLimits(thread_above=100_000, slice_cost=200_000, part_bytes=20_000)
)


class Elsewhere:
    """An offload that counts the evaluations in the thread, and those on the loop."""

    def __init__(self, lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.on_loop = 0
        """Evaluations of patterns with wildcards on the loop."""
        self.paused: asyncio.Event | None = None
        self.is_away = False
        lives.realm.dispatch.choosing.offload = self
        fits = Walk.fits

        def counted(walk: Walk, *arguments: Any) -> bool:
            self.on_loop += not self.is_away
            return fits(walk, *arguments)

        monkeypatch.setattr(Walk, "fits", counted)

    async def __call__(self, call: Callable[[], Any], /) -> Any:
        self.calls += 1
        if self.paused is not None:
            await self.paused.wait()
        self.is_away = True
        try:
            result = call()
        finally:
            self.is_away = False
        return await asyncio.sleep(0, result)


def costly(number: ChannelId) -> str:
    """Return a selector that has to search every text from start to end."""
    one, two = LETTERS[number % 8], LETTERS[number // 8 % 8]
    return f"s LIKE '%{one}_{two}h_{one}%{two}%'"


async def outstanding(lives: Lives, name: str, durable: str) -> list[int]:
    outlet = Outlet()
    await lives.realm.subscriptions.browse_durable(
        ChannelId(lives.number(name)), durable, outlet, credit=1 << 30
    )
    await outlet.at_end.wait()
    return outlet.ids


async def expected(lives: Lives, name: str, selector: str) -> list[int]:
    """Return the matching ids of the stored events."""
    return [event.event_id for event in (await lives.stored(name, selector)).copy()]  # type: ignore[misc]
