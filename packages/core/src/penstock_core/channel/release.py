"""Releases: a client returns events unprocessed, as if they had not been delivered.

Unlike a rollback, a release does not count as a redelivery (SEM E9).
"""

from __future__ import annotations

from penstock_core.channel.decided import Decided
from penstock_core.channel.delays import postponed
from penstock_core.channel.state import ChannelState
from penstock_core.ids.ids import IdSet
from penstock_core.messages.settlements import Release
from penstock_core.vocabulary.backoff import check_delay


def decide_release(state: ChannelState, command: Release, now_us: int) -> Decided:
    """Decide to return events without counting a redelivery. Raises ``IllegalState`` (SEM D15)."""
    check_delay(command.delay_ms)
    durable, seat = state.seat(command.subscription)
    held = durable.settled_by(seat, command.spans, state.stored)
    return Decided(
        postponed(state, durable, held, delay_ms=command.delay_ms or None, now_us=now_us)
    )


def release(state: ChannelState, command: Release) -> None:
    """Take released events back from the client."""
    durable, seat = state.seats[command.subscription]
    ids = seat.in_flight.overlap(IdSet(command.spans))
    if command.elsewhere:
        seat.refused.add_all(ids)
    durable.take_back_unsent(ids)
    state.touch(durable)
