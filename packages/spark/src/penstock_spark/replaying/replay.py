"""A replay: the events of several histories, in the order of time, each published once more."""

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
from penstock_spark.replaying.position import PositionStore, ReplayPosition, opened, write
from penstock_spark.replaying.rows import body_of_stored, effective_times, marked

TICK_US: Final = 20_000
"""At a pace, events that are due within this time are published together."""
RETRY_US: Final = 1_000_000
"""Microseconds that a replay waits for a realm that takes nothing, because it is full or publishing
is paused."""
NO_TIME: Final = int(np.iinfo(np.int64).min)


class ReplayOutlet(Protocol):
    """The port by which a replay publishes."""

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        """Publish in one step; a repetition with the same ``producer`` and ``sequence`` publishes
        nothing."""
        ...


class Reached(Struct, frozen=True):
    """The progress of a replay."""

    events: int
    """Published since it was started this time."""
    original_us: int
    """The time at which the newest of them was first published, in microseconds since 1970."""
    late_us: int
    """Microseconds that the replay is behind its pace; 0 if it does not wait."""
    is_refused: str = ""
    """Why the realm takes nothing right now."""


class Replayed(Struct, frozen=True):
    """The result of a run of a replay."""

    events: int
    """Published in this run."""
    total: int
    """Published in all runs."""
    is_complete: bool
    """Whether there was nothing left."""
    late_max_us: int
    """The furthest it was behind its pace."""


class ReplayRoute(Struct, frozen=True):
    """The targets of a replay, and the origin that it records in the events."""

    targets: Mapping[str, str]
    """The channel to publish to, by channel of the history."""
    marks: bool = False
    """Whether events have the property ``replay_of``."""


