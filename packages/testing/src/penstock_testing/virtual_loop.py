"""A loop whose clock stands still while a test computes, and leaps while the test waits.

The clock jumps to the next timer as soon as the loop is idle, no thread of its executor computes,
and the thread that created the loop waits in a call. A day takes a few dozen leaps: the upkeep of a
realm, which normally runs every second, runs once in each leap.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from penstock.client.connection.threads import LoopThread
from penstock_core.channel.retention import NEVER_US
from penstock_testing.loop import VirtualTimeLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IS_UPKEEP: Final[ContextVar[bool]] = ContextVar("penstock_is_upkeep", default=False)
"""Whether timers that are set in this context may be late by up to one leap."""

LEAPS: Final = 64
"""Number of leaps of one wait; further leaps are added for timers and events due in between."""
LEAP_MIN_S: Final = 0.001
"""Length of the shortest leap, in seconds."""

DAY_S: Final = 86_400.0
PATIENCE_S: Final = 366 * DAY_S
"""Longest virtual time of a blocking call without a result."""


class StillWaiting(AssertionError):
    """A call has waited for so much virtual time that it will never return."""


class _LeapingSelector(selectors.DefaultSelector):
    """Polls real sockets, and moves the clock instead of waiting for the next timer."""

    loop: LeapingLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Real sockets come first, so that received bytes are processed before the clock moves.
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.settle() or self.loop.leap(timeout):
            return []
        return super().select(None)


class LeapingLoop(VirtualTimeLoop):
    """A loop on virtual time with real sockets and threads."""

    def __init__(self, start_us: int) -> None:
        """``start_us`` is the initial time of the clock, in microseconds since 1970."""
        self.start_us = start_us
        self.next_due_us: Callable[[], int] = lambda: NEVER_US
        """Returns the next time at which the realm has punctual work."""
        self._waits = 0
        """Waiting calls of the thread that created the loop; time passes only if there is one."""
        self._jobs = 0
        """Computing jobs of the executor; time stands still while they run."""
        self.timers: list[asyncio.TimerHandle] = []
        """Heap of the punctual timers. Cancelled timers are removed when the heap is full."""
        self._timers_max = 64
        """Size at which the heap counts as full."""
        self._settling: list[asyncio.Future[None]] = []
        """Futures of :meth:`settled`, which get their result when the loop is idle at the current
        time."""
        self._target_s = 0.0
        """The target time of the current leaps, in virtual seconds."""
        self._leap_s = LEAP_MIN_S
        """Length of a leap towards ``_target_s``, in seconds."""
        selector = _LeapingSelector()
        selector.loop = self
        super().__init__(selector)
        # asyncio runs timers up to this much early. The value must exceed the rounding error of the
        # time after some years; otherwise a due timer would not run and the loop would spin.
        self._clock_resolution = 1e-6

    def steady_us(self) -> int:
        return round(self.elapsed_s * 1_000_000)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        is_upkeep = IS_UPKEEP.get() if context is None else context.get(IS_UPKEEP, False)
        if not is_upkeep:
            if len(self.timers) >= self._timers_max:
                self.timers = [timer for timer in self.timers if not self._is_over(timer)]
                heapq.heapify(self.timers)
                # The limit grows with the heap, so that cleaning takes constant time per timer.
                self._timers_max = 2 * len(self.timers) + 64
            heapq.heappush(self.timers, timer)
        return timer

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[Unpack[Ts]], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        def job() -> T:
            _job.loop = self
            try:
                return func(*args)
            finally:
                _job.loop = None

        future = super().run_in_executor(executor, job)
        self._jobs += 1
        future.add_done_callback(self._job_ended)
        return future

    def run_until_complete(self, future: Any) -> Any:
        """Run the loop until ``future`` is done, and let time pass. The loop's thread calls this at
        its end, when cancelled tasks may still wait for timers."""
        with self.time_passes():
            return super().run_until_complete(future)

    def _job_ended(self, _: object) -> None:
        self._jobs -= 1

    # --- conditions for the passing of time ----------------------------------------------

    @contextmanager
    def time_passes(self) -> Iterator[None]:
        """Let time pass within the block."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    @contextmanager
    def job_waits(self) -> Iterator[None]:
        """Mark the current job of the executor as waiting, so that time may pass."""
        self._jobs -= 1
        try:
            yield
        finally:
            self._jobs += 1

    # --- passing time --------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until the loop is idle at the current time."""
        future = self.create_future()
        self._settling.append(future)
        await future

    def settle(self) -> bool:
        """Wake the tasks that wait in :meth:`settled`, and return whether there were any."""
        if self._jobs or not self._settling:
            return False
        settling, self._settling = self._settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)
        return True

    def leap(self, timeout: float | None) -> bool:
        """Move the clock by one leap, at most to the next punctual timer or the next due time of
        the realm. Return whether time may pass. The first timer is due in ``timeout`` seconds."""
        if not self._waits or self._jobs or timeout is None:
            return False
        now_s = self.elapsed_s
        while self.timers and self._is_over(self.timers[0]):
            heapq.heappop(self.timers)
        to_s = self.timers[0].when() if self.timers else now_s + timeout
        if to_s != self._target_s:
            self._target_s = to_s
            self._leap_s = max(LEAP_MIN_S, (to_s - now_s) / LEAPS)
        to_s = min(to_s, now_s + self._leap_s, (self.next_due_us() - self.start_us) / 1_000_000)
        # No timer is due before ``timeout``, so time may always pass up to it.
        self.elapsed_s = max(to_s, now_s + timeout)
        return True

    def _is_over(self, timer: asyncio.TimerHandle) -> bool:
        """Return whether a timer will not run any more, or is due already."""
        return timer.cancelled() or timer.when() <= self.elapsed_s


