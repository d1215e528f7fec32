"""Whole lives of a realm on a failing disk. To repeat one: ``make sim SEED=4711``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from tests.golden.traces import recorded
from tests.sim.scenes import SCENES
from tests.sim.world import World, life_of

SEEDS = [range(n, n + 20) for n in range(0, 310, 20)]


_PROGRAM = "from tests.sim.world import life_of; print(life_of(3, ['wired', 'durables']))"
_RUN_OPTIONS: dict[str, Any] = {"check": True, "capture_output": True, "text": True}


@pytest.mark.slow
@pytest.mark.spec("C1c", "C1d", "C1e", "C1f", "C1g", "C7", "D4", "E4", "E6", "E8", "E9", "K1", "L1")
@pytest.mark.spec("L3", "L5", "Q2", "Q3", "S1", "T1", "T3", "T6", "T7", "T8", "T10", "X1", "X2")
@pytest.mark.spec(
    "D20", "X3", "X4", "X5", "D11", "D12", "D13", "D14", "D15", "J2", "J3", "J5", "J6", "Q1"
)
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_nothing_promised_is_lost_and_nothing_comes_twice(seeds: Sequence[int]) -> None:
    traces = recorded()
    for seed in seeds:
        try:
            trace = life_of(seed)
            assert traces.get(seed, trace) == trace, "it happened otherwise than recorded"
        except BaseException as error:
            error.add_note(f"make sim SEED={seed}")
            raise


def test_the_seeds_that_are_run_play_every_scene() -> None:
    """The first fifty seeds are enough."""
    played = {type(scene) for seed in range(50) for scene in World(seed).scenes}

    assert played == set(SCENES.values())


@pytest.mark.parametrize(
    "scenes",
    [
        pytest.param((), id="drawn", marks=pytest.mark.slow),
        pytest.param(("wired", "jms"), id="wired", marks=pytest.mark.slow),
    ],
)
def test_the_same_seed_gives_the_same_trace(scenes: tuple[str, ...]) -> None:
    assert life_of(7, scenes) == life_of(7, scenes)


@pytest.mark.process
def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    traces = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            **_RUN_OPTIONS,
        ).stdout.splitlines()[-1]  # the log is printed before the hash
        for seed in ("1", "2")
    }

    assert len(traces) == 1
