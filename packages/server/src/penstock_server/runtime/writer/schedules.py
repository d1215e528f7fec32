"""Publishing at a later time (SEM X4): events wait on a store of the realm's own.

There each has the time until it is due as its TTL. When that is over it leaves for its channel
in one step, as a dead event leaves for its store: nothing is lost, nothing comes twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock_core.columns.events.delivery_time import waiting_rows, waiting_times_ms
from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.ports import Clock
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.store.bodies import Body

if TYPE_CHECKING:
    from penstock_server.runtime.store.state import RealmState
    from penstock_server.runtime.writer.group import Group

LOOK_AGAIN_S = 30.0
"""The wall clock may be set: an alarm far away is looked at again after this."""
SOONEST_S = 0.001
PAUSE_MAX_S = 0.1


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
    group.state.has_new_times = True
    first = 0
    ttls: dict[int, Spans] = {}
    for body in bodies:
        for ttl_ms, spans in waiting_times_ms(body.batch, group.now_us):
            placed = tuple(span.shifted(first) for span in spans)
            ttls[ttl_ms] = (*ttls.get(ttl_ms, ()), *placed)
        first += body.batch.num_rows
    return schedule, replace(digest, ttls=tuple(ttls.items()))


class Alarm:
    """Wakes schedules, and channels where rolled-back events wait (SEM D18), exactly when something
    is due, not at the next look for expired events."""

    def __init__(
        self, state: RealmState, wake: Callable[[int], None], clock: Clock, incidents: Incidents
    ) -> None:
        """``wake`` is called with the id of each channel where something is due."""
        self._state = state
        self._wake = wake
        self._clock = clock
        self._incidents = incidents
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Publish what is due, and let come again what has waited, until cancelled."""
        woken_us: int | None = None
        pause_s = SOONEST_S
        while True:
            due_us, numbers = self._next()
            wait_s = LOOK_AGAIN_S
            if due_us is not None:
                wait_s = min(LOOK_AGAIN_S, (due_us - self._clock.now_us()) / 1_000_000)
            if wait_s <= 0:
                for number in numbers:
                    self._wake(number)
                # Events still due after that could not leave: the disk is full, or slow.
                pause_s = min(2 * pause_s, PAUSE_MAX_S) if due_us == woken_us else SOONEST_S
                wait_s, woken_us = pause_s, due_us
            try:
                async with asyncio.timeout(max(SOONEST_S, wait_s)):
                    await self.changed.wait()
            except TimeoutError:
                continue
            self.changed.clear()

    def _next(self) -> tuple[int | None, list[int]]:
        """When something is due next, and where."""
        earliest: int | None = None
        numbers: list[int] = []
        state = self._state
        if (woken := state.wakes.next(state.channels)) is not None:
            earliest, numbers = woken[0], [woken[1]]
        for number in state.schedules:
            due_us = None
            if not self._incidents.is_aside("schedules", number):
                with self._incidents.barrier("schedules", number):
                    due_us = state.channels[number].state.ages.due_us(0)
            if due_us is None:
                continue
            if earliest is None or due_us < earliest:
                earliest, numbers = due_us, []
            if due_us == earliest:
                numbers.append(number)
        return earliest, numbers