class ReplayRun:
    """Publishes events of ``histories`` that were not published before.

    Events come by original time, then by name of the channel, then by id. An event that was
    published before one with a lower id of its channel, because a clock was set back, comes after
    it. In one target channel that is the order of the new ids. Several target channels get a
    portion one after the other: what is due in the same tick, or some ten thousand events at full
    speed.
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
        report: Callable[[Reached], None] = lambda _: None,
        rows: int = ROWS,
    ) -> None:
        self._histories = sorted(histories, key=lambda history: history.channel)
        self._route = route
        self._outlet = outlet
        self._place = place
        self._pace = pace
        self._timer = timer
        self._report = report
        self._rows = rows
        self._position = opened(place, dict(replays or {}))
        self._events = 0
        self._late_max_us = 0
        self._gathered: list[Portion] = []

    def run(self) -> Replayed:
        """Replay until nothing is left or the timer says to stop.

        Raises ``IllegalState`` when the archive has lost events of a portion that was begun.
        """
        is_complete = self._end_what_was_begun() and self._go_on()
        position = self._position
        if position.is_open:
            is_complete = False
        else:
            write(self._place, position)
        return Replayed(
            self._events, position.published, is_complete, late_max_us=self._late_max_us
        )

    # --- what is due ---------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Whether to continue; false when it was told to stop."""
        for portion in merged(self._sources(self._position.next_ids, {})):
            rest = portion
            while rest:
                if self._timer.wait(0):
                    self._publish_gathered()
                    return False
                rest = self._take_due(rest)
        return self._publish_gathered()

    def _take_due(self, portion: Portion) -> Portion:
        """Gather what is due, publish when it is enough, wait when nothing is; gives the rest."""
        now_us = self._timer.now_us()
        first = first_key(portion)
        self._pace.start(first, now_us)
        due, rest = cut_at(portion, self._pace.reached_us(now_us))
        if due:
            self._gathered.append(due)
        if self._gathered and (rest or sum(map(count_of, self._gathered)) >= self._rows):
            self._publish_gathered()
        if not due:
            self._timer.wait(max(TICK_US, self._pace.due_us(first) - now_us))
        return rest

    def _sources(self, firsts: Mapping[str, int], ends: Mapping[str, int]) -> list[SortedRun]:
        return [
            SortedRun(NO_TIME, partial(self._keyed, history, firsts, ends))
            for history in self._histories
        ]

    def _keyed(
        self, history: History, firsts: Mapping[str, int], ends: Mapping[str, int]
    ) -> Iterator[SortedRows]:
        name = history.channel
        latest = self._position.times.get(name, NO_TIME)
        for batch in history.batches(firsts.get(name, 0), ends.get(name)):
            keys = effective_times(batch.column("published"), latest)
            latest = int(keys[-1])
            yield SortedRows(keys, batch)

    # --- publishing ----------------------------------------------------------------------

    def _end_what_was_begun(self) -> bool:
        """Publish the portion again that may have been cut off; False when told to stop."""
        position = self._position
        if not position.is_open:
            return True
        changed = {
            name: end
            for name, end in position.ends.items()
            if end != position.next_ids.get(name, 0)
        }
        kept = [history for history in self._histories if history.channel in changed]
        firsts = position.next_ids
        sources = [SortedRun(NO_TIME, partial(self._keyed, each, firsts, changed)) for each in kept]
        order = {history.channel: index for index, history in enumerate(self._histories)}
        numbers = [order[history.channel] for history in kept]
        portions = [
            [piece._replace(source=numbers[piece.source]) for piece in portion]
            for portion in merged(sources)
        ]
        count = sum(map(count_of, portions))
        if count != position.count:
            raise IllegalState(
                f"the archive has {count:,} of the {position.count:,} events that were about to "
                "be published when the replay was interrupted; rename the step to start over "
                f"with what the archive has"
            )
        return self._publish(portions)

    def _publish_gathered(self) -> bool:
        """Publish what was gathered; gives False if told to stop before the realm accepted it."""
        portions, self._gathered = self._gathered, []
        if not portions:
            return True
        self._begin(portions)
        return self._publish(portions)

    def _begin(self, portions: Sequence[Portion]) -> None:
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
        position = self._position
        for target, bodies in self._bodies(portions).items():
            if not self._taken(target, bodies, position):
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
        self._tell(portions)
        return True

    def _taken(
        self, target: str, bodies: Sequence[pa.RecordBatch], position: ReplayPosition
    ) -> bool:
        while True:
            try:
                self._outlet.publish(target, bodies, position.producer, sequence=position.number)
            except Refused as refusal:
                if not refusal.retryable:
                    raise
                self._report(Reached(self._events, self._original_us, 0, is_refused=str(refusal)))
                if self._timer.wait(RETRY_US):
                    return False
            else:
                return True

    @property
    def _original_us(self) -> int:
        return max(self._position.times.values(), default=0)

    def _tell(self, portions: Sequence[Portion]) -> None:
        late = 0
        if not self._pace.is_flat_out:
            self._pace.start(first_key(portions[0]), self._timer.now_us())
            late = max(0, self._timer.now_us() - self._pace.due_us(first_key(portions[0])))
        self._late_max_us = max(self._late_max_us, late)
        self._report(Reached(self._events, last_key(portions[-1]), late))

    def _bodies(self, portions: Sequence[Portion]) -> dict[str, list[pa.RecordBatch]]:
        """The batches of each target, in order; targets are ordered by their first event."""
        found: dict[str, list[pa.RecordBatch]] = {}
        for portion in portions:
            by_target: dict[str, Portion] = {}
            for piece in portion:
                target = self._route.targets[self._histories[piece.source].channel]
                by_target.setdefault(target, []).append(piece)
            for target, pieces in sorted(by_target.items(), key=lambda item: first_key(item[1])):
                found.setdefault(target, []).append(self._body(pieces))
        return {target: joined(bodies) for target, bodies in found.items()}

    def _body(self, pieces: Portion) -> pa.RecordBatch:
        bodies = [self._prepared(piece.source, piece.rows.batch) for piece in pieces]
        return bodies[0] if len(bodies) == 1 else interleaved(bodies, pieces)

    def _prepared(self, source: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        body = body_of_stored(batch)
        if not self._route.marks:
            return body
        names = pa.repeat(pa.scalar(self._histories[source].channel), batch.num_rows)
        return marked(body, names, batch.column("event_id"), published=batch.column("published"))


def interleaved(bodies: Sequence[pa.RecordBatch], pieces: Portion) -> pa.RecordBatch:
    """One body from several, its rows in the order of the pieces' keys."""
    schema = ChannelSchema.empty()
    for body in bodies:
        schema = schema.grown(body.schema)
    numbered = [
        schema.conform(stamp(body, np.arange(body.num_rows, dtype=np.int64), 0)) for body in bodies
    ]
    whole = pa.concat_batches(numbered).take(pa.array(order_of(pieces)))
    return body_of_stored(whole)


def joined(bodies: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Join neighbouring batches of one schema, so that there are fewer."""
    found: list[list[pa.RecordBatch]] = []
    for body in bodies:
        if found and found[-1][0].schema.equals(body.schema, check_metadata=True):
            found[-1].append(body)
        else:
            found.append([body])
    return [run[0] if len(run) == 1 else pa.concat_batches(run) for run in found]
