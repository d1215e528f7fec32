"""Fifty failovers in one world: seats stay with their sessions, and listeners miss nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from penstock.client.connection.connection import RealmConnection
from penstock_core.channel import awaited_seats, kept_interest
from penstock_core.channel.state import ChannelState
from penstock_core.durable.subscriber import Subscriber
from penstock_server.runtime.subscriptions.subscriptions import Subscriptions
from tests.sim.cluster_failovers import FAILOVERS, failovers_of
from tests.sim.mutants import first_noticed

Spoil = Callable[[pytest.MonkeyPatch], None]
FEW = 10
OTHERS = (4, 9, 19, 33)
"""Further worlds, with few failovers. Each takes about a second; `make sim` plays many more."""


@pytest.mark.slow
@pytest.mark.spec("N4", "N6", "N7", "D14", "J5")
def test_over_fifty_failovers_nobody_loses_a_seat_and_no_listener_an_event() -> None:
    world = failovers_of(1)

    assert world.takeovers >= FAILOVERS
    assert {"killed", "frozen", "handed over"} <= world.faults.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", OTHERS)
@pytest.mark.spec("N4", "N6", "N7", "J5")
def test_over_a_few_failovers_in_other_worlds_no_event_is_lost(seed: int) -> None:
    world = failovers_of(seed, FEW)

    assert world.takeovers >= FEW
    assert all(oracle.received for oracle in world.heard.values())


def seats_wait_for_nobody(patch: pytest.MonkeyPatch) -> None:
    def recovered(state: ChannelState) -> None:
        for durable in state.durables.values():
            durable.places.clear()

    patch.setattr(awaited_seats, "recovered", recovered)


def handing_over_gives_seats_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscriptions, "keep_seats", lambda _: None)


def listeners_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    def recovered(state: ChannelState) -> None:
        state.places.clear()

    patch.setattr(kept_interest, "recovered", recovered)


def listeners_restart(patch: pytest.MonkeyPatch) -> None:
    def first_id(former: Subscriber, _: object) -> int:
        return former.cursor

    patch.setattr(kept_interest, "first_id", first_id)


def requested_subscriptions_are_opened_twice(patch: pytest.MonkeyPatch) -> None:
    opened_again = RealmConnection.open_again

    async def open_all(self: RealmConnection, _: object) -> None:
        await opened_again(self, ())

    patch.setattr(RealmConnection, "open_again", open_all)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (seats_wait_for_nobody, "is there"),
        (handing_over_gives_seats_up, "is there"),
        (listeners_are_forgotten, "has missed"),
        (listeners_restart, "got . after"),
        (requested_subscriptions_are_opened_twice, "is already open"),
    ],
)
def test_a_mistake_is_noticed(spoil: Spoil, complaint: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spoil(patch)
        noticed = first_noticed(lambda seed: failovers_of(seed, FEW), [0, 9, 11, 12])

    assert noticed is not None
    assert re.search(complaint, noticed.complaint)
