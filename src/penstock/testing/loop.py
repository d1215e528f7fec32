"""A seeded asyncio loop on virtual time: same seed, same interleaving, same result."""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

START_US = 1_700_000_000_000_000
"""What the clock shows when a loop is made, in microseconds since the epoch."""


class Deadlock(AssertionError):
    """Every task waits for another and no timer is set: nothing would ever happen again."""


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
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed_s

    def now_us(self) -> int:
        """The loop is a :class:`~penstock.core.ports.Clock`, too."""
        return START_US + int(self.elapsed_s * 1_000_000)

    def _run_once(self) -> None:
        ready = list(self._ready)
        self._random.shuffle(ready)
        self._ready.clear()
        self._ready.extend(ready)
        super()._run_once()  # type: ignore[misc]  # private to asyncio, stable since 3.4


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
    """Run ``life`` to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(random)) as runner:
        return runner.run(life)
