"""A loop whose clock stands still while a test computes, and leaps while the test waits.

The clock never waits for the machine. It goes to the next timer at once when nothing is left to do,
no thread of the loop's executor computes, and the thread that made the loop waits in a call. A day
is a few dozen leaps, because the upkeep of a realm, which looks at its state every second, is done
once in each leap.
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
"""Whether timers that are set in this context may be late, by the length of a leap."""

LEAPS: Final = 64
"""A wait is divided into as many leaps, and more where something is due in between."""
LEAP_MIN_S: Final = 0.001

DAY_S: Final = 86_400.0
PATIENCE_S: Final = 366 * DAY_S
"""Longest virtual time for which a blocking call may wait for something that does not come."""


class StillWaiting(AssertionError):
    """A call has waited for years of virtual time: what it waits for never comes."""


class _LeapingSelector(selectors.DefaultSelector):
    """Polls real sockets, and moves the clock instead of waiting for the next timer."""

    loop: LeapingLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.settle() or self.loop.leap(timeout):
            return []
        return super().select(None)


class LeapingLoop(VirtualTimeLoop):
    """A loop on virtual time with real sockets and threads."""

    def __init__(self, start_us: int) -> None:
        """``start_us`` is what the clock shows first, in microseconds since 1970."""
        self.start_us = start_us
        self.next_due_us: Callable[[], int] = lambda: NEVER_US
        """Gives when the realm has something to do next that must not be late."""
        self._waits = 0
        """Calls of the thread that made the loop, which let time pass."""
        self._jobs = 0
        """Jobs of the executor that compute, and hold time."""
        self._timers: list[asyncio.TimerHandle] = []
        """Heap of the timers that are never late. Cancelled ones are removed now and then."""
        self._timers_max = 64
        self._settling: list[asyncio.Future[None]] = []
        self._target_s = 0.0
        """Where the current leaps lead to."""
        self._leap_s = LEAP_MIN_S
        selector = _LeapingSelector()
        selector.loop = self
        super().__init__(selector)
        # A timer is due when it is earlier than the time and this, which must be more than the
        # rounding error of the time after some years.
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
            if len(self._timers) >= self._timers_max:
                self._timers = [timer for timer in self._timers if not self._is_over(timer)]
                heapq.heapify(self._timers)
                self._timers_max = 2 * len(self._timers) + 64
            heapq.heappush(self._timers, timer)
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
        """The thread of the loop ends with it: cancelled tasks may still wait for timers."""
        with self.time_passes():
            return super().run_until_complete(future)

    def _job_ended(self, _: object) -> None:
        self._jobs -= 1

    # --- who lets time pass --------------------------------------------------------------

    @contextmanager
    def time_passes(self) -> Iterator[None]:
        """Let time pass meanwhile."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    @contextmanager
    def job_waits(self) -> Iterator[None]:
        """A job of the executor does not compute meanwhile."""
        self._jobs -= 1
        try:
            yield
        finally:
            self._jobs += 1

    # --- passing time --------------------------------------------------------------------

    async def settled(self) -> None:
        """Wait until nothing is left to do at this time."""
        future = self.create_future()
        self._settling.append(future)
        await future

    def settle(self) -> bool:
        """Tell tasks that wait in :meth:`settled` that the loop is idle; gives whether any did."""
        if self._jobs or not self._settling:
            return False
        settling, self._settling = self._settling, []
        for future in settling:
            if not future.done():
                future.set_result(None)
        return True

    def leap(self, timeout: float | None) -> bool:
        """Move the clock to the next timer that must not be late, or to what is due in the realm,
        or by a share of that; gives whether time may pass. The first timer of all is ``timeout``
        seconds away."""
        if not self._waits or self._jobs or timeout is None:
            return False
        now_s = self.elapsed_s
        while self._timers and self._is_over(self._timers[0]):
            heapq.heappop(self._timers)
        to_s = self._timers[0].when() if self._timers else now_s + timeout
        if to_s != self._target_s:
            self._target_s = to_s
            self._leap_s = max(LEAP_MIN_S, (to_s - now_s) / LEAPS)
        to_s = min(to_s, now_s + self._leap_s, (self.next_due_us() - self.start_us) / 1_000_000)
        self.elapsed_s = max(to_s, now_s + timeout)
        return True

    def _is_over(self, timer: asyncio.TimerHandle) -> bool:
        return timer.cancelled() or timer.when() <= self.elapsed_s


class _Job(threading.local):
    loop: LeapingLoop | None = None
    """The loop on whose executor this thread works."""


_job = _Job()


class LeapingThread(LoopThread):
    """The thread of a loop on virtual time. Time passes while the thread that made it waits."""

    def __init__(self, loop: LeapingLoop) -> None:
        self._owner = threading.get_ident()
        self._leaping = loop
        super().__init__(lambda: loop)

    @property
    def is_owner(self) -> bool:
        """Whether the calling thread is the one whose calls let time pass."""
        return threading.get_ident() == self._owner

    def call(
        self,
        work: Coroutine[Any, Any, T],
        *,
        patience_s: float | None = PATIENCE_S,
        name: str = "",
    ) -> T:
        """Run ``work`` on the loop, and wait for its result; raises :class:`StillWaiting`, with the
        name of the work, after ``patience_s`` virtual seconds."""
        __tracebackhide__ = True
        if self.is_owner:
            name = name or getattr(work, "__qualname__", "a call")
            waiting = self._waited(work, patience_s, name)
        elif _job.loop is self._leaping:
            waiting = self._waited_in_job(work)
        else:
            return super().call(work)
        try:
            return super().call(waiting)
        finally:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:  # it was refused
                work.close()

    async def _waited(self, work: Coroutine[Any, Any, T], patience_s: float | None, name: str) -> T:
        __tracebackhide__ = True
        patience = asyncio.timeout(patience_s)
        try:
            with self._leaping.time_passes():
                async with patience:
                    return await work
        except TimeoutError:
            if not patience.expired():
                raise
        days = (patience_s or 0) / DAY_S
        raise StillWaiting(
            f"{name} has waited for {days:.0f} days of virtual time, and what it waits for has not "
            "come; give it a timeout"
        )

    async def _waited_in_job(self, work: Coroutine[Any, Any, T]) -> T:
        with self._leaping.job_waits():
            return await work
