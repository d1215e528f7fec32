"""Seats that wait for their sessions after another node has taken over (SEM N6).

Who has a seat at an exclusive, priority or serial durable of a cluster, or holds a durable as a
whole, is a fact. The next owner finds these seats empty. It serves nobody else instead of their
clients until these have come back, or have had the time for it.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.channel.state import ChannelState
from penstock.core.durable.durable import Durable
from penstock.core.durable.seat import Seat
from penstock.core.vocabulary.messages import Command, Decided, TakeSeat
from penstock.core.vocabulary.places import Left, Seated


class GiveUpSeats(Command, frozen=True):
    """Wait no longer for those who have not come back to the seats of a durable (SEM D14)."""

    durable: str


class AwaitSeats(Command, frozen=True):
    """Whoever is away may come back only from now on: the time of waiting begins anew."""


def decide_taken(state: ChannelState, command: TakeSeat) -> Decided:
    """The fact of a new seat. One that was kept for its session is the one it had."""
    durable = state.durable(command.durable)
    is_told = state.rules.is_cluster and durable.persistent and command.place
    if not is_told or not (durable.kind.seats_wait or command.sole):
        return Decided()
    if command.place in durable.places:
        return Decided()
    return Decided((Seated(durable.name, command.place, command.session, command.sole),))


def claimed(durable: Durable, place: str) -> list[Seat]:
    """The seats there are, and those that are kept for others than ``place``."""
    kept = [
        Seat(0, seat.session, 0, pull=False, sole=seat.sole, place=name)
        for name, seat in durable.absent.items()
        if name != place
    ]
    return [*durable.seats, *kept]


def decide_left(state: ChannelState, decided: Decided, subscription: int) -> Decided:
    """What ``decided`` says of the end of a seat, with the fact that it is left."""
    durable, seat = state.seats[subscription]
    if seat.place not in durable.places:
        return decided
    return replace(decided, facts=(*decided.facts, Left(durable.name, seat.place)))


def given_up(durable: Durable) -> tuple[Left, ...]:
    """The facts that nobody waits for those any more who are away."""
    return tuple(Left(durable.name, place) for place in durable.absent)


def seats_overdue(state: ChannelState, now_us: int) -> tuple[Left, ...]:
    """The facts that the seats are free again whose sessions had their time to come back."""
    if state.awaited_from_us is None or now_us < state.awaited_from_us + state.rules.reattach_us:
        return ()
    return tuple(fact for durable in state.durables.values() for fact in given_up(durable))


def look(state: ChannelState, now_us: int) -> None:
    """Begin to wait where somebody is away, and note when nobody is any more."""
    if not any(durable.absent for durable in state.durables.values()):
        state.awaits_seats, state.awaited_from_us = False, None
    elif state.awaited_from_us is None and not state.takes_nobody:
        state.awaited_from_us = now_us


def interrupted(state: ChannelState, *, now: bool) -> None:
    """Note that somebody is away who may come back: ``now``, or only from
    :class:`AwaitSeats` on."""
    state.awaits_seats, state.awaited_from_us = True, None
    state.takes_nobody = not now


def recovered(state: ChannelState) -> None:
    """Find all seats empty that were taken. A realm without a cluster keeps none."""
    for durable in state.durables.values():
        if not state.rules.is_cluster:
            durable.places.clear()
        elif durable.places:
            interrupted(state, now=True)


def kept(state: ChannelState) -> tuple[Seated, ...]:
    """The facts that lead to these seats, for a snapshot."""
    return tuple(
        Seated(durable.name, place, seat.session, seat.sole)
        for durable in state.durables.values()
        if durable.persistent
        for place, seat in durable.places.items()
    )
