"""Poll a part of the register whenever it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from penstock_core.vocabulary.errors import Deposed
from penstock_core.vocabulary.ports import Registry
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.upkeep.regular_work import run_again

ENDS: Final = (Deposed,)
"""Errors that end the polling, because another process has the task."""
POLL_S: Final = 1.0
"""Pause between two polls without a notification."""


async def poll_forever(
    registry: Registry,
    prefix: str,
    poll: Callable[[], Awaitable[object]],
    incidents: Incidents,
    task: str,
    *,
    every_s: float = POLL_S,
    changed: asyncio.Event | None = None,
) -> None:
    """Call ``poll`` immediately, after each change below ``prefix``, whenever ``changed`` is set,
    and after ``every_s`` seconds, until cancelled. A failure is an incident of the ``task``, and
    the next poll tries again. Raises ``Deposed`` when ``poll`` does."""
    wake_up = changed or asyncio.Event()

    async def watch() -> None:
        async for _ in registry.watch(prefix):
            wake_up.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_again(incidents, f"{task}: changes", watch))
        while True:
            # Cleared first, so that a change during the poll leads to another poll.
            wake_up.clear()
            with incidents.barrier(task, ends=ENDS):
                await poll()
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await wake_up.wait()
