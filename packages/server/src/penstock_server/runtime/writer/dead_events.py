"""Moves events from one store to another in a single step: dead events, and scheduled events that
are due (SEM T7, X4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from operator import itemgetter
from typing import Final

import numpy as np
import pyarrow as pa

from penstock_core.api.channels import ChannelOpened
from penstock_core.channel.dead import MOVED_EVENTS_MAX, Missed, missed
from penstock_core.channel.state import ChannelState
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.delivery_time import due_times_us
from penstock_core.columns.events.origin import due_body, with_origin
from penstock_core.columns.schema.layout import with_reason
from penstock_core.columns.selectors.outcomes import PredicateOutcomes
from penstock_core.ids.ids import IdSet, Spans
from penstock_core.loggers import logger
from penstock_core.messages.retention import Removed
from penstock_core.messages.settlements import Buried
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.causes import Cause
from penstock_server.runtime.store.bodies import Body, body_from
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.store.sealed_file import Damage, Publishers
from penstock_server.runtime.store.state import RealmState
from penstock_server.runtime.writer.following_publish import FollowingPublish
from penstock_server.runtime.writer.match_cache import MatchCache

MOVING_SHARE: Final = 0.4
"""Largest share of time for groups that move dead events. In the rest of the time only clients are
served, however many dead events are due."""
MOVING_PAUSE_S_MAX: Final = 1.0
"""Longest pause in seconds after a step that moved dead events."""
STEP_S: Final = 0.004
"""Target duration of a step in seconds, during which it blocks the event loop. The duration of
earlier steps decides how many events the next step moves."""
_log = logger("penstock.realm")
_EVENTS_MIN: Final = 250
"""Number of events in the first step, and the minimum for all steps: smaller steps would mostly be
overhead."""


def move(
    realm: RealmState,
    channel_id: int,
    fact: Removed | Buried,
    *,
    match_cache: MatchCache,
    now_us: int,
    reason: str | None = None,
) -> Iterator[FollowingPublish | Removed | Buried]:
    """Yield the publishes to the dead event store, then the facts that remove the events from
    channel ``channel_id``. The caller must carry out each publish and each fact before it advances
    this generator. ``reason`` is the text with which a client rejected the events. Unreadable
    events do not move: they are quarantined (SEM S1)."""
    dead = fact.dead if isinstance(fact, Removed) else fact.spans
    target = realm.directory.dead_event_store_of(channel_id)
    unreadable = IdSet()
    if target is not None:
        state, store, damage = realm.channels[channel_id].state, realm.stores[channel_id], Damage()
        rows = store.read(dead, damage)
        unreadable = damage.ids.overlap(state.stored)
        store.quarantined += damage.reasons
        cached_outcomes = partial(match_cache.known_of, channel_id)
        if state.definition.kind == "schedule":
            publishes = runs(_by_time(rows), due_body, cached_outcomes)
        else:
            parts = (by_publisher(part.batch, part.publishers) for part in rows)
            add_origin = _with_origin(state, fact, now_us, reason=reason)
            publishes = runs(chain.from_iterable(parts), add_origin, cached_outcomes)
        for publisher, bodies in publishes:
            yield FollowingPublish(target, bodies, publisher)
        # Last, because the publishes above use the cached results of these events.
        match_cache.forget(channel_id, dead)
    yield from _remaining(fact, unreadable, keep_dead=target is not None)


def _remaining(
    fact: Removed | Buried, unreadable: IdSet, *, keep_dead: bool
) -> Iterator[Removed | Buried]:
    """Yield the facts to apply to the store that the events have left: ``fact`` without the
    unreadable events, and a fact that quarantines the unreadable ones."""
    if isinstance(fact, Buried):
        yield fact
    else:
        dead = _without(fact.dead, unreadable) if keep_dead else ()
        yield Removed(_without(fact.spans, unreadable), fact.cause, dead)
    if unreadable:
        yield Removed(unreadable.spans, Cause.QUARANTINED)


def _without(spans: Spans, ids: IdSet) -> Spans:
    """Return ``spans`` without ``ids``."""
    if not ids:
        return spans
    remaining = IdSet(spans)
    remaining.remove_all(ids)
    return remaining.spans


def _with_origin(
    state: ChannelState, fact: Removed | Buried, now_us: int, *, reason: str | None
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that adds the origin of dead events, and the cause of their death, to a
    batch."""
    if isinstance(fact, Buried):
        dead = fact.spans
        durables = Missed((((fact.durable,), dead),), missed(state, dead).redeliveries)
    else:
        durables = missed(state, fact.dead)
    return partial(
        with_origin,
        store=state.name,
        cause=with_reason(fact.cause.value, reason or ""),
        at_us=now_us,
        durables=durables.durables,
        redeliveries=durables.redeliveries,
    )


