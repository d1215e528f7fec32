"""The worker of selectors gives each key a turn, for one slice of one of its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock_server.runtime.delivery.selector_worker import SelectorWorker
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("F5")


class Slices:
    """Jobs that write down which of their slices were evaluated."""

    def __init__(self) -> None:
        self.evaluated: list[str] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    def job(self, name: str, count: int) -> Callable[[], Awaitable[bool]]:
        """Return a job of ``count`` slices."""
        done = 0

        async def evaluate_slice() -> bool:
            nonlocal done
            await self.is_open.wait()
            self.evaluated.append(name)
            done += 1
            return done < count

        return evaluate_slice


@simulated
async def test_each_key_has_a_turn_however_many_jobs_it_has() -> None:
    worker, slices = SelectorWorker(), Slices()
    for name in ("a1", "a2", "a3"):
        worker.submit("a", slices.job(name, 2))
    worker.submit("b", slices.job("b", 3))
    await pass_time(0.1)

    assert slices.evaluated == ["a1", "b", "a2", "b", "a3", "b", "a1", "a2", "a3"]
    assert worker.is_idle


@simulated
async def test_a_job_that_comes_during_a_slice_waits_behind_the_others_of_its_key() -> None:
    worker, slices = SelectorWorker(), Slices()
    slices.is_open.clear()
    worker.submit("a", slices.job("first", 1))
    worker.submit("a", slices.job("second", 1))
    await pass_time(0.1)
    worker.submit("a", slices.job("third", 1))
    worker.submit("b", slices.job("other", 1))
    slices.is_open.set()
    await pass_time(0.1)

    assert slices.evaluated == ["first", "other", "second", "third"]


@simulated
async def test_a_closed_worker_evaluates_nothing_more() -> None:
    worker, slices = SelectorWorker(), Slices()
    slices.is_open.clear()
    worker.submit("a", slices.job("before", 2))
    await pass_time(0.1)
    worker.close()
    worker.submit("b", slices.job("after", 1))
    slices.is_open.set()
    await pass_time(0.1)

    assert slices.evaluated == []
    assert worker.is_closed


@simulated
async def test_a_job_that_fails_ends_alone() -> None:
    worker, slices = SelectorWorker(), Slices()

    async def fail() -> bool:
        raise LookupError("not foreseen")

    worker.submit("a", fail)
    worker.submit("a", slices.job("behind", 1))
    worker.submit("b", slices.job("other", 2))
    await pass_time(0.1)

    assert slices.evaluated == ["other", "behind", "other"]
    assert worker.is_idle
