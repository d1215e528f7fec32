"""Events a client gives back untried: it is as if they had not been delivered.

Unlike a rollback this is counted nowhere (SEM E9): the client has not looked at them.
"""

from __future__ import annotations

from penstock_core.channel.decided import Decided
from penstock_core.channel.delays import postponed
from penstock_core.channel.state import ChannelState
from penstock_core.ids.ids import IdSet
from penstock_core.messages.settlements import Release
from penstock_core.vocabulary.backoff import check_delay


def decide_release(state: ChannelState, command: Release, now_us: int) -> Decided:
    """Give events back without counting a delivery. Raises ``IllegalState`` (SEM D15)."""
    check_delay(command.delay_ms)
    durable, seat = state.seat(command.subscription)
    mine = durable.settled_by(seat, command.spans, state.stored)
    return Decided(
        postponed(state, durable, mine, delay_ms=command.delay_ms or None, now_us=now_us)
    )


def release(state: ChannelState, command: Release) -> None:
    """Take them out of the client's hands."""
    durable, seat = state.seats[command.subscription]
    ids = seat.in_flight.overlap(IdSet(command.spans))
    if command.elsewhere:
        seat.refused.add_all(ids)
    durable.unsent(ids)
    state.touch(durable)
