"""Background work of a realm that time alone makes due, and the tasks in which all of it runs.

Whatever fails in one of them is reported as an incident; the task goes on with other channels, and
with other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import Deposed, RealmStopping, StorageFailed, Unknown
from penstock_server.runtime.access.incidents import RETRY_FIRST_S, Incidents

ENDS: Final = (RealmStopping, Deposed, Unknown)
"""Failures that mean that the realm ends, and every task with it."""

Step = Callable[[], Awaitable[None] | None]

_log = logger("penstock.upkeep")


class RegularWork:
    """Does the steps of a round one after the other, again and again."""

    def __init__(self, incidents: Incidents, interval_s: float, steps: Mapping[str, Step]) -> None:
        self._incidents = incidents
        self._interval_s = interval_s
        self._steps = steps

    async def run(self) -> None:
        """Do a round after each interval until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            for task, step in self._steps.items():
                if self._incidents.is_aside(task):
                    continue
                try:
                    with self._incidents.barrier(task):
                        work = step()
                        if work is not None:
                            await work
                except StorageFailed as failure:
                    _log.warning("task.postponed", task=task, reason=str(failure))


async def run_again(incidents: Incidents, task: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run a background task; one that fails unexpectedly is run again after a pause. Its incident
    is over once it has run for as long. Returns when the task does, or the realm ends."""
    loop = asyncio.get_running_loop()
    while True:
        recovered = loop.call_later(RETRY_FIRST_S, incidents.close, task)
        try:
            with incidents.barrier(task):
                await work()
                return
        except ENDS:
            return
        except StorageFailed as failure:
            _log.warning("task.postponed", task=task, reason=str(failure))
        finally:
            recovered.cancel()
        await asyncio.sleep(RETRY_FIRST_S)
