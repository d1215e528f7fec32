"""Acknowledgement timeouts (SEM D19).

An event that a client holds for longer than the timeout returns as if the client had rolled it
back: it is counted, delayed by the durable's backoff, and dead if it has been delivered too often.
Deadlines are soft state, because a restart takes back all events anyway.
"""

from __future__ import annotations

from typing import Final

from penstock_core.channel.decided import Decided
from penstock_core.channel.recall import refuse_recalled
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import DurableKind
from penstock_core.ids.ids import IdSet
from penstock_core.messages.seats import TakeLease, TakeSeat
from penstock_core.messages.settlements import ExtendTime
from penstock_core.vocabulary.backoff import DELAY_MS_MAX
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument

ACK_TIMEOUT_MS_MIN: Final = 100
"""Shortest acknowledgement timeout, in milliseconds."""
ACK_TIMEOUT_MS_MAX: Final = DELAY_MS_MAX
"""Longest acknowledgement timeout, in milliseconds: a year."""


def check_seat_timeout(state: ChannelState, durable: Durable, command: TakeSeat) -> None:
    """Raise ``InvalidArgument`` for a timeout that is out of bounds or that the client may not
    set."""
    if isinstance(command, TakeLease):
        check_bounds(command.ack_timeout_ms)
        return
    if command.ack_timeout_ms and state.definition.kind != "queue":
        raise InvalidArgument(
            f"durable {durable.name} does not take an ack_timeout for each client; only queues do. "
            "Set it when you create the durable"
        )
    check_ack_timeout(command.ack_timeout_ms, durable.kind)


def timeout_of(durable: Durable, command: TakeSeat) -> int:
    """Return how long the client of a seat may hold an event, in ms; 0 means no limit. The
    durable's timeout also limits leases."""
    requested, of_durable = command.ack_timeout_ms, durable.attributes.ack_timeout
    if command.sole:
        return 0  # such a client processes large ranges of ids, which may take any time
    if isinstance(command, TakeLease) and of_durable:
        return min(requested, of_durable)
    return requested or of_durable


def check_bounds(timeout_ms: int) -> None:
    """Raise ``InvalidArgument`` for a timeout that is too short or too long."""
    if not ACK_TIMEOUT_MS_MIN <= timeout_ms <= ACK_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"ack_timeout is {timeout_ms} ms; allowed are {ACK_TIMEOUT_MS_MIN} to "
            f"{ACK_TIMEOUT_MS_MAX} (a year), and 0 for no timeout"
        )


def check_ack_timeout(timeout_ms: int, kind: DurableKind) -> None:
    """Raise ``InvalidArgument`` for a timeout that is out of bounds, or if the type redelivers only
    with the next subscription."""
    if not timeout_ms:
        return
    check_bounds(timeout_ms)
    if not kind.redelivers_at_once:
        raise InvalidArgument(
            f"a durable of type {kind.name} takes no ack_timeout, because it redelivers events "
            "only with the next subscription; use a type that redelivers at once"
        )


def decide_extension(state: ChannelState, command: ExtendTime) -> Decided:
    """Return a decision without facts, whose answer is the number of events that the client still
    holds. Raises ``InvalidArgument`` for a time out of bounds, and ``IllegalState`` if the client
    has no timeout or names an event that it does not hold (SEM D15)."""
    durable, seat = state.seat(command.subscription)
    if not 0 < command.time_ms <= ACK_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"the time to extend by is {command.time_ms} ms; allowed are 1 to {ACK_TIMEOUT_MS_MAX}"
        )
    if not seat.ack_timeout_ms:
        raise IllegalState(
            "this client has no ack_timeout to extend; it may hold its events for any time"
        )
    refuse_recalled(durable, seat, command.spans, state.stored)
    held = durable.settled_by(seat, command.spans, state.stored)
    return Decided(answer=len(held))


def extend(state: ChannelState, command: ExtendTime, now_us: int) -> None:
    """Extend the deadlines of events that the client holds."""
    durable, seat = state.seats[command.subscription]
    held = seat.in_flight.overlap(IdSet(command.spans))
    # Events that are never stored have no deadlines, so the durable may not have any.
    if durable.deadlines and held:
        durable.deadlines.extend(held, now_us, command.time_ms * 1_000)
    durable.read_us = now_us


def held_too_long(state: ChannelState, now_us: int) -> list[tuple[Durable, IdSet]]:
    """Return the events that clients have held for too long, by durable."""
    return [
        (durable, ids)
        for durable in state.durables.values()
        if durable.deadlines and (ids := durable.deadlines.due(now_us))
    ]
