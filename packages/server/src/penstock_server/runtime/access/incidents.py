"""Incidents of background tasks: what one of them could not do for one channel, while it goes on
with the others.

An incident is logged once, under a number. While it is open the channel is set aside: the task
tries it again after a pause, and ``/health`` shows ``degraded``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import Deposed, RealmStopping, StorageFailed, Unknown
from penstock_server.runtime.access.internal_errors import new_incident_id

RETRY_FIRST_S: Final = 30.0
"""Pause after the first failure; twice as long after each that follows ..."""
RETRY_MAX_S: Final = 3_600.0
"""... but not longer than this."""

_PASSING: Final = (RealmStopping, Deposed, Unknown, StorageFailed)
"""Failures of the store or the end of the realm, which are of no single channel."""

_log = logger("penstock.upkeep")


class Incident(Struct, frozen=True):
    incident: str
    """The number under which the log describes it."""
    task: str
    """The background task that failed, such as ``sealing``."""
    channel: str = ""
    """The channel or queue that is set aside; empty: the task failed as a whole."""


class _Open(Struct):
    incident: str
    reason: str
    pause_s: float
    again_s: float
    """When the task tries again, by the loop's clock."""


class Incidents:
    """The open incidents of one realm, or of a node of a cluster, which has no channels."""

    def __init__(self, name_of: Callable[[int], str | None] = lambda channel_id: "") -> None:
        self._name_of = name_of
        """Gives the name of a channel; None: it was deleted."""
        self._open: dict[tuple[str, int], _Open] = {}
        self._tasks: set[str] = set()
        """Tasks that have had an incident."""

    def report(self, task: str, failure: Exception, channel_id: int = 0) -> None:
        """Log ``failure`` of a task, unless it is the failure of the last attempt again, and set
        the channel aside."""
        now_s = asyncio.get_running_loop().time()
        found = self._open.get((task, channel_id))
        reason = repr(failure)
        pause_s = RETRY_FIRST_S if found is None else min(2 * found.pause_s, RETRY_MAX_S)
        if found is None or found.reason != reason:
            incident = new_incident_id()
            name = self._name_of(channel_id) or ""
            _log.error("task.failed", incident=incident, task=task, channel=name, exc_info=failure)
        else:
            incident = found.incident
        self._open[task, channel_id] = _Open(incident, reason, pause_s, again_s=now_s + pause_s)
        self._tasks.add(task)

    def is_aside(self, task: str, channel_id: int | None = 0) -> bool:
        """Whether the task is to leave the channel alone for now; None: any channel."""
        if not self._open:
            return False
        now_s = asyncio.get_running_loop().time()
        if channel_id is None:
            return any(now_s < self._open[task, each].again_s for each in self.channels_of(task))
        found = self._open.get((task, channel_id))
        return found is not None and now_s < found.again_s

    def channels_of(self, task: str) -> list[int]:
        """The channels that a task has set aside, 0 being the task as a whole."""
        return [channel_id for name, channel_id in self._open if name == task]

    def close(self, task: str, channel_id: int | None = 0) -> None:
        """The task has done its work again: its incident is over, or with None all of its
        incidents."""
        for each in (channel_id,) if channel_id is not None else self.channels_of(task):
            if self._open and self._open.pop((task, each), None) is not None:
                _log.info("task.recovered", task=task, channel=self._name_of(each) or "")

    @contextmanager
    def barrier(
        self, task: str, channel_id: int = 0, ends: tuple[type[Exception], ...] = _PASSING
    ) -> Iterator[None]:
        """Report an unexpected failure of a task, so that it goes on with other channels. Raises
        what ``ends`` the task, which without it is what ends the realm or is the disk's."""
        try:
            yield
        except ends:
            raise
        except Exception as failure:  # noqa: BLE001  a task's barrier: it is logged as an incident
            self.report(task, failure, channel_id)
        else:
            self.close(task, channel_id)

    def counts(self) -> dict[str, int]:
        """How many incidents are open, by task; 0 for a task that has had one."""
        counts = Counter(dict.fromkeys(sorted(self._tasks), 0))
        counts.update(each.task for each in self.open())
        return dict(counts)

    def open(self) -> list[Incident]:
        """The open incidents, without those of channels that have been deleted."""
        for task, channel_id in list(self._open):
            if channel_id and self._name_of(channel_id) is None:
                del self._open[task, channel_id]
        return [
            Incident(found.incident, task, self._name_of(channel_id) or "")
            for (task, channel_id), found in self._open.items()
        ]
