"""Incidents: failures of a background task for one channel. The task continues with other channels.

An incident is logged once, with an id. While it is open, the task is paused for the channel: it
retries the channel after a pause, and ``/health`` shows ``degraded``.
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
"""Seconds of pause after the first failure; each further failure doubles the pause."""
RETRY_MAX_S: Final = 3_600.0
"""Longest pause in seconds."""

_PASSING: Final = (RealmStopping, Deposed, Unknown, StorageFailed)
"""Errors of the whole store, and the end of the realm. They end the task, because it would fail for
every other channel, too."""

_log = logger("penstock.upkeep")


class Incident(Struct, frozen=True):
    """An open incident, as ``/health`` shows it."""

    incident: str
    """The id of its line in the log."""
    task: str
    """The background task that failed, such as ``sealing``."""
    channel: str = ""
    """The channel or queue that the task leaves out for now; empty if the task failed as a
    whole."""


class _OpenIncident(Struct):
    incident: str
    reason: str
    pause_s: float
    again_s: float
    """Time of the next attempt, by the loop's clock."""


class Incidents:
    """The open incidents of one realm, or of a node of a cluster, which has no channels."""

    def __init__(self, name_of: Callable[[int], str | None] = lambda channel_id: "") -> None:
        self._name_of = name_of
        """Returns the name of a channel; None if it was deleted."""
        self._open: dict[tuple[str, int], _OpenIncident] = {}
        self._tasks: set[str] = set()
        """Names of the tasks that have had an incident since the realm started."""

    def report(self, task: str, failure: Exception, channel_id: int = 0) -> None:
        """Log ``failure`` of a task, unless the last attempt failed in the same way, and pause the
        task for the channel."""
        now_s = asyncio.get_running_loop().time()
        last = self._open.get((task, channel_id))
        reason = repr(failure)
        pause_s = RETRY_FIRST_S if last is None else min(2 * last.pause_s, RETRY_MAX_S)
        if last is None or last.reason != reason:
            incident = new_incident_id()
            name = self._name_of(channel_id) or ""
            _log.error("task.failed", incident=incident, task=task, channel=name, exc_info=failure)
        else:
            incident = last.incident
        self._open[task, channel_id] = _OpenIncident(
            incident, reason, pause_s, again_s=now_s + pause_s
        )
        self._tasks.add(task)

    def is_paused(self, task: str, channel_id: int | None = 0) -> bool:
        """Whether the task has to skip the channel until its pause is over. With None, whether the
        task has to skip any channel."""
        if not self._open:
            return False
        now_s = asyncio.get_running_loop().time()
        if channel_id is None:
            return any(now_s < self._open[task, id].again_s for id in self.channels_of(task))
        incident = self._open.get((task, channel_id))
        return incident is not None and now_s < incident.again_s

    def channels_of(self, task: str) -> list[int]:
        """Return the ids of the channels with an open incident of the task; 0 stands for the task
        as a whole."""
        return [channel_id for name, channel_id in self._open if name == task]

    def close(self, task: str, channel_id: int | None = 0) -> None:
        """Close the incident of a task that has succeeded for a channel; with None, all incidents
        of the task."""
        for id in (channel_id,) if channel_id is not None else self.channels_of(task):
            if self._open and self._open.pop((task, id), None) is not None:
                _log.info("task.recovered", task=task, channel=self._name_of(id) or "")

    @contextmanager
    def barrier(
        self, task: str, channel_id: int = 0, ends: tuple[type[Exception], ...] = _PASSING
    ) -> Iterator[None]:
        """Report an unexpected failure of the ``with`` block as an incident, so that the task
        continues with other channels. Errors in ``ends`` are raised again and end the task; by
        default these are failures of the disk and the end of the realm."""
        try:
            yield
        except ends:
            raise
        except Exception as failure:  # noqa: BLE001  a task's barrier: it is logged as an incident
            self.report(task, failure, channel_id)
        else:
            self.close(task, channel_id)

    def counts(self) -> dict[str, int]:
        """Return the number of open incidents by task; 0 for tasks whose incidents are closed."""
        counts = Counter(dict.fromkeys(sorted(self._tasks), 0))
        counts.update(incident.task for incident in self.open())
        return dict(counts)

    def open(self) -> list[Incident]:
        """Return the open incidents; those of deleted channels are dropped."""
        # Deleted channels are dropped here, when they are listed, and not with each deletion.
        for task, channel_id in list(self._open):
            if channel_id and self._name_of(channel_id) is None:
                del self._open[task, channel_id]
        return [
            Incident(opened.incident, task, self._name_of(channel_id) or "")
            for (task, channel_id), opened in self._open.items()
        ]
