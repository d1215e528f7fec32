"""Disks that decay between two lives. To repeat one: ``make sim SEED=4711 ARGS=--rot``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.rot import rot_of

SEEDS = [range(n, n + 20) for n in range(0, 60, 20)]


@pytest.mark.slow
@pytest.mark.spec("S1")
@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
def test_damage_is_reported_and_all_other_events_are_served(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try:
            rot_of(seed, tmp_path / str(seed))
        except BaseException as error:
            error.add_note(f"make sim SEED={seed} ARGS=--rot")
            raise
