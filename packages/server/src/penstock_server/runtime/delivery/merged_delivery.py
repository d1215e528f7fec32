"""Deliveries to plain subscribers of a merge channel: full events and deltas (SEM K3, K4).

A subscriber gets a delta if it has an earlier state of the key, and only deltas were published for
the key since. The delta has all changes since that state, however many deltas these were, because
applying a change twice is harmless. Everybody else gets the full event.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s, ids_of, runs_of
from penstock_core.columns.keys.key_retention import Bools
from penstock_core.columns.keys.key_values import NO_SLOT
from penstock_core.columns.merge.states import StateChunk
from penstock_core.ids.ids import Span, Spans
from penstock_server.runtime.store.merge_store import MergeStore
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch, spans_in
from penstock_server.runtime.store.recent_deltas import Stretch, as_they_came, deltas


class KnownKeys:
    """Which keys a subscription has been sent the state of. Soft, of one subscription."""

    def __init__(self) -> None:
        self._sent: Bools = np.zeros(64, dtype=np.bool_)
        self._generation = 0
        self.mark: int | None = None
        """It has been sent all that was on the channel when this was the next id: of the keys it
        knows, it knows the state then, or a later one."""
        self.through = 0
        """Id from which on nothing has been sent."""

    def of(self, slots: Int64s, store: MergeStore) -> Bools:
        """Which of these keys the subscriber knows."""
        if store.states.generation != self._generation:
            self._sent[:] = False
            self._generation, self.mark = store.states.generation, None
        if store.states.slots > len(self._sent):
            room = np.zeros(store.states.slots, dtype=np.bool_)
            self._sent = np.concatenate((self._sent, room))
        found: Bools = self._sent[slots] & (slots != NO_SLOT)
        return found

    def note(self, slots: Int64s, sent: Bools) -> None:
        """Note for which of these keys the newest state was sent; the others are unknown again."""
        keyed = slots != NO_SLOT
        self._sent[slots[keyed]] = sent[keyed]


class OfferedBatches(NamedTuple):
    """The batches that one offer consists of."""

    rows: list[OutgoingBatch]
    skipped: Spans = ()
    """Events that the selector does not match."""


class SelectedRows(NamedTuple):
    """The granted merged events that a subscription's own selector matches."""

    whole: StateChunk
    mask: pa.BooleanArray


Made = dict[tuple[Spans, int, bool], list[OutgoingBatch]]
"""Batches made for other subscriptions in this turn, by the spans granted, since when, and whether
none of it was sent before."""


def outgoing(
    store: MergeStore,
    known: KnownKeys,
    spans: Spans,
    chosen: SelectedRows | None,
    made: Made,
) -> OfferedBatches:
    """The events ``spans`` for a subscription that takes deltas, and of those what it has
    ``chosen``; None: it takes all."""
    stretch = None if known.mark is None else store.recent.since(known.mark)
    if stretch is None or chosen is not None or spans[0].first < store.recent.first:
        return _of_whole(store, known, spans, stretch=stretch, chosen=chosen)
    assert known.mark is not None, "the stretch begins there"
    ids = span_ids(spans)
    at = np.searchsorted(stretch.ids, ids)
    if at[0] >= len(stretch.ids) or not np.array_equal(stretch.ids[at % len(stretch.ids)], ids):
        return _of_whole(store, known, spans, stretch=stretch, chosen=None)
    slots = stretch.slots[at]
    if not (known.of(slots, store) & stretch.only_deltas(slots)).all():
        return _of_whole(store, known, spans, stretch=stretch, chosen=None)
    is_fresh = int(stretch.ids[0]) >= known.through
    key = (spans, known.mark, is_fresh)
    if key not in made:
        rows = as_they_came(stretch, ids) if is_fresh else None
        made[key] = rows or [deltas(stretch, ids)]
    return OfferedBatches(made[key])


def _of_whole(
    store: MergeStore,
    known: KnownKeys,
    spans: Spans,
    stretch: Stretch | None,
    chosen: SelectedRows | None,
) -> OfferedBatches:
    """The batches of the granted events, from the merged ones."""
    whole = store.merged_rows(spans) if chosen is None else chosen.whole
    if whole is None:
        return OfferedBatches([])
    slots = whole.slots
    matches = np.ones(len(slots), dtype=np.bool_)
    skipped: Spans = ()
    if chosen is not None:
        matches = np.asarray(chosen.mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
        skipped = tuple(map(Span, *(runs.tolist() for runs in runs_of(whole.ids[~matches]))))
    as_delta = matches & known.of(slots, store)
    if stretch is None:
        as_delta[:] = False
    else:
        as_delta &= stretch.only_deltas(slots) & np.isin(whole.ids, stretch.ids)
    known.note(slots, matches)
    return OfferedBatches(_both(store, whole, matches, as_delta=as_delta, stretch=stretch), skipped)


def _both(
    store: MergeStore, whole: StateChunk, matches: Bools, as_delta: Bools, stretch: Stretch | None
) -> list[OutgoingBatch]:
    """Full events and deltas in one batch, in the order of ids."""
    full = matches & ~as_delta
    if not as_delta.any():
        if not full.any():
            return []
        return [store.rows_of(whole if full.all() else whole.taken(np.flatnonzero(full)))]
    assert stretch is not None, "deltas come from it"
    changed = deltas(stretch, whole.ids[as_delta])
    if not full.any():
        return [changed]
    fulls = store.rows_of(whole.taken(np.flatnonzero(full)))
    columns = store.states.columns.grown(changed.batch.schema)
    batch = pa.concat_batches([columns.conform(part.batch) for part in (fulls, changed)])
    batch = batch.take(pa.array(np.argsort(ids_of(batch), kind="stable")))
    publishers = store.rows_of(whole).publishers
    return [OutgoingBatch(spans_in(batch), batch=batch, publishers=publishers)]


def kept_up(known: KnownKeys, cursor: int, next_id: int) -> None:
    """Note that everything below ``cursor`` has been granted."""
    known.through = cursor
    if cursor >= next_id:
        known.mark = next_id


def span_ids(spans: Spans) -> Int64s:
    """The ids of spans, one by one."""
    return np.concatenate([np.arange(*Span(*span), dtype=np.int64) for span in spans])
