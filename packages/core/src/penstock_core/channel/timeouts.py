"""Clients that have to acknowledge in time (SEM D19).

What a client has had for longer than the timeout goes back as if it had rolled it back: counted,
with the durable's backoff, and dead where that was once too often. Deadlines are soft: a restart
takes everything out of all hands anyway.
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
ACK_TIMEOUT_MS_MAX: Final = DELAY_MS_MAX


def check_seat_timeout(state: ChannelState, durable: Durable, command: TakeSeat) -> None:
    """Raise ``InvalidArgument`` for a timeout that a client may not bring, or out of bounds."""
    if isinstance(command, TakeLease):
        check_bounds(command.ack_timeout_ms)
        return
    if command.ack_timeout_ms and state.definition.kind != "queue":
        raise InvalidArgument(
            f"durable {durable.name} does not take an ack_timeout for each client; only queues do: "
            "give it when you create the durable"
        )
    check_ack_timeout(command.ack_timeout_ms, durable.kind)


def timeout_of(durable: Durable, command: TakeSeat) -> int:
    """How long the client of a seat may have an event in hand; 0: as long as it likes. A lease is
    never longer than the durable has it for all."""
    own, for_all = command.ack_timeout_ms, durable.attributes.ack_timeout
    if command.sole:
        return 0
    if isinstance(command, TakeLease) and for_all:
        return min(own, for_all)
    return own or for_all


def check_bounds(timeout_ms: int) -> None:
    """Raise ``InvalidArgument`` for a timeout that is too short or too long."""
    if not ACK_TIMEOUT_MS_MIN <= timeout_ms <= ACK_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"ack_timeout is {timeout_ms} ms; allowed are {ACK_TIMEOUT_MS_MIN} to "
            f"{ACK_TIMEOUT_MS_MAX}, a year, and 0 for as long as the client likes"
        )


def check_ack_timeout(timeout_ms: int, kind: DurableKind) -> None:
    """Raise ``InvalidArgument`` for a timeout that is out of bounds, or of a type that gives back
    only with the next subscription."""
    if not timeout_ms:
        return
    check_bounds(timeout_ms)
    if not kind.redelivers_at_once:
        raise InvalidArgument(
            f"a durable of type {kind.name} takes no ack_timeout: what goes back there comes only "
            "with the next subscription; use a type that redelivers at once"
        )


def decide_extension(state: ChannelState, command: ExtendTime) -> Decided:
    """Answer with the number of events that are in hand still. Raises ``IllegalState`` for one
    that is not (SEM D15), and where nobody has to acknowledge in time."""
    durable, seat = state.seat(command.subscription)
    if not 0 < command.time_ms <= ACK_TIMEOUT_MS_MAX:
        raise InvalidArgument(
            f"the time to extend by is {command.time_ms} ms; allowed are 1 to {ACK_TIMEOUT_MS_MAX}"
        )
    if not seat.ack_timeout_ms:
        raise IllegalState(
            "this client may have its events for as long as it likes: there is no ack_timeout to "
            "extend"
        )
    refuse_recalled(durable, seat, command.spans, state.stored)
    mine = durable.settled_by(seat, command.spans, state.stored)
    return Decided(answer=len(mine))


def extend(state: ChannelState, command: ExtendTime, now_us: int) -> None:
    """Give the client more time for what it has in hand."""
    durable, seat = state.seats[command.subscription]
    mine = seat.in_flight.overlap(IdSet(command.spans))
    if durable.deadlines and mine:
        durable.deadlines.extend(mine, now_us, command.time_ms * 1_000)
    durable.read_us = now_us


def late(state: ChannelState, now_us: int) -> list[tuple[Durable, IdSet]]:
    """What clients have had for too long, by durable."""
    return [
        (durable, ids)
        for durable in state.durables.values()
        if durable.deadlines and (ids := durable.deadlines.due(now_us))
    ]
