"""Random lives of a channel beside a model of sets: every delivery, count and removal compared.

``HYPOTHESIS_PROFILE=night`` lives longer and more often.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.channel_life import ChannelLife
from tests.model.jms_life import JmsLife
from tests.thorough import examples

NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "night"

settings.register_profile(
    "night", max_examples=20_000, stateful_step_count=80, deadline=None, derandomize=False
)
DAY = settings(
    max_examples=examples(40),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

TestChannelLife = ChannelLife.TestCase
TestChannelLife.settings = settings.get_profile("night") if NIGHT else DAY
TestJmsLife = JmsLife.TestCase
TestJmsLife.settings = settings.get_profile("night") if NIGHT else DAY


@pytest.mark.slow
@pytest.mark.spec("D6", "D8", "D9", "D10", "D11", "D12", "D13", "K1", "T8")
def test_many_lives_on_the_default_and_the_merge_engine() -> None:
    run_state_machine_as_test(ChannelLife, settings=settings(DAY, max_examples=400))


@pytest.mark.slow
@pytest.mark.spec("J2", "J3", "J4", "J5", "J6", "J7", "T8", "T11", "D18", "D19", "D20", "H1")
def test_many_lives_on_the_jms_engine() -> None:
    longer = settings(DAY, max_examples=600, stateful_step_count=60)
    run_state_machine_as_test(JmsLife, settings=longer)
