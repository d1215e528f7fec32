"""Events that leave one store for another in the step in which they leave: dead ones, and those
whose time has come (SEM T7, X4)."""

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
"""Share of time, at most, for groups in which dead events move. In the rest publishers are served
alone, however many dead events are due."""
MOVING_PAUSE_S_MAX: Final = 1.0
STEP_S: Final = 0.004
"""So long a step is to hold up the loop. How many events that is, the steps before tell."""
_log = logger("penstock.realm")
_EVENTS_MIN: Final = 250
"""A step begins with so many, and has no fewer: most of it would go into its beginning and end."""


def move(
    realm: RealmState,
    channel_id: int,
    fact: Removed | Buried,
    *,
    match_cache: MatchCache,
    now_us: int,
    reason: str | None = None,
) -> Iterator[FollowingPublish | Removed | Buried]:
    """Yield the publishes to the dead event store, then the facts of the store that the dead events
    leave, each to be done before the next one is asked for. ``reason`` is given by a client that
    has rejected them. Events that cannot be read do not move: they are quarantined (SEM S1)."""
    dead = fact.dead if isinstance(fact, Removed) else fact.spans
    target = realm.directory.dead_event_store_of(channel_id)
    unreadable = IdSet()
    if target is not None:
        state, store, damage = realm.channels[channel_id].state, realm.stores[channel_id], Damage()
        rows = store.read(dead, damage)
        unreadable = damage.ids.overlap(state.stored)
        store.quarantined += damage.reasons
        known = partial(match_cache.known_of, channel_id)
        if state.definition.kind == "schedule":
            publishes = runs(_by_time(rows), due_body, known)
        else:
            parts = (by_publisher(part.batch, part.publishers) for part in rows)
            dressed = _with_origin(state, fact, now_us, reason=reason)
            publishes = runs(chain.from_iterable(parts), dressed, known)
        for publisher, bodies in publishes:
            yield FollowingPublish(target, bodies, publisher)
        match_cache.moved(channel_id, dead)
    yield from _remaining(fact, unreadable, keep_dead=target is not None)


def _remaining(
    fact: Removed | Buried, unreadable: IdSet, *, keep_dead: bool
) -> Iterator[Removed | Buried]:
    """The part of ``fact`` that still has to be applied to the store where the events were."""
    if isinstance(fact, Buried):
        yield fact
    else:
        dead = _without(fact.dead, unreadable) if keep_dead else ()
        yield Removed(_without(fact.spans, unreadable), fact.cause, dead)
    if unreadable:
        yield Removed(unreadable.spans, Cause.QUARANTINED)


def _without(spans: Spans, ids: IdSet) -> Spans:
    if not ids:
        return spans
    left = IdSet(spans)
    left.remove_all(ids)
    return left.spans


def _with_origin(
    state: ChannelState, fact: Removed | Buried, now_us: int, *, reason: str | None
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return what adds to dead events where they come from, and why they died."""
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
    """The events one by one in the order in which they are due, whoever published them."""
    parts: list[tuple[int, str, pa.RecordBatch]] = []
    for part in rows:
        for publisher, batch in by_publisher(part.batch, part.publishers):
            due = due_times_us(batch)
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
    """Runs of rows one publisher has sent (SEM E3)."""
    if not publishers:
        yield "", batch
        return
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
    dressed: Callable[[pa.RecordBatch], pa.RecordBatch],
    known: Callable[[pa.RecordBatch], PredicateOutcomes | None],
) -> Iterator[tuple[str, list[Body]]]:
    """Neighbouring batches of one publisher, to be published together, each ``dressed`` as a
    body after they have been made as few as they can be, with what is ``known`` of its events."""
    for publisher, run in groupby(parts, itemgetter(0)):
        yield publisher, [body_from(dressed(batch), known(batch)) for batch in _merged(run)]


def _merged(parts: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """The batches joined as far as their schemas allow."""
    merged: list[list[pa.RecordBatch]] = []
    for _, batch in parts:
        if merged and merged[-1][0].schema.equals(batch.schema, check_metadata=True):
            merged[-1].append(batch)
        else:
            merged.append([batch])
    for run in merged:
        yield pa.concat_batches(run) if len(run) > 1 else run[0].take(_all(run[0]))


def _all(batch: pa.RecordBatch) -> pa.Array:
    """A slice keeps alive, and sends, the buffers it was cut from: take what is in it."""
    return pa.array(np.arange(batch.num_rows))


class MovingPace:
    """The rest between two steps, and the size of a step."""

    def __init__(self, wake: Callable[[int], None]) -> None:
        """``wake`` has a channel looked at on which something waits to move."""
        self._wake = wake
        self.resting: asyncio.TimerHandle | None = None
        """The timer until which nothing moves, while it is the turn of those who publish."""
        self._held_back: dict[int, None] = {}
        """Channels, in order, that wait for it."""
        self.events_max = _EVENTS_MIN
        """The most events of a channel that move in the next step."""

    def hold_back(self, number: int) -> None:
        """Wake this channel after the rest."""
        self._held_back[number] = None

    def has_moved(self, events: int, held_s: float) -> None:
        """The next step has the size that would have held up the loop for as long as a step may,
        ``held_s`` having been the time for so many ``events``."""
        if held_s > STEP_S:
            fitting = int(min(events, self.events_max) * STEP_S / held_s)
            self.events_max = max(_EVENTS_MIN, self.events_max // 2, fitting)
        elif held_s < STEP_S / 2 and events >= self.events_max:
            self.events_max = min(2 * self.events_max, MOVED_EVENTS_MAX)

    def rest(self, began_s: float) -> None:
        """Let publishers have their share of the time, after a step that ``began_s`` then, before
        more dead events move."""
        loop = asyncio.get_running_loop()
        pause_s = (loop.time() - began_s) * (1 - MOVING_SHARE) / MOVING_SHARE
        if pause_s:
            self.resting = loop.call_later(min(pause_s, MOVING_PAUSE_S_MAX), self._rested)

    def _rested(self) -> None:
        self.resting = None
        while self._held_back:
            self._wake(self._held_back.popitem()[0])


def warn_if_not_kept(directory: Directory, opened: ChannelOpened) -> None:
    """Warn where the dead event store of a channel keeps only what somebody waits for."""
    if opened.channel not in directory.channels:  # deleted before its creation was answered
        return
    target = directory.dead_event_store_of(opened.channel)
    store = None if target is None else directory.channels[target].state
    if store is not None and (store.type.relays or store.engine.needs_interest):
        how = "transient" if store.type.relays else "jms"
        _log.warning("store.dead_events_not_kept", name=opened.name, dead=store.name, how=how)
