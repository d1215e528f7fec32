"""Whole lives of a realm on a failing disk. One of them again: ``python -m tests.sim 4711``."""

from __future__ import annotations

import pytest

from tests.sim.world import life_of

SOON = [range(n, n + 10) for n in range(0, 40, 10)]
LATER = [
    pytest.param(range(n, n + 20), marks=pytest.mark.slow, id=f"{n}-{n + 19}")
    for n in range(40, 200, 20)
]


@pytest.mark.spec("D4", "E4", "E6", "E9", "S1", "X3")
@pytest.mark.parametrize("seeds", [*SOON, *LATER], ids=str)
def test_nothing_promised_is_lost_and_nothing_comes_twice(seeds: range) -> None:
    for seed in seeds:
        try:
            life_of(seed)
        except BaseException as error:
            error.add_note(f"python -m tests.sim {seed}")
            raise


def test_a_seed_tells_the_whole_story() -> None:
    assert life_of(7) == life_of(7)
