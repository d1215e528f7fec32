"""A durable that one client holds alone, whatever its type.

Nothing is delivered. The client takes the events of a range of ids, reads them where it likes (from
files, in other processes, several times), and acknowledges everything outstanding up to an id. What
it holds when it leaves goes back as from any client (SEM D13). This is how a query is bound to a
durable: its micro-batches are ranges of ids.
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
    """Raises what speaks against one more client beside ``others``, where it or another is to be a
    sole one."""
    if sole and state.definition.kind != "channel":
        raise IllegalState(f"{state.name} is a {state.definition.kind}: open a reader instead")
    if sole and durable.attributes.order_by:
        raise InvalidArgument(
            f"durable {durable.name} has order_by, which serves clients event by event: "
            "it cannot be held as a whole; use a durable without order_by"
        )
    if others and (sole or others[0].sole):
        how = "held as a whole" if others[0].sole else "in use"
        raise DurableInUse(
            f"durable {durable.name} of {state.name} is {how} by session {others[0].session}; "
            f"{what_to_do(state, others[0])}"
        )


def what_to_do(state: ChannelState, other: Seat) -> str:
    """What a client can do that is refused a seat because of another."""
    if other.subscription:
        return "end that subscription first"
    return (
        f"another node has taken over, and the session has {state.rules.reattach_us // 1_000_000} "
        "seconds to come back to its seat: try again then, or unbind the durable"
    )


def decide_holding(state: ChannelState, command: HoldEvents | BuryEvents) -> Decided:
    """Decide a hold or a burial. Raises ``IllegalState``."""
    durable, seat = state.seat(command.subscription)
    if isinstance(command, BuryEvents):
        return _bury(state, durable, seat, spans=command.spans)
    if not seat.sole:
        raise IllegalState(
            f"this client has not taken hold of durable {durable.name}; it gets deliveries instead"
        )
    return Decided()


def hold(state: ChannelState, command: HoldEvents, now_us: int) -> None:
    """Take them; ids that were not given yet cannot be held."""
    durable, seat = state.seats[command.subscription]
    first, end = command.span
    durable.hold(seat, Span(first, min(end, state.next_id)), state.stored)
    durable.read_us = now_us
    state.touch(durable)


def _bury(state: ChannelState, durable: Durable, seat: Seat, spans: Spans) -> Decided:
    """The part of ``spans`` that the client may bury: what it holds (SEM D15), or, if it holds the
    durable alone, what is outstanding. Events that are settled or gone are left out."""
    if not state.moves_dead:
        raise IllegalState(
            f"{state.name} has no dead event store for events that are rejected; set "
            "dead_event_store, or acknowledge what nobody needs"
        )
    if seat.sole:
        dead = durable.wanting(state.stored_part(spans))
    else:
        refuse_recalled(durable, seat, spans, state.stored)
        dead = durable.settled_by(seat, spans, state.stored).overlap(state.stored)
    limit = len(moved_at_once(state, dead))
    if len(dead) > limit:
        raise InvalidArgument(
            f"{len(dead)} events to reject in one step; the limit for these is {limit}"
        )
    return Decided(tuple(buried(state, durable, dead, cause=Cause.REJECTED)), len(dead))
