"""Scheduled publishing (SEM X4): events wait on an internal store until they are due.

The TTL of an event on this store is the time until the event is due. When the TTL ends, the event
moves to its channel as a dead event moves to its dead event store: in one step, so that the event
is neither lost nor published twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock_core.columns.events.delivery_time import waiting_rows, waiting_times_ms
from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_server.runtime.store.bodies import Body

if TYPE_CHECKING:
    from penstock_server.runtime.writer.group import Group


def waits(bodies: Sequence[Body]) -> bool:
    """Whether these events are scheduled for later. Raises ``InvalidEvent`` if only some are."""
    if not any(DELIVERY_TIME in body.names for body in bodies):
        return False
    waiting = sum(waiting_rows(body.batch) for body in bodies)
    rows = sum(body.rows for body in bodies)
    if waiting not in (0, rows):
        raise InvalidEvent(
            f"{waiting} of {rows} events of one publish have {DELIVERY_TIME}; publish the events "
            f"with {DELIVERY_TIME} separately from the others"
        )
    return waiting > 0


def scheduled(
    group: Group, channel_id: int, bodies: Sequence[Body], digest: Digest
) -> tuple[int, Digest]:
    """Return the store where scheduled events of this channel wait, and their digest with the
    waiting times as TTLs. Creates the store if the channel has none."""
    directory = group.state.directory
    group.channel(channel_id)  # raises NameDoesNotExist if the channel was deleted
    schedule = directory.schedule_of(channel_id)
    if schedule is None:
        fact = directory.decide_schedule(channel_id)
        group.realm_fact(0, fact)
        schedule = fact.number
    first = 0
    ttls: dict[int, Spans] = {}
    for body in bodies:
        for ttl_ms, spans in waiting_times_ms(body.batch, group.now_us):
            placed = tuple(span.shifted(first) for span in spans)
            ttls[ttl_ms] = (*ttls.get(ttl_ms, ()), *placed)
        first += body.batch.num_rows
    return schedule, replace(digest, ttls=tuple(ttls.items()))
