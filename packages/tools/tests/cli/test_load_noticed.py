"""What is tried of ``penstock load`` has teeth, and so has the command: a run that measures wrongly
is noticed, and a realm that loses events is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from packages.client.tests.simulated import World, in_world
from packages.tools.tests.cli.load_runs import a_realm_stalls, each_comes_once, run_of
from penstock import aio
from penstock_core.channel import decide
from penstock_core.channel.decided import Decided
from penstock_core.channel.state import ChannelState
from penstock_core.messages.settlements import Acked, RollBack
from penstock_tools.cli.load_plan import Int64s, Latencies, LoadPlan
from penstock_tools.cli.load_run import LoadRun

Spoil = Callable[[pytest.MonkeyPatch], None]


def from_the_sending(patch: pytest.MonkeyPatch) -> None:
    """Latencies count from when an event was sent: what had to wait before is left out."""
    original_publish, sent_us = LoadRun.publish, dict[int, int]()

    async def publish(
        run: LoadRun, channel: aio.Channel, numbers: Int64s, unanswered_slots: asyncio.Semaphore
    ) -> None:
        sent_us.update(dict.fromkeys(numbers.tolist(), run.at_us()))
        await original_publish(run, channel, numbers, unanswered_slots=unanswered_slots)

    def count(run: LoadRun, times: list[Latencies], numbers: Int64s, at_us: int) -> None:
        steps = run.plan.steps_of(numbers)
        for number, step in zip(numbers.tolist(), steps.tolist(), strict=True):
            times[step].add(np.array([at_us - sent_us[number]]))

    patch.setattr(LoadRun, "publish", publish)
    patch.setattr(LoadRun, "count", count)


def all_at_one_rate(patch: pytest.MonkeyPatch) -> None:
    """The second step goes on at the rate of the first."""
    patch.setattr(LoadPlan, "steps_of", lambda _, numbers: np.zeros(len(numbers), dtype=np.int64))


@pytest.mark.parametrize(
    ("spoil", "story"),
    [(from_the_sending, in_world(a_realm_stalls)), (all_at_one_rate, in_world(each_comes_once))],
    ids=["from the sending", "all at one rate"],
)
def test_a_run_that_measures_wrongly_is_noticed(
    spoil: Spoil, story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)

    with pytest.raises(ExceptionGroup) as failed:
        story()
    assert failed.group_contains(AssertionError)


def rollbacks_acknowledge(patch: pytest.MonkeyPatch) -> None:
    """What is rolled back is gone."""

    def rolled_back(state: ChannelState, command: RollBack, _: int) -> Decided:
        durable, _seat = state.seat(command.subscription)
        return Decided((Acked(durable.name, command.spans),))

    patch.setattr(decide, "_rolled_back", rolled_back)


@in_world
async def test_a_realm_that_loses_what_is_rolled_back_is_told(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        rollbacks_acknowledge(patch)
        report = await run_of(world, LoadPlan(rates=(100.0,), step_s=1.0, rollback=0.1)).run()

    assert not report.is_right
    assert (report.lost, report.outstanding, report.redelivered) == (10, 0, 0)
