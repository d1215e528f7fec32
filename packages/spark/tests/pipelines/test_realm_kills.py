"""A few kills of the realm under a running pipeline; the module it runs does it for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.spark.tests.pipelines.realm_kills import run_loop

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.slow, pytest.mark.process]


def test_a_pipeline_whose_realm_is_killed_goes_on_without_a_hand(tmp_path: Path) -> None:
    outcome = run_loop(tmp_path, seed=1, seconds=300, kills=2)

    assert outcome.is_right, f"{outcome}\n{outcome.output[-2_000:]}"
    assert sum(outcome.kills.values()) == 2
