"""The delivery state of a channel's events: who has each of them, and since when (SEM D23).

Events that differ only in their ids are one run, so that a million ready events take only as many
runs as they have recorded publish times. A page is computed from windows of ids, whose work is
bounded whatever the channel stores; events that a durable has acknowledged cost nothing unless they
are requested.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from penstock_core.channel.state import ChannelState
from penstock_core.durable.durable import Durable
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.delivery_runs import (
    ACKNOWLEDGED,
    DELAYED,
    IN_FLIGHT,
    READY,
    DeliveryPlace,
    DeliveryRun,
    EventState,
)
from penstock_core.vocabulary.errors import InvalidArgument

RUNS_MAX: Final = 2_048
"""Maximum number of runs on a page. Within a window, also the maximum number of ranges, of publish
times, and of events with a client, a delay or a redelivery count that are examined."""
WINDOWS_MAX: Final = 32
"""Maximum number of windows (ranges of ids of one durable) that are examined for a page. Each
durable on the page takes at least one window."""
WINDOW_IDS_MAX: Final = 1 << 20
"""Maximum number of ids in a window, which bounds the work for sets of scattered ids."""
_END: Final = 1 << 62
"""A number above all event ids."""


class Selected(NamedTuple):
    """The rows to return."""

    durable: str | None
    """The only durable; None for all durables of the channel."""
    states: frozenset[EventState]
    """States of stored events."""
    rows_max: int


def delivery_runs(
    state: ChannelState, selected: Selected, place: DeliveryPlace, now_us: int
) -> tuple[list[DeliveryRun], DeliveryPlace | None]:
    """Return the selected rows of stored events from ``place`` on as runs, by durable and event id,
    and the place behind them; None if they are the last. A page may be short or empty although rows
    follow.

    Raises ``NameDoesNotExist``, and ``InvalidArgument`` if fewer than one row is requested.
    """
    names = selected_durables(state, selected)
    hidden = state.expired(now_us) if state.overdue else IdSet()
    runs: list[DeliveryRun] = []
    rows = windows = 0
    for name in names:
        next_id: int | None = place.first_id if name == place.durable else 0
        while next_id is not None and name >= place.durable:
            if len(runs) >= RUNS_MAX or windows >= WINDOWS_MAX or rows >= selected.rows_max:
                return runs, DeliveryPlace(name, next_id)
            windows += 1
            window = _Window(state, state.durables[name], selected.states, hidden=hidden)
            more, next_id = window.runs(next_id, selected.rows_max - rows)
            runs += more
            rows += sum([run.span.size for run in more])
    return runs, None


def selected_durables(state: ChannelState, selected: Selected) -> list[str]:
    """Return the names of the durables whose rows are selected.

    Raises ``NameDoesNotExist``, and ``InvalidArgument`` if fewer than one row is requested.
    """
    if selected.rows_max < 1:
        raise InvalidArgument(f"limit is {selected.rows_max}; allowed are 1 and more rows")
    if selected.durable is not None:
        return [state.durable(selected.durable).name]
    return sorted(state.durables)


class _Window:
    """Computes the runs of one durable in a range of ids."""

    def __init__(
        self,
        state: ChannelState,
        durable: Durable,
        states: frozenset[EventState],
        hidden: IdSet,
    ) -> None:
        """``hidden`` are stored events that clients do not see any more."""
        self._state = state
        self._durable = durable
        self._states = states
        self._hidden = hidden

    def runs(self, first_id: int, rows_max: int) -> tuple[list[DeliveryRun], int | None]:
        """Return runs from ``first_id`` on, with at most ``rows_max`` events, and the id at which
        the next window begins; None if no selected event follows."""
        start = self._first_candidate(first_id)
        if start is None:
            return [], None
        ids = self._ids_by_state(Span(start, start + WINDOW_IDS_MAX))
        end = self._end_of(ids, rows_max, start)
        for event_ids in ids.values():
            event_ids.remove(Span(end, _END))
        times = _Times(self._state.ages.within(Span(start, end), RUNS_MAX + 1))
        runs_by_state: dict[EventState, Iterator[DeliveryRun]] = {
            IN_FLIGHT: self._in_flight(ids[IN_FLIGHT]),
            READY: self._ready(ids[READY], times),
            DELAYED: self._delayed(ids[DELAYED], times),
            ACKNOWLEDGED: self._acknowledged(ids[ACKNOWLEDGED]),
        }
        runs = [run for state in self._states for run in runs_by_state[state]]
        return sorted(runs, key=_first_id), end

    def _first_candidate(self, first_id: int) -> int | None:
        """Return the lowest id from ``first_id`` on that may have a selected state, so that windows
        skip ids that cannot have one."""
        stored, durable = self._state.stored, self._durable
        if ACKNOWLEDGED in self._states:
            spans = [stored.next_span(first_id, 1)]
        elif READY in self._states:
            spans = [durable.outstanding.next_span(first_id, 1)]
            if not durable.selector:
                spans.append(stored.next_span(max(first_id, durable.head), 1))
        else:
            spans = []
            if IN_FLIGHT in self._states:
                spans += [seat.in_flight.next_span(first_id, 1) for seat in durable.seats]
            if DELAYED in self._states and durable.waiting:
                spans.append(durable.waiting.ids.next_span(first_id, 1))
        return min([span.first for span in spans if span is not None], default=None)

    def _ids_by_state(self, span: Span) -> dict[EventState, IdSet]:
        """Return the stored events of ``span``, by state. Each event is in one of the sets."""
        durable = self._durable
        acknowledged = self._state.stored.within(span)
        acknowledged.discard_all(self._hidden)
        ready = durable.wanting(acknowledged)
        acknowledged.discard_all(ready)
        held = IdSet.union([seat.in_flight.within(span) for seat in durable.seats])
        # A client that holds the durable as a whole may hold delayed events, too.
        in_flight = ready.remove_all(held)
        waiting = durable.waiting.ids.within(span) if durable.waiting else IdSet()
        return {
            IN_FLIGHT: in_flight,
            DELAYED: ready.remove_all(waiting),
            READY: ready,
            ACKNOWLEDGED: acknowledged,
        }

    def _end_of(self, ids: dict[EventState, IdSet], rows_max: int, start: int) -> int:
        """Return the id at which the window ends, so that it has at most ``rows_max`` rows and its
        work is bounded."""
        end = start + WINDOW_IDS_MAX
        chosen = IdSet.union([ids[state] for state in self._states])
        if len(chosen) > rows_max:
            end = _end_after(chosen, rows_max)
        spans, next_id = 0, start
        while spans < RUNS_MAX and (span := chosen.next_span(next_id, len(chosen))) is not None:
            spans, next_id = spans + 1, span.end
        end = min(end, next_id) if spans == RUNS_MAX else end
        # Events with a client, a delay or a count are examined one by one in the worst case.
        counted = [level.within(Span(start, end)) for level in self._durable.levels.values()]
        special = IdSet.union([ids[IN_FLIGHT], ids[DELAYED], *counted])
        if len(special) > RUNS_MAX:
            end = min(end, _end_after(special, RUNS_MAX))
        times = self._state.ages.within(Span(start, end), RUNS_MAX + 1)
        return min(end, times[-1][0]) if len(times) > RUNS_MAX else end

    def _in_flight(self, ids: IdSet) -> Iterator[DeliveryRun]:
        """Yield the runs of events that clients have."""
        for seat in self._durable.seats if ids else ():
            if seat.granted_at is None or not (held := seat.in_flight.overlap(ids)):
                continue
            for since_us, granted in seat.granted_at.times_of(held):
                for count, counted in self._by_count(granted):
                    for lease_end_us, leased in self._by_deadline(counted):
                        for span in leased.spans:
                            yield DeliveryRun(
                                span,
                                self._durable.name,
                                IN_FLIGHT,
                                client=seat.session,
                                since_us=since_us,
                                deliveries=None if count is None else count + 1,
                                lease_end_us=lease_end_us,
                            )

    def _ready(self, ids: IdSet, times: _Times) -> Iterator[DeliveryRun]:
        """Yield the runs of events that may be delivered."""
        for count, counted in self._by_count(ids):
            yield from self._published(READY, counted.spans, times, deliveries=count)

    def _delayed(self, ids: IdSet, times: _Times) -> Iterator[DeliveryRun]:
        """Yield the runs of events that are delayed after a rollback."""
        waiting = self._durable.waiting
        for until_us, delayed in waiting.by_time(ids) if waiting else ():
            for count, counted in self._by_count(ids.remove_all(delayed)):
                yield from self._published(
                    DELAYED, counted.spans, times, deliveries=count, until_us=until_us
                )

    def _acknowledged(self, ids: IdSet) -> Iterator[DeliveryRun]:
        """Yield the runs of events that the durable does not need any more."""
        for span in ids.spans:
            yield DeliveryRun(span, self._durable.name, ACKNOWLEDGED)

    def _published(
        self,
        state: EventState,
        spans: Spans,
        times: _Times,
        *,
        deliveries: int | None,
        until_us: int | None = None,
    ) -> Iterator[DeliveryRun]:
        """Yield the runs of outstanding events that no client has."""
        for span in spans:
            for part, since_us in times.split(span):
                yield DeliveryRun(
                    part,
                    self._durable.name,
                    state,
                    since_us=since_us,
                    deliveries=deliveries,
                    delayed_until_us=until_us,
                )

    def _by_count(self, ids: IdSet) -> Iterator[tuple[int | None, IdSet]]:
        """Yield parts of ``ids`` with their redelivery count; None if the type does not count."""
        if not self._durable.kind.redelivers_at_once:
            yield None, ids
            return
        remaining = ids.copy()
        for count, level in self._durable.levels.items():
            if remaining and (counted := remaining.remove_all(level)):
                yield count, counted
        yield 0, remaining

    def _by_deadline(self, ids: IdSet) -> Iterator[tuple[int | None, IdSet]]:
        """Yield parts of ``ids`` with their acknowledgement deadline; None without one."""
        remaining = ids
        if self._durable.deadlines:
            remaining = ids.copy()
            for at_us, timed in self._durable.deadlines.by_time(ids):
                yield at_us, remaining.remove_all(timed)
        yield None, remaining


class _Times:
    """Publish times of a window's events."""

    def __init__(self, entries: Sequence[tuple[int, int]]) -> None:
        """``entries`` are pairs of first id and time, both ascending."""
        self._firsts = [first for first, _ in entries]
        self._times_us = [at_us for _, at_us in entries]

    def split(self, span: Span) -> Iterator[tuple[Span, int | None]]:
        """Yield the parts of ``span`` with their publish times; None for ids below all entries."""
        index = bisect_right(self._firsts, span.first) - 1
        first = span.first
        while first < span.end:
            following = self._firsts[index + 1] if index + 1 < len(self._firsts) else _END
            end = min(span.end, following)
            yield Span(first, end), self._times_us[index] if index >= 0 else None
            first, index = end, index + 1


def _end_after(ids: IdSet, count: int) -> int:
    """Return the id behind the lowest ``count`` of ``ids``."""
    highest = ids.lowest_part(count).highest
    assert highest is not None, "the set has more than this many ids"
    return highest + 1


def _first_id(run: DeliveryRun) -> int:
    return run.span.first
