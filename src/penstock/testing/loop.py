"""A seeded asyncio loop on virtual time: same seed, same interleaving, same result."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

START_US = 1_700_000_000_000_000
"""What the clock shows when a loop is made, in microseconds since the epoch."""

ROUNDS_MAX = 20_000
"""Rounds of a loop within one instant; a life that needs more has stopped getting anywhere."""


CPU_S_MAX = 60
"""Processor time of one life; some hundred times what it takes."""


class Deadlock(AssertionError):
    """Every task waits for another and no timer is set: nothing would ever happen again."""


class Livelock(AssertionError):
    """Tasks wake each other without end and no time passes: nothing else would ever happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for sockets, move the clock to the next timer."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits and no timer is set")
        self.loop.elapsed_s += max(timeout, 0.0)
        return []


class SimLoop(asyncio.SelectorEventLoop):
    """Runs what is ready in an order drawn from the seed; sleeping costs no time."""

    _ready: deque[asyncio.Handle]

    def __init__(self, random: Random) -> None:
        self.elapsed_s = 0.0
        self._random = random
        self._instant_s = 0.0
        self._rounds = 0
        """In this instant."""
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed_s

    def now_us(self) -> int:
        """The loop is a :class:`~penstock.core.ports.Clock`, too."""
        return START_US + int(self.elapsed_s * 1_000_000)

    def _run_once(self) -> None:
        self._count_round()
        ready = list(self._ready)
        self._random.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]  # private to asyncio, stable since 3.4

    def _count_round(self) -> None:
        if self.elapsed_s != self._instant_s:
            self._instant_s, self._rounds = self.elapsed_s, 0
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            self._rounds = 0  # whoever hears of it may end its tasks
            busy = ", ".join(sorted({_wakes(handle) for handle in self._ready}))
            raise Livelock(
                f"{ROUNDS_MAX:,} rounds at {self.elapsed_s:.6f} s and no time passes; busy: {busy}"
            )


def _wakes(handle: asyncio.Handle) -> str:
    """What a handle goes on with, for people."""
    callback: Any = handle._callback  # type: ignore[attr-defined]  # asyncio shows it in repr only
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine: Any = task.get_coro()
        return str(coroutine.__qualname__)
    return str(getattr(callback, "__qualname__", callback))


class SlowOffload:
    """Blocking calls made right here, each seeming to take a moment of virtual time."""

    def __init__(self, random: Random, *, longest_s: float) -> None:
        self._random = random
        self._longest_s = longest_s

    async def __call__(self, call: Callable[[], T]) -> T:
        await asyncio.sleep(self._random.random() * self._longest_s)
        made = call()
        await asyncio.sleep(self._random.random() * self._longest_s)
        return made


async def pass_time(seconds: float) -> None:
    """Let virtual time pass; a test on a real loop has no use for this."""
    assert isinstance(asyncio.get_running_loop(), SimLoop), "real time is not ours to spend"
    await asyncio.sleep(seconds)


def simulate(life: Coroutine[Any, Any, T], random: Random) -> T:
    """Run ``life`` to its end on a loop of its own.

    Raises :class:`Deadlock` and :class:`Livelock` when it would never get there.
    """
    with _cpu_time_limited(), asyncio.Runner(loop_factory=lambda: SimLoop(random)) as runner:
        return runner.run(life)


@contextlib.contextmanager
def _cpu_time_limited() -> Iterator[None]:
    """One step of a task that never ends is no round of the loop: only the time it takes tells."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return

    def stop(*_: object) -> None:
        raise Livelock(f"{CPU_S_MAX} s of computing, and the life has not come to its end")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
