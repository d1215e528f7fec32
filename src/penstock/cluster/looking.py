"""Follows a part of the register: looks whenever it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from penstock.core.vocabulary.ports import Registry

LOOK_S: Final = 1.0
"""How often one looks where no change was told."""


async def look_forever(
    registry: Registry,
    prefix: str,
    look: Callable[[], Awaitable[object]],
    *,
    every_s: float = LOOK_S,
    changed: asyncio.Event | None = None,
) -> None:
    """Call ``look`` at once, with each change below ``prefix``, whenever ``changed`` is set, and
    after ``every_s`` seconds, until cancelled. Raises what ``look`` raises."""
    woken = changed or asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_hear(registry, prefix, woken))
        while True:
            woken.clear()
            await look()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await woken.wait()


async def _hear(registry: Registry, prefix: str, changed: asyncio.Event) -> None:
    async for _ in registry.watch(prefix):
        changed.set()
