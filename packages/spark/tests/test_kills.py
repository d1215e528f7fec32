"""Hundreds of kills of drivers and realms: every row is published once, a micro-batch at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.spark.tests.kills import run

SEEDS = 150
"""What is affordable every time; ``python -m packages.spark.tests.kills 0 10000`` for a night."""


@pytest.mark.spec("X1", "X3", "X4")
@pytest.mark.slow
@pytest.mark.process
def test_whoever_is_killed_wherever_every_row_is_published_once(tmp_path: Path) -> None:
    report = run(range(SEEDS), tmp_path)

    assert (report.lost, report.doubled, report.torn) == (0, 0, 0), report
    assert report.published == report.expected > 20 * SEEDS
    assert report.drivers_killed > SEEDS
    assert report.realms_killed > 2 * SEEDS
    assert report.attempts > report.batches, "some micro-batches were repeated"
