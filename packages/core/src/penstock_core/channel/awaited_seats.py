"""Seats that wait for their sessions after another node has taken over (SEM N6).

Who has a seat at an exclusive, priority or serial durable of a cluster, or holds a durable as a
whole, is a fact. The next owner finds these seats empty. It serves nobody else instead of their
clients until these have come back, or have had the time for it.

How long a session has been waited for is a fact, too, in steps: the time is one, whichever owners
it passes under. What an owner is lost with before it has written its step does not count.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock_core.channel.decided import Decided
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.messages.seats import Left, Seated, TakeSeat

_STEPS: Final = 20
"""In how many parts the time of waiting is written down: a twentieth, half a second, is the most an
owner is lost with, and so few small facts cost nothing."""


def decide_taken(state: ChannelState, command: TakeSeat) -> Decided:
    """The fact of a new seat. One that was kept for its session is the one it had, and is told of
    again only where the session has been waited for. Another one takes the place of those that the
    session has given up while it was not connected, where there may be one alone."""
    durable = state.durable(command.durable)
    is_told = state.rules.is_cluster and durable.persistent and command.place
    if not is_told or not (durable.kind.seats_wait or command.sole):
        return Decided()
    kept = durable.places.get(command.place)
    if kept is not None and not kept.waited_us:
        return Decided()
    left = tuple(
        Left(durable.name, seat.place)
        for seat in _kept(durable, command.place)
        if seat.session == command.session and (seat.sole or not durable.kind.may_attach([seat]))
    )
    return Decided((*left, Seated(durable.name, command.place, command.session, sole=command.sole)))


def claimed(durable: Durable, place: str, session: str = "") -> list[Seat]:
    """The seats there are, and those that are kept for others than ``place`` and ``session``."""
    kept = [seat for seat in _kept(durable, place) if not session or seat.session != session]
    return [*durable.seats, *kept]


def _kept(durable: Durable, place: str) -> list[Seat]:
    """The seats that are kept for others than ``place``."""
    return [
        Seat(0, seat.session, 0, pull=False, sole=seat.sole, place=name)
        for name, seat in durable.absent.items()
        if name != place
    ]


def decide_left(state: ChannelState, decided: Decided, subscription: int) -> Decided:
    """What ``decided`` says of the end of a seat, with the fact that it is left."""
    durable, seat = state.seats[subscription]
    if seat.place not in durable.places:
        return decided
    return replace(decided, facts=(*decided.facts, Left(durable.name, seat.place)))


def decide_given_up(durable: Durable) -> tuple[Left, ...]:
    """The facts that nobody waits for those any more who are away."""
    return tuple(Left(durable.name, place) for place in durable.absent)


def seats_waited_for(state: ChannelState, now_us: int) -> tuple[Seated | Left, ...]:
    """When a step of the waiting is over: the facts how long each session that is away has been
    waited for, and that the seats are free again whose sessions had their time to come back."""
    since_us = state.awaited_from_us
    if since_us is None or now_us < state.awaited_until_us:
        return ()
    facts: list[Seated | Left] = []
    for durable in state.durables.values():
        for place, kept in durable.absent.items():
            waited_us = kept.waited_us + now_us - since_us
            if waited_us >= state.rules.reattach_us:
                facts.append(Left(durable.name, place))
            else:
                facts.append(
                    Seated(durable.name, place, kept.session, sole=kept.sole, waited_us=waited_us)
                )
    return tuple(facts)


def advance_wait(state: ChannelState, now_us: int) -> None:
    """Begin to wait, or the next step of it, where somebody is away, and note when nobody is any
    more."""
    absent = [kept for durable in state.durables.values() for kept in durable.absent.values()]
    if not absent:
        state.awaits_seats, state.awaited_from_us = False, None
        return
    begins = state.awaited_from_us is None or now_us >= state.awaited_until_us
    if begins and not state.takes_nobody:
        all_us = state.rules.reattach_us
        left_us = all_us - max(kept.waited_us for kept in absent)
        state.awaited_from_us = now_us
        state.awaited_until_us = now_us + min(left_us, -(-all_us // _STEPS))


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
        Seated(durable.name, place, seat.session, sole=seat.sole, waited_us=seat.waited_us)
        for durable in state.durables.values()
        if durable.persistent
        for place, seat in durable.places.items()
    )
