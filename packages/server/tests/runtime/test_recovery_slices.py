"""Long work is done in slices, and others have a turn after each."""

from __future__ import annotations

from penstock_server.runtime.upkeep.recovery import SLICE_S, Slices
from penstock_testing.loop import simulated
from tests.loops import the_loop

STEPS = 10
A_SLICE = 4
"""Steps that fill one, and a little more."""


@simulated
async def test_other_tasks_run_after_each_slice_and_not_after_each_step() -> None:
    the_loop().shuffles = False
    done: list[int] = []
    seen: list[int] = []

    async def other_task() -> None:
        while len(done) < STEPS:
            seen.append(len(done))
            await slices_of_other.next()

    slices, slices_of_other = Slices(), Slices()
    beside = the_loop().create_task(other_task())
    for step in range(STEPS):
        done.append(step)
        the_loop().elapsed_s += 1.01 * SLICE_S / A_SLICE
        if slices.is_over:
            await slices.next()
    await beside

    assert set(seen) == {A_SLICE, 2 * A_SLICE}
