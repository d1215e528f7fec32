"""The models have teeth, on each engine: a channel with a mistake does not agree with them.

The mistakes about waits, timeouts and seeks are those that the simulation has to notice, too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock_core.channel import dead, decide, holding, offer
from penstock_core.channel.state import ChannelState
from penstock_core.durable.deadlines import Deadlines
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet
from penstock_core.messages.delivery import SetDemand
from penstock_core.messages.unions import StoredFact
from penstock_core.vocabulary.causes import Cause
from tests.model.channel_life import ChannelLife
from tests.model.jms_life import JmsLife
from tests.sim import seek_mutants, waiting_mutants

Mistake = Callable[[pytest.MonkeyPatch], None]

MANY = settings(
    max_examples=400,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""The first life that does not agree ends it; nobody needs to see the shortest."""


class BusyLife(ChannelLife):
    """More is in hand under a time, and the time passes."""

    timeouts_ms = 100, 300


class BusyJmsLife(JmsLife):
    """As often, on the JMS engine."""

    timeouts_ms = 100, 300


OFTEN = {ChannelLife.lease: 8, ChannelLife.extend: 16, ChannelLife.wait: 14}
BusyLife.steps = {**ChannelLife.steps, **OFTEN}
BusyJmsLife.steps = {**JmsLife.steps, **OFTEN}


def greedy_lease(patch: pytest.MonkeyPatch) -> None:
    """A lease goes on taking what comes later (SEM H1)."""
    original_demand = offer._demand

    def demand(state: ChannelState, command: SetDemand) -> None:
        if not command.at_once:
            original_demand(state, command)

    patch.setattr(offer, "_demand", demand)


def endless_lease(patch: pytest.MonkeyPatch) -> None:
    """The time of a lease is not its own: without an ``ack_timeout`` of the durable it has none."""
    patch.setattr(offer, "timeout_of", lambda durable, _: durable.attributes.ack_timeout)


def shortening_extension(patch: pytest.MonkeyPatch) -> None:
    """A request for less time than remains shortens the time."""

    def extend(deadlines: Deadlines, ids: IdSet, now_us: int, longer_us: int) -> None:
        mine = ids.overlap(deadlines.ids)
        deadlines._take_out(mine)
        deadlines._add(mine, now_us + longer_us)

    patch.setattr(Deadlines, "extend", extend)


def unheard_extension(patch: pytest.MonkeyPatch) -> None:
    """Asking for more time changes nothing."""
    patch.setattr(Deadlines, "extend", lambda *_: None)


def buried_for_all(patch: pytest.MonkeyPatch) -> None:
    """What one durable rejects leaves the channel, whoever waits for it."""
    original_buried = dead.buried

    def buried(state: ChannelState, durable: Durable, ids: IdSet, cause: Cause) -> list[StoredFact]:
        others = {name: one for name, one in state.durables.items() if one is not durable}
        for name in others:
            del state.durables[name]
        try:
            return original_buried(state, durable, ids, cause=cause)
        finally:
            state.durables.update(others)

    patch.setattr(holding, "buried", buried)


def unasked_delay(patch: pytest.MonkeyPatch) -> None:
    """A rollback that names a delay comes again at once."""
    patch.setattr(decide, "postponed", lambda *_, **__: ())


def lost_wait(patch: pytest.MonkeyPatch) -> None:
    """One of two events that wait until different times is lost sight of. The mistake of the
    simulation loses one of four, which come in hundreds of lives here."""
    waiting_mutants.lose_a_wait(patch, among=2)


MISTAKES: list[Mistake] = [
    waiting_mutants.forgotten_wait,
    waiting_mutants.short_wait,
    lost_wait,
    waiting_mutants.passed_by,
    waiting_mutants.lost_to_time,
    waiting_mutants.endless_time,
    waiting_mutants.late_and_taken,
    seek_mutants.skipping_seek,
    seek_mutants.forgotten_seek,
    seek_mutants.leaving_seek,
    greedy_lease,
    endless_lease,
    shortening_extension,
    unheard_extension,
    waiting_mutants.buried_nowhere,
    buried_for_all,
    unasked_delay,
]
RARE = [
    # more time for what is in hand, and nothing else happens to it: many lives here are of queues
    (unheard_extension, BusyLife),
]
"""What shows only in hundreds of lives; the other engine's notice it soon."""
PAIRS = [
    (mistake, life)
    for mistake in MISTAKES
    for life in (BusyLife, BusyJmsLife)
    if (mistake, life) not in RARE
]


@pytest.mark.slow
@pytest.mark.spec("D18", "D19", "D20", "T11", "H1")
@pytest.mark.parametrize(
    ("mistake", "life"),
    PAIRS,
    ids=[f"{mistake.__name__}-{life.__name__}" for mistake, life in PAIRS],
)
def test_a_mistake_is_noticed(
    mistake: Mistake, life: type[ChannelLife], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)

    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        run_state_machine_as_test(life, settings=MANY)
