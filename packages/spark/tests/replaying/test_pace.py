"""Tests for penstock_spark.replaying.pace."""

from __future__ import annotations

import pytest

from penstock_spark.replaying.pace import FLAT_OUT, ReplayPace


@pytest.mark.parametrize(("speed", "due"), [(1.0, 1_500), (2.0, 1_250), (0.5, 2_000)])
def test_an_event_is_due_as_long_behind_the_first_as_the_speed_says(speed: float, due: int) -> None:
    pace = ReplayPace(speed)
    pace.start(70_000, 1_000)

    assert pace.due_us(70_500) == due
    assert pace.reached_us(due) == 70_500


def test_only_the_first_start_counts() -> None:
    pace = ReplayPace(1.0)
    pace.start(70_000, 1_000)
    pace.start(80_000, 2_000)

    assert pace.due_us(70_000) == 1_000


def test_flat_out_everything_is_due() -> None:
    pace = ReplayPace(FLAT_OUT)
    pace.start(70_000, 1_000)

    assert pace.is_flat_out
    assert pace.reached_us(1_000) > 9e18
    assert pace.due_us(90_000) == 1_000
