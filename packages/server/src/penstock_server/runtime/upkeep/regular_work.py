"""Periodic background work of a realm, and the loop that restarts failed background tasks.

An unexpected failure is reported as an incident; the task continues with other channels and other
work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import Deposed, RealmStopping, StorageFailed, Unknown
from penstock_server.runtime.access.incidents import RETRY_FIRST_S, Incidents

ENDS: Final = (RealmStopping, Deposed, Unknown)
"""Errors that end the realm, and so every background task."""

Step = Callable[[], Awaitable[None] | None]
"""Work that is done once in each round."""

_log = logger("penstock.upkeep")


class RegularWork:
    """Runs a round of steps, one after the other, in a fixed interval."""

    def __init__(self, incidents: Incidents, interval_s: float, steps: Mapping[str, Step]) -> None:
        self._incidents = incidents
        self._interval_s = interval_s
        self._steps = steps

    async def run(self) -> None:
        """Run a round after each interval until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            for task, step in list(self._steps.items()):  # a copy: a step may add other steps
                if self._incidents.is_paused(task):
                    continue
                try:
                    with self._incidents.barrier(task):
                        work = step()
                        if work is not None:
                            await work
                except StorageFailed as failure:
                    _log.warning("task.postponed", task=task, reason=str(failure))


async def run_again(incidents: Incidents, task: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task. If it fails unexpectedly, report an incident and run it again after a
    pause. The incident is closed once the task has run for :data:`RETRY_FIRST_S` seconds. Return
    when the task returns or the realm ends."""
    loop = asyncio.get_running_loop()
    while True:
        recovery_timer = loop.call_later(RETRY_FIRST_S, incidents.close, task)
        try:
            with incidents.barrier(task):
                await work()
                return
        except ENDS:
            return  # the whole realm ends
        except StorageFailed as failure:
            _log.warning("task.postponed", task=task, reason=str(failure))
        finally:
            recovery_timer.cancel()
        await asyncio.sleep(RETRY_FIRST_S)
