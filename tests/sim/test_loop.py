"""A life without progress fails, and names the busy tasks."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock_testing import loop
from penstock_testing.loop import (
    Deadlock,
    Livelock,
    UnretrievedFailure,
    pass_time,
    simulate,
    simulated,
)


async def _throw(ball: asyncio.Event, back: asyncio.Event) -> None:
    while True:
        await ball.wait()
        ball.clear()
        back.set()


async def _play_without_end() -> None:
    near, far = asyncio.Event(), asyncio.Event()
    near.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(_throw(near, far))
        group.create_task(_throw(far, near))


async def _never_wait() -> None:
    while True:
        pass


@pytest.mark.slow
def test_tasks_that_wake_each_other_without_end_are_a_livelock() -> None:
    with pytest.raises(Livelock, match=r"time does not pass .*; busy: _throw"):
        simulate(_play_without_end(), Random(1))


@pytest.mark.slow
@simulated
async def test_a_life_may_take_any_number_of_rounds_while_time_passes() -> None:
    for _ in range(loop.ROUNDS_MAX):
        await pass_time(1e-3)
        await asyncio.sleep(0)

    assert asyncio.get_running_loop().time() >= loop.ROUNDS_MAX * 1e-3


def test_a_step_that_never_ends_is_a_livelock() -> None:
    with pytest.raises(Livelock, match=r"within 0\.05 s of processor time"):
        simulate(_never_wait(), Random(1), cpu_s_max=0.05)


def test_tasks_that_wait_for_each_other_are_a_deadlock() -> None:
    with pytest.raises(Deadlock):
        simulate(asyncio.Event().wait(), Random(1))


async def _fail() -> None:
    raise OSError("disk full")


async def _leave_one_behind() -> None:
    failing = asyncio.get_running_loop().create_task(_fail())
    await pass_time(1)
    assert failing.done()


def test_a_failure_of_a_task_that_nothing_awaits_fails_the_life() -> None:
    with pytest.raises(UnretrievedFailure, match="_fail failed in the background") as unheard:
        simulate(_leave_one_behind(), Random(1))

    assert str(unheard.value.__cause__) == "disk full"
