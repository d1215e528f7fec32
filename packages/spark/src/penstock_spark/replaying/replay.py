"""Publishes the events of several histories again, in the order of their publication times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from penstock_core.columns.events.batch import ids_of, stamp
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.vocabulary.errors import IllegalState, Refused
from penstock_spark.replaying.archived import ROWS, History
from penstock_spark.replaying.ordering import (
    Portion,
    SortedRows,
    SortedRun,
    count_of,
    cut_at,
    first_key,
    last_key,
    merged,
    order_of,
)
from penstock_spark.replaying.pace import ReplayPace, Timer
from penstock_spark.replaying.position import PositionStore, ReplayPosition, open_position, write
from penstock_spark.replaying.rows import body_of_stored, effective_times, marked

TICK_US: Final = 20_000
"""Microseconds of one tick. Events that are due in the same tick are published together, unless the
replay runs at full speed."""
RETRY_US: Final = 1_000_000
"""Microseconds between attempts to publish while the realm refuses, because it is full or
paused."""
NO_TIME: Final = int(np.iinfo(np.int64).min)
"""A lower bound of all times, for sources whose times are unknown."""


class ReplayOutlet(Protocol):
    """Publishes the events of a replay."""

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        """Publish ``bodies`` to a channel in one step.

        A repetition with equal ``producer`` and ``sequence`` publishes nothing.
        """
        ...


class ReplayProgress(Struct, frozen=True):
    """The progress of a replay, which it reports after each portion."""

    events: int
    """Number of events published in this run."""
    original_us: int
    """Original publication time of the newest of these events, in microseconds since 1970."""
    late_us: int
    """Delay of the replay behind its pace, in microseconds; 0 at full speed."""
    refusal: str = ""
    """Why the realm refuses the current portion; empty if it does not."""


class ReplayOutcome(Struct, frozen=True):
    """The result of a run of a replay."""

    events: int
    """Number of events published in this run."""
    total: int
    """Number of events published in all runs."""
    is_complete: bool
    """Whether all events were replayed; False if the run was stopped earlier."""
    late_max_us: int
    """Longest time that the replay was behind its pace, in microseconds."""


class ReplayRoute(Struct, frozen=True):
    """The target channels of a replay, and whether replayed events are marked."""

    targets: Mapping[str, str]
    """Name of the target channel, by name of the original channel."""
    marks: bool = False
    """Whether replayed events get the property ``replay_of``."""


class ReplayRun:
    """Publishes the events of ``histories`` that were not replayed yet.

    Events are ordered by original time, then by name of the channel, then by id. If a clock was set
    back, so that an event has an earlier time than an event of its channel with a lower id, the
    order of ids wins. In each target channel, the new ids follow this order. Several target
    channels get their events in portions: the events due in the same tick, or about ``rows`` events
    at full speed.
    """

    def __init__(
        self,
        histories: Sequence[History],
        route: ReplayRoute,
        outlet: ReplayOutlet,
        place: PositionStore,
        *,
        pace: ReplayPace,
        timer: Timer,
        replays: Mapping[str, str] | None = None,
        report: Callable[[ReplayProgress], None] = lambda _: None,
        rows: int = ROWS,
    ) -> None:
        """``place`` stores the position. ``replays`` are the settings that must not change while
        the replay continues. ``rows`` is the number of events of a portion at full speed."""
        # The index of a history is the second key of the order, so histories are sorted by name.
        self._histories = sorted(histories, key=lambda history: history.channel)
        self._route = route
        self._outlet = outlet
        self._place = place
        self._pace = pace
        self._timer = timer
        self._report = report
        self._rows = rows
        self._position = open_position(place, dict(replays or {}))
        self._events = 0
        self._late_max_us = 0
        self._due_portions: list[Portion] = []
        """Due events that are not published yet."""

    def run(self) -> ReplayOutcome:
        """Replay until all events are published or the timer stops the replay.

        Raises ``IllegalState`` if the archive no longer has all events of a portion whose
        publication was interrupted.
        """
        is_complete = self._finish_open_portion() and self._publish_remaining()
        position = self._position
        # An open portion is already in the stored position; the next run finishes it.
        if position.is_open:
            is_complete = False
        else:
            write(self._place, position)
        return ReplayOutcome(
            self._events, position.published, is_complete, late_max_us=self._late_max_us
        )

    # --- due events ----------------------------------------------------------------------

    def _publish_remaining(self) -> bool:
        """Publish the remaining events; return False if the timer stopped the replay."""
        for portion in merged(self._sources(self._position.next_ids, {})):
            remaining = portion
            while remaining:
                if self._timer.wait(0):
                    self._publish_due()
                    return False
                remaining = self._process_due(remaining)
        return self._publish_due()

    def _process_due(self, portion: Portion) -> Portion:
        """Collect the due events of a portion, and return the others.

        Publish the collected events if they suffice for a portion or no more are due now. If no
        event is due, wait for the first one.
        """
        now_us = self._timer.now_us()
        first = first_key(portion)
        self._pace.start(first, now_us)
        due, not_due = cut_at(portion, self._pace.reached_us(now_us))
        if due:
            self._due_portions.append(due)
        if self._due_portions and (not_due or sum(map(count_of, self._due_portions)) >= self._rows):
            self._publish_due()
        if not due:
            self._timer.wait(max(TICK_US, self._pace.due_us(first) - now_us))
        return not_due

    def _sources(self, first_ids: Mapping[str, int], ends: Mapping[str, int]) -> list[SortedRun]:
        """Return the events of each history from ``first_ids`` to before ``ends``, by channel. A
        missing entry means the first event, or no end."""
        return [
            SortedRun(NO_TIME, partial(self._with_keys, history, first_ids, ends))
            for history in self._histories
        ]

    def _with_keys(
        self, history: History, first_ids: Mapping[str, int], ends: Mapping[str, int]
    ) -> Iterator[SortedRows]:
        """Yield the events of a history with their times as keys."""
        name = history.channel
        latest = self._position.times.get(name, NO_TIME)
        for batch in history.batches(first_ids.get(name, 0), ends.get(name)):
            keys = effective_times(batch.column("published"), latest)
            latest = int(keys[-1])
            yield SortedRows(keys, batch)

    # --- publishing ----------------------------------------------------------------------

    def _finish_open_portion(self) -> bool:
        """If the publication of a portion was interrupted, publish the portion again.

        Return False if the timer stopped the replay. Raises ``IllegalState`` if the archive no
        longer has all events of the portion.
        """
        position = self._position
        if not position.is_open:
            return True
        unfinished_ends = {
            name: end
            for name, end in position.ends.items()
            if end != position.next_ids.get(name, 0)
        }
        histories = [history for history in self._histories if history.channel in unfinished_ends]
        first_ids = position.next_ids
        sources = [
            SortedRun(NO_TIME, partial(self._with_keys, history, first_ids, unfinished_ends))
            for history in histories
        ]
        # `merged` numbers only the sources with unfinished events; the other methods expect the
        # index among all histories.
        index_of = {history.channel: index for index, history in enumerate(self._histories)}
        indexes = [index_of[history.channel] for history in histories]
        portions = [
            [source_rows._replace(source=indexes[source_rows.source]) for source_rows in portion]
            for portion in merged(sources)
        ]
        count = sum(map(count_of, portions))
        if count != position.count:
            raise IllegalState(
                f"the archive has {count:,} of the {position.count:,} events that were about to "
                "be published when the replay was interrupted; rename the step to start over "
                f"with the events that the archive has"
            )
        return self._publish(portions)

    def _publish_due(self) -> bool:
        """Publish the collected events; return False if the timer stopped the replay before the
        realm accepted them."""
        portions, self._due_portions = self._due_portions, []
        if not portions:
            return True
        # The position is written before the portion, so that an interrupted portion is published
        # again.
        self._begin(portions)
        return self._publish(portions)

    def _begin(self, portions: Sequence[Portion]) -> None:
        """Store a position that has these events as the newest portion, with unknown outcome."""
        position = self._position
        ends = dict(position.next_ids)
        for portion in portions:
            for source, rows in portion:
                last = ids_of(rows.batch)[-1]
                ends[self._histories[source].channel] = int(last) + 1
        self._position = replace(
            position,
            number=position.number + 1,
            ends=ends,
            count=sum(map(count_of, portions)),
            is_open=True,
        )
        write(self._place, self._position)

    def _publish(self, portions: Sequence[Portion]) -> bool:
        """Publish the newest portion, and advance the position behind it. Return False if the timer
        stopped the replay."""
        position = self._position
        for target, bodies in self._bodies(portions).items():
            if not self._publish_to(target, bodies, position):
                return False
        times = dict(position.times)
        for portion in portions:
            for source, rows in portion:
                times[self._histories[source].channel] = int(rows.keys[-1])
        self._position = replace(
            position,
            next_ids=position.ends,
            times=times,
            published=position.published + position.count,
            is_open=False,
        )
        self._events += position.count
        self._report_progress(portions)
        return True

    def _publish_to(
        self, target: str, bodies: Sequence[pa.RecordBatch], position: ReplayPosition
    ) -> bool:
        """Publish to one channel, and retry while the realm is full or paused. Return False if the
        timer stopped the replay."""
        while True:
            try:
                self._outlet.publish(target, bodies, position.producer, sequence=position.number)
            except Refused as refusal:
                if not refusal.retryable:
                    raise
                self._report(
                    ReplayProgress(self._events, self._original_us, 0, refusal=str(refusal))
                )
                if self._timer.wait(RETRY_US):
                    return False
            else:
                return True

    @property
    def _original_us(self) -> int:
        """The latest original time of the published events, in microseconds since 1970."""
        return max(self._position.times.values(), default=0)

    def _report_progress(self, portions: Sequence[Portion]) -> None:
        """Report a portion that was just published."""
        delay_us = 0
        if not self._pace.is_flat_out:
            self._pace.start(first_key(portions[0]), self._timer.now_us())
            delay_us = max(0, self._timer.now_us() - self._pace.due_us(first_key(portions[0])))
        self._late_max_us = max(self._late_max_us, delay_us)
        self._report(ReplayProgress(self._events, last_key(portions[-1]), delay_us))

    def _bodies(self, portions: Sequence[Portion]) -> dict[str, list[pa.RecordBatch]]:
        """Return the batches to publish, by target channel. Targets are ordered by their first
        event."""
        bodies_by_target: dict[str, list[pa.RecordBatch]] = {}
        for portion in portions:
            by_target: dict[str, Portion] = {}
            for source_rows in portion:
                target = self._route.targets[self._histories[source_rows.source].channel]
                by_target.setdefault(target, []).append(source_rows)
            for target, pieces in sorted(by_target.items(), key=lambda item: first_key(item[1])):
                bodies_by_target.setdefault(target, []).append(self._body(pieces))
        return {target: joined(bodies) for target, bodies in bodies_by_target.items()}

    def _body(self, pieces: Portion) -> pa.RecordBatch:
        """Return the events of several sources as one body, in the order of the replay."""
        bodies = [
            self._body_of_batch(source_rows.source, source_rows.rows.batch)
            for source_rows in pieces
        ]
        return bodies[0] if len(bodies) == 1 else interleaved(bodies, pieces)

    def _body_of_batch(self, source: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a stored batch of a history as a body, with marks if the route has them."""
        body = body_of_stored(batch)
        if not self._route.marks:
            return body
        names = pa.repeat(pa.scalar(self._histories[source].channel), batch.num_rows)
        return marked(body, names, batch.column("event_id"), published=batch.column("published"))


def interleaved(bodies: Sequence[pa.RecordBatch], pieces: Portion) -> pa.RecordBatch:
    """Return one body with the rows of ``bodies``, ordered by the keys of ``pieces``.

    Each body has the rows of the piece at its index.
    """
    schema = ChannelSchema.empty()
    for body in bodies:
        schema = schema.grown(body.schema)
    # Only stored batches can be extended to a common schema, so ids and times are added here and
    # removed at the end.
    stamped = [
        schema.conform(stamp(body, np.arange(body.num_rows, dtype=np.int64), 0)) for body in bodies
    ]
    stored = pa.concat_batches(stamped).take(pa.array(order_of(pieces)))
    return body_of_stored(stored)


def joined(bodies: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return ``bodies`` with adjacent batches of equal schemas concatenated."""
    runs: list[list[pa.RecordBatch]] = []
    for body in bodies:
        if runs and runs[-1][0].schema.equals(body.schema, check_metadata=True):
            runs[-1].append(body)
        else:
            runs.append([body])
    return [run[0] if len(run) == 1 else pa.concat_batches(run) for run in runs]
