"""Evaluates expensive selectors in a thread, one slice at a time, with a turn for each waiting
client."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

from penstock_core.loggers import logger
from penstock_core.tasks import start_task

EvaluateSlice = Callable[[], Awaitable[bool]]
"""Evaluates the next slice of a job, and returns whether the job has more. If it raises, the error
is logged and the job ends."""

_log = logger("penstock.selectors")


class SelectorWorker:
    """Evaluates the slices of all jobs in round-robin order, until no job has more.

    Jobs with the same key share one turn, so that a session with many expensive subscriptions gets
    no more of the thread than another.
    """

    def __init__(self) -> None:
        self._turns: dict[Hashable, deque[EvaluateSlice]] = {}
        """The jobs of each key; the key whose turn is next comes first."""
        self._task: asyncio.Task[None] | None = None
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no job waits or is evaluated."""
        return self._task is None

    def submit(self, key: Hashable, job: EvaluateSlice) -> None:
        """Add a job after all jobs that wait for the turn of ``key``."""
        self._turns.setdefault(key, deque()).append(job)
        if self._task is None and not self.is_closed:
            self._task = start_task(self._evaluate())

    def close(self) -> None:
        """Evaluate nothing more."""
        self.is_closed = True
        self._turns.clear()
        if self._task is not None:
            self._task.cancel()

    async def _evaluate(self) -> None:
        """Evaluate slices until no job has more."""
        while self._turns:
            key, jobs = next(iter(self._turns.items()))
            del self._turns[key]
            job = jobs.popleft()
            try:
                if await job():
                    jobs.append(job)
            except Exception:  # noqa: BLE001  the other jobs must not end with it
                _log.exception("selectors.job_failed")
            # The key goes to the end of the turns. Jobs with it that were submitted during the
            # slice stay behind those that waited before.
            if jobs:
                self._turns[key] = jobs + self._turns.pop(key, deque())
            # Without a thread (in simulations) the slice runs in the loop: let other tasks also
            # run.
            await asyncio.sleep(0)
        self._task = None
