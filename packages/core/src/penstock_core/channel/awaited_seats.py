"""Seats that are reserved for their sessions after a failover (SEM N6).

In a cluster, a seat at an exclusive, priority or serial durable is recorded in a fact, and so is a
client that holds a durable as a whole. The next owner finds these seats empty. It reserves them for
their sessions until these reconnect or their time is over.

The time waited is also recorded in facts, in steps, so that it adds up over several owners. Time
that an owner had not recorded when it failed does not count.
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
"""Number of facts that record the whole waiting time. An owner that fails loses at most one step, a
twentieth of the time (half a second by default). So few small facts cost nothing."""


def decide_taken(state: ChannelState, command: TakeSeat) -> Decided:
    """Return the facts of a new seat; none if the seat need not be recorded.

    A seat that was reserved for the session needs a new fact only if waiting time was recorded for
    it. A seat at another place ends the reservations of its session, if the durable allows only
    one seat.
    """
    durable = state.durable(command.durable)
    is_recorded = state.rules.is_cluster and durable.persistent and command.place
    if not is_recorded or not (durable.kind.seats_wait or command.sole):
        return Decided()
    recorded_seat = durable.places.get(command.place)
    if recorded_seat is not None and not recorded_seat.waited_us:
        return Decided()
    left_facts = tuple(
        Left(durable.name, seat.place)
        for seat in _reserved_seats(durable, command.place)
        if seat.session == command.session and (seat.sole or not durable.kind.may_attach([seat]))
    )
    return Decided(
        (*left_facts, Seated(durable.name, command.place, command.session, sole=command.sole))
    )


def taken_or_reserved(durable: Durable, place: str, session: str = "") -> list[Seat]:
    """Return the taken seats of a durable, and the seats that are reserved for other places than
    ``place`` and for other sessions than ``session`` (for any session if it is empty)."""
    reserved = _reserved_seats(durable, place)
    return [
        *durable.seats,
        *(seat for seat in reserved if not session or seat.session != session),
    ]


def _reserved_seats(durable: Durable, place: str) -> list[Seat]:
    """Return the seats that are reserved for other places than ``place``."""
    return [
        Seat(0, seat.session, 0, pull=False, sole=seat.sole, place=name)
        for name, seat in durable.absent.items()
        if name != place
    ]


def decide_left(state: ChannelState, decided: Decided, subscription: int) -> Decided:
    """Return ``decided`` (the other consequences of the end of a seat), with the fact ``Left``
    added if the durable has a record of the seat."""
    durable, seat = state.seats[subscription]
    if seat.place not in durable.places:
        return decided
    return replace(decided, facts=(*decided.facts, Left(durable.name, seat.place)))


def decide_given_up(durable: Durable) -> tuple[Left, ...]:
    """Return the facts that end the reservation of all absent seats of a durable."""
    return tuple(Left(durable.name, place) for place in durable.absent)


def seats_waited_for(state: ChannelState, now_us: int) -> tuple[Seated | Left, ...]:
    """Return the facts to record at the end of a step of waiting for absent sessions: for each
    reserved seat the time waited so far, or its end if that time has reached the limit. Empty
    before the end of the step."""
    since_us = state.awaited_from_us
    if since_us is None or now_us < state.awaited_until_us:
        return ()
    facts: list[Seated | Left] = []
    for durable in state.durables.values():
        for place, seat in durable.absent.items():
            waited_us = seat.waited_us + now_us - since_us
            if waited_us >= state.rules.reattach_us:
                facts.append(Left(durable.name, place))
            else:
                facts.append(
                    Seated(durable.name, place, seat.session, sole=seat.sole, waited_us=waited_us)
                )
    return tuple(facts)


def advance_wait(state: ChannelState, now_us: int) -> None:
    """Start a step of waiting while sessions are absent; stop waiting if no session is absent."""
    absent = [seat for durable in state.durables.values() for seat in durable.absent.values()]
    if not absent:
        state.awaits_seats, state.awaited_from_us = False, None
        return
    begins = state.awaited_from_us is None or now_us >= state.awaited_until_us
    if begins and not state.refuses_reconnects:
        total_us = state.rules.reattach_us
        remaining_us = total_us - max(seat.waited_us for seat in absent)
        state.awaited_from_us = now_us
        # Rounded up, so that the whole time takes no more than `_STEPS` steps.
        state.awaited_until_us = now_us + min(remaining_us, -(-total_us // _STEPS))


def interrupted(state: ChannelState, *, now: bool) -> None:
    """Record that seats are kept for absent sessions. With ``now`` these may reconnect
    immediately, otherwise only after :class:`AwaitSeats`."""
    state.awaits_seats, state.awaited_from_us = True, None
    state.refuses_reconnects = not now


def recovered(state: ChannelState) -> None:
    """Treat the sessions of all recorded seats as absent after recovery. Without a cluster no seat
    is reserved."""
    for durable in state.durables.values():
        if not state.rules.is_cluster:
            durable.places.clear()
        elif durable.places:
            interrupted(state, now=True)


def kept(state: ChannelState) -> tuple[Seated, ...]:
    """Return the facts that restore the reserved seats, for a snapshot."""
    return tuple(
        Seated(durable.name, place, seat.session, sole=seat.sole, waited_us=seat.waited_us)
        for durable in state.durables.values()
        if durable.persistent
        for place, seat in durable.places.items()
    )
