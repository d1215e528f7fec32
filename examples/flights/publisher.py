"""The publisher: publishes each flight as an event, in order of departure, exactly once."""

from __future__ import annotations

import threading
from time import perf_counter

import pyarrow as pa

import penstock
from examples.flights.companion import PartFailed
from examples.flights.names import FLIGHTS
from examples.flights.progress import Part
from examples.flights.threads import PartThread
from examples.flights.timetable import events_of

BATCH_ROWS = 1_000
"""Number of flights in one publish, which are about those of a day."""


class Publisher(PartThread):
    """Publishes flights from the row after the last stored one.

    Event ids of a channel begin at 0, and the channel has no other publisher, so the id of a flight
    is its row number. Therefore an interrupted run continues after the last id of the channel.
    """

    def __init__(
        self, part: Part, session: penstock.Session, flights: pa.Table, rate: int | None
    ) -> None:
        """``rate`` is the maximum number of events per second; None for no limit."""
        super().__init__(part)
        self._session = session
        self._flights = flights
        self._rate = rate
        self._pause = threading.Event()

    def work(self) -> None:
        channel = self._session.channels.get(FLIGHTS)
        first = channel.info().last_event_id + 1
        # At a low rate there are four publishes per second, so that progress is visible.
        step = min(BATCH_ROWS, max(1, self._rate // 4)) if self._rate else BATCH_ROWS
        began, begun_at = perf_counter(), first
        self.part.began()
        while first < self._flights.num_rows and not self.stopped:
            rows = self._flights.slice(first, step)
            ids = channel.publish_table(events_of(rows))
            if ids.start != first:
                raise PartFailed(
                    f"the flight of row {first} became event {ids.start}: something else "
                    f"publishes to {FLIGHTS}; run again with --fresh"
                )
            first = ids.stop
            self.part.reach(first, note=_day(rows))
            if self._rate:
                ahead_s = (first - begun_at) / self._rate - (perf_counter() - began)
                self._pause.wait(max(0.0, ahead_s))


def _day(rows: pa.Table) -> str:
    """Return the day of the last flight, for the progress."""
    last = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return f"{last['year']}-{last['month']:02}-{last['day']:02}"