def _by_time(rows: Sequence[OutgoingBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield scheduled events in the order of their due times, in batches of one publisher and one
    time each."""
    parts: list[tuple[int, str, pa.RecordBatch]] = []
    for part in rows:
        for publisher, batch in by_publisher(part.batch, part.publishers):
            due = due_times_us(batch)
            # Stable, so that events due at the same time keep the order in which they were
            # published.
            order = np.argsort(due, kind="stable")
            edges = np.flatnonzero(np.diff(due[order])) + 1
            parts += [
                (int(due[run[0]]), publisher, batch.take(pa.array(run)))
                for run in np.split(order, edges)
            ]
    parts.sort(key=lambda part: part[0])
    for _, publisher, batch in parts:
        yield publisher, batch


def by_publisher(
    batch: pa.RecordBatch, publishers: Publishers
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield runs of rows of one publisher each (SEM E3), with the publisher."""
    if not publishers:
        yield "", batch
        return
    # The usual case: one publisher of all events, recorded without spans.
    if len(publishers) == 1 and not publishers[0][1]:
        yield publishers[0][0], batch
        return
    ids = ids_of(batch)
    owner = np.full(len(ids), -1)
    for n, (_, spans) in enumerate(publishers):
        for first, end in spans:
            start, stop = np.searchsorted(ids, [first, end])
            owner[start:stop] = n
    edges = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), len(ids)]
    for start, stop in pairwise(edges):
        n = int(owner[start])
        yield publishers[n][0] if n >= 0 else "", batch.slice(start, stop - start)


def runs(
    parts: Iterable[tuple[str, pa.RecordBatch]],
    add_columns: Callable[[pa.RecordBatch], pa.RecordBatch],
    cached_outcomes: Callable[[pa.RecordBatch], PredicateOutcomes | None],
) -> Iterator[tuple[str, list[Body]]]:
    """Yield each publisher of consecutive batches with the bodies to publish together. Batches with
    the same schema are merged first, so that there are few bodies. ``add_columns`` returns a batch
    with further columns, and ``cached_outcomes`` returns the cached outcomes of selectors for a
    batch."""
    for publisher, run in groupby(parts, itemgetter(0)):
        yield (
            publisher,
            [body_from(add_columns(batch), cached_outcomes(batch)) for batch in _merged(run)],
        )


def _merged(parts: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, with consecutive batches of the same schema merged into one."""
    merged: list[list[pa.RecordBatch]] = []
    for _, batch in parts:
        if merged and merged[-1][0].schema.equals(batch.schema, check_metadata=True):
            merged[-1].append(batch)
        else:
            merged.append([batch])
    for run in merged:
        yield pa.concat_batches(run) if len(run) > 1 else run[0].take(_all_rows(run[0]))


def _all_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return the indices of all rows. Taking the rows by these indices copies a slice of a larger
    batch; without the copy, the body would include the buffers of the whole batch."""
    return pa.array(np.arange(batch.num_rows))


class MovingPace:
    """Sets the pause between two steps of moving events, and the size of a step."""

    def __init__(self, wake: Callable[[int], None]) -> None:
        """``wake`` lets the writer serve a channel with events that wait to move."""
        self._wake = wake
        self.resting: asyncio.TimerHandle | None = None
        """Timer that ends the present pause of moving events; None outside a pause."""
        self._held_back: dict[int, None] = {}
        """Channels that wait for the end of the pause, in the order of :meth:`hold_back`."""
        self.events_max = _EVENTS_MIN
        """Limit on the events of a channel that move in the next step."""

    def hold_back(self, channel_id: int) -> None:
        """Wake a channel at the end of the pause, not earlier."""
        self._held_back[channel_id] = None

    def adapt_step(self, events: int, held_s: float) -> None:
        """Adapt the size of the next step to ``STEP_S``, after moving ``events`` events has blocked
        the event loop for ``held_s`` seconds. The size at most halves or doubles, because one slow
        step may have other causes."""
        if held_s > STEP_S:
            fitting = int(min(events, self.events_max) * STEP_S / held_s)
            self.events_max = max(_EVENTS_MIN, self.events_max // 2, fitting)
        elif held_s < STEP_S / 2 and events >= self.events_max:
            self.events_max = min(2 * self.events_max, MOVED_EVENTS_MAX)

    def rest(self, began_s: float) -> None:
        """Begin the pause after a step that began at ``began_s`` seconds of the loop's time. The
        pause is long enough to leave publishers their share of the time."""
        loop = asyncio.get_running_loop()
        # The step took MOVING_SHARE of the time from its start to the end of the pause.
        pause_s = (loop.time() - began_s) * (1 - MOVING_SHARE) / MOVING_SHARE
        if pause_s:
            self.resting = loop.call_later(min(pause_s, MOVING_PAUSE_S_MAX), self._end_pause)

    def _end_pause(self) -> None:
        self.resting = None
        held_back, self._held_back = self._held_back, {}
        for channel_id in held_back:  # the channel that has waited longest comes first
            self._wake(channel_id)


def warn_if_not_kept(directory: Directory, opened: ChannelOpened) -> None:
    """Log a warning if the dead event store of a channel does not keep events without readers."""
    if opened.channel not in directory.channels:  # deleted before its creation was answered
        return
    target = directory.dead_event_store_of(opened.channel)
    store = None if target is None else directory.channels[target].state
    if store is not None and (store.type.relays or store.engine.needs_interest):
        how = "transient" if store.type.relays else "jms"
        _log.warning("store.dead_events_not_kept", name=opened.name, dead=store.name, how=how)
