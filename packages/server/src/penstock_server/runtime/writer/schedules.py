"""Publishing at a later time (SEM X4): events wait on a store of the realm's own.

There each has the time until it is due as its TTL. When that is over it leaves for its channel
in one step, as a dead event leaves for its store: nothing is lost, nothing comes twice.
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
    """Whether these events are to be published later. Raises ``InvalidEvent`` for a mix."""
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
    group: Group, number: int, bodies: Sequence[Body], digest: Digest
) -> tuple[int, Digest]:
    """The store where events for channel ``number`` wait, and their digest there."""
    directory = group.state.directory
    group.channel(number)  # raises if it was deleted
    schedule = directory.schedule_of(number)
    if schedule is None:
        fact = directory.decide_schedule(number)
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
