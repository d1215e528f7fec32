"""The loop stays awake for a client that waits for each of its answers."""

from __future__ import annotations

import asyncio

import pytest

from penstock_server.runtime.writer.linger import SMALL_BYTES, SOON_MIN, Linger
from penstock_testing.loop import simulated

LONGEST_S = 0.000_5
LOOK_S = 0.000_01
"""Seconds that one poll takes here."""


class Turns:
    """A shard without further work after each group, with a separate clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.looks = 0
        self.linger = Linger(LONGEST_S, self._clock)

    def _clock(self) -> float:
        self.looks += 1
        self.now_s += LOOK_S
        return self.now_s

    def group(self, *sizes: int, after_s: float = 0.000_1, requests: int = 1) -> None:
        """Serve a group after an idle time of ``after_s`` seconds."""
        idle = asyncio.get_running_loop().create_future()
        self.linger.stay(idle)
        self.now_s += after_s
        idle.set_result(None)
        self.linger.forget_after_idling()
        self.linger.count_group(requests, [bytes(size) for size in sizes])

    async def awake(self) -> int:
        """Return how often the loop polls while no work arrives."""
        idle = asyncio.get_running_loop().create_future()
        before = self.looks
        self.linger.stay(idle)
        for _ in range(1_000):
            await asyncio.sleep(0)
        return self.looks - before - 1


def after(lone: int) -> Turns:
    """Return a shard after ``count`` lone publishes in quick succession."""
    turns = Turns()
    for _ in range(lone):
        turns.group(128)
    return turns


@pytest.mark.parametrize("lone", range(SOON_MIN))
@simulated
async def test_the_loop_sleeps_until_several_lone_publishes_came_in_succession(lone: int) -> None:
    turns = after(lone)

    assert await turns.awake() == 0


@simulated
async def test_the_loop_stays_awake_no_longer_than_the_limit() -> None:
    turns = after(SOON_MIN)

    assert await turns.awake() == pytest.approx(LONGEST_S / LOOK_S, abs=1)


@simulated
async def test_the_loop_stops_polling_once_work_arrives() -> None:
    turns = after(SOON_MIN)
    idle = asyncio.get_running_loop().create_future()
    turns.linger.stay(idle)
    await asyncio.sleep(0)

    idle.set_result(None)
    before = turns.looks
    for _ in range(10):
        await asyncio.sleep(0)
    assert turns.looks == before


@pytest.mark.parametrize(
    ("sizes", "after_s", "requests"),
    [((128,), 2 * LONGEST_S, 1), ((SMALL_BYTES + 1,), 0.0, 1), ((128, 128), 0.0, 2)],
    ids=["late", "large", "not alone"],
)
@simulated
async def test_the_loop_sleeps_again_after_a_late_large_or_shared_publish(
    sizes: tuple[int, ...], after_s: float, requests: int
) -> None:
    turns = after(2 * SOON_MIN)
    turns.group(*sizes, after_s=after_s, requests=requests)

    assert await turns.awake() == 0


@simulated
async def test_an_acknowledgement_between_two_publishes_changes_nothing() -> None:
    turns = Turns()
    for _ in range(SOON_MIN):
        turns.group(128)
        turns.group()

    assert await turns.awake() > 0
