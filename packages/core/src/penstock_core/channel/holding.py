"""A durable that one client holds as a whole, whatever its type.

The durable delivers no events. The client holds the events of a range of ids, reads them by other
means (from files, in other processes, several times), and acknowledges everything outstanding up to
an id. When it leaves, the events it holds return as from any client (SEM D13). A streaming query is
bound to a durable in this way: its micro-batches are ranges of ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock_core.channel.dead import buried, moved_at_once
from penstock_core.channel.decided import Decided
from penstock_core.channel.recall import refuse_recalled
from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.ids.ids import Span, Spans
from penstock_core.messages.delivery import HoldEvents
from penstock_core.messages.settlements import BuryEvents
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.errors import DurableInUse, IllegalState, InvalidArgument


def check_sole(
    state: ChannelState, durable: Durable, others: Sequence[Seat], *, sole: bool
) -> None:
    """Raise an error if a client cannot attach together with the clients of ``others``, because one
    of these clients holds, or wants to hold, the durable as a whole. Raises ``IllegalState``,
    ``InvalidArgument`` or ``DurableInUse``."""
    if sole and state.definition.kind != "channel":
        raise IllegalState(
            f"{state.name} is a {state.definition.kind}, which cannot be held as a whole; open a "
            "reader instead"
        )
    if sole and durable.attributes.order_by:
        raise InvalidArgument(
            f"durable {durable.name} has order_by, which serves clients event by event: "
            "it cannot be held as a whole. Use a durable without order_by"
        )
    if others and (sole or others[0].sole):
        state_of_use = "held as a whole" if others[0].sole else "in use"
        raise DurableInUse(
            f"durable {durable.name} of {state.name} is {state_of_use} by session "
            f"{others[0].session}; {what_to_do(state, others[0])}"
        )


def what_to_do(state: ChannelState, other: Seat) -> str:
    """Return the advice for a client that is refused a seat because of another client."""
    if other.subscription:
        return "end that subscription first"
    return (
        f"its seat is reserved for {state.rules.reattach_us // 1_000_000} seconds after a "
        "failover; try again later, or unbind the durable"
    )


def decide_holding(state: ChannelState, command: HoldEvents | BuryEvents) -> Decided:
    """Decide a hold or a burial. Raises ``IllegalState``."""
    durable, seat = state.seat(command.subscription)
    if isinstance(command, BuryEvents):
        return _bury(state, durable, seat, spans=command.spans)
    if not seat.sole:
        raise IllegalState(
            f"the subscription does not hold durable {durable.name} as a whole, but gets "
            "deliveries; open one with hold()"
        )
    return Decided()


def hold(state: ChannelState, command: HoldEvents, now_us: int) -> None:
    """Hold the events of ``command``; ids that are not assigned yet cannot be held."""
    durable, seat = state.seats[command.subscription]
    first, end = command.span
    durable.hold(seat, Span(first, min(end, state.next_id)), state.stored, now_us)
    durable.read_us = now_us
    state.touch(durable)


def _bury(state: ChannelState, durable: Durable, seat: Seat, spans: Spans) -> Decided:
    """Decide to bury the events of ``spans`` that the client holds (SEM D15); if it holds the
    durable as a whole, all outstanding events of ``spans``. Events that are settled or have left
    are skipped. Raises ``IllegalState`` and ``InvalidArgument``."""
    if not state.moves_dead:
        raise IllegalState(
            f"{state.name} has no dead event store for events that are rejected; set "
            "dead_event_store, or acknowledge the events instead"
        )
    if seat.sole:
        dead = durable.wanting(state.stored_part(spans))
    else:
        refuse_recalled(durable, seat, spans, state.stored)
        dead = durable.settled_by(seat, spans, state.stored).overlap(state.stored)
    limit = len(moved_at_once(state, dead))
    if len(dead) > limit:
        raise InvalidArgument(
            f"{len(dead)} events are too many to reject in one step; the limit for these is {limit}"
        )
    return Decided(tuple(buried(state, durable, dead, cause=Cause.REJECTED)), len(dead))