class _Job(threading.local):
    """The job that the current thread executes."""

    loop: LeapingLoop | None = None
    """The loop whose executor runs this thread."""


_job = _Job()


class LeapingThread(LoopThread):
    """The thread of a loop on virtual time. Time passes while the thread that created it waits."""

    def __init__(self, loop: LeapingLoop) -> None:
        self._owner = threading.get_ident()
        self._leaping = loop
        super().__init__(lambda: loop)

    @property
    def is_owner(self) -> bool:
        """Whether calls of the current thread let time pass."""
        return threading.get_ident() == self._owner

    def call(
        self,
        work: Coroutine[Any, Any, T],
        *,
        patience_s: float | None = PATIENCE_S,
        name: str = "",
    ) -> T:
        """Run ``work`` on the loop, and return its result. Raises :class:`StillWaiting`, with the
        name of the work, after ``patience_s`` virtual seconds."""
        __tracebackhide__ = True
        if self.is_owner:
            name = name or getattr(work, "__qualname__", "a call")
            waiting = self._await_with_patience(work, patience_s, name)
        elif _job.loop is self._leaping:
            waiting = self._await_as_job(work)
        else:
            return super().call(work)
        try:
            return super().call(waiting)
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:  # the call was refused
                work.close()

    async def _await_with_patience(
        self, work: Coroutine[Any, Any, T], patience_s: float | None, name: str
    ) -> T:
        """Return the result of ``work`` while time passes. Raises :class:`StillWaiting`."""
        __tracebackhide__ = True
        patience = asyncio.timeout(patience_s)
        try:
            with self._leaping.time_passes():
                async with patience:
                    return await work
        except TimeoutError:
            # A timeout of the work itself is its result.
            if not patience.expired():
                raise
        days = (patience_s or 0) / DAY_S
        raise StillWaiting(
            f"{name} has waited for {days:.0f} days of virtual time without a result; "
            "pass a timeout"
        )

    async def _await_as_job(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work`` that a job of the executor waits for."""
        with self._leaping.job_waits():
            return await work
