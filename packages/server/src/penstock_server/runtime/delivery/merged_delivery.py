"""Deliveries to plain subscribers of a merge channel: full events and deltas (SEM K3, K4).

A subscriber gets a delta if it has an earlier state of the key and only deltas were published for
the key after that state. One delta has all changes since that state; it may repeat changes that the
subscriber has, because applying a change twice is harmless. Other subscribers get the full event.
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
from penstock_server.runtime.store.recent_deltas import Stretch, batches_as_published, deltas


class KnownKeys:
    """The keys whose states were sent to one subscription. Soft state."""

    def __init__(self) -> None:
        self._sent: Bools = np.zeros(64, dtype=np.bool_)
        self._generation = 0
        self.mark: int | None = None
        """The channel's next id when the subscription last had all events; None if it never had all
        of them. The subscription knows the states of its keys as of this id, or later ones."""
        self.granted_end = 0
        """All events below this id were granted to the subscription."""

    def known_among(self, slots: Int64s, store: MergeStore) -> Bools:
        """Return a mask of the keys ``slots`` whose state the subscriber has."""
        # A new generation has other slot numbers for keys, so all keys count as unknown.
        if store.states.generation != self._generation:
            self._sent[:] = False
            self._generation, self.mark = store.states.generation, None
        if store.states.slots > len(self._sent):
            known_slots = np.zeros(store.states.slots, dtype=np.bool_)
            self._sent = np.concatenate((self._sent, known_slots))
        is_known: Bools = self._sent[slots] & (slots != NO_SLOT)
        return is_known

    def note(self, slots: Int64s, sent: Bools) -> None:
        """Record for the keys ``slots`` whether their newest state was ``sent``. The other keys
        become unknown, because the subscriber missed a change of their states."""
        keyed = slots != NO_SLOT
        self._sent[slots[keyed]] = sent[keyed]


class OfferedBatches(NamedTuple):
    """The batches to send for one grant of merged events."""

    rows: list[OutgoingBatch]
    skipped: Spans = ()
    """Events that the selector does not match."""


class SelectedRows(NamedTuple):
    """Granted merged events, with a mask of the rows that the subscription's selector matches."""

    rows: StateChunk
    mask: pa.BooleanArray


Made = dict[tuple[Spans, int, bool], list[OutgoingBatch]]
"""Batches made in this turn, which several subscriptions share. The key has the granted spans, the
subscription's mark, and whether all events since the mark are new to the subscription."""


def outgoing(
    store: MergeStore,
    known_keys: KnownKeys,
    spans: Spans,
    selected_rows: SelectedRows | None,
    made: Made,
) -> OfferedBatches:
    """Return the batches of ``spans`` for a subscription with deltas.

    ``selected_rows`` has the rows that the selector of the subscription matches; None without a
    selector. If the recent deltas have exactly these ids and the subscription knows all their keys,
    one batch is shared by all subscriptions with the same mark. Otherwise the batches are made for
    this subscription.
    """
    stretch = None if known_keys.mark is None else store.recent.since(known_keys.mark)
    if stretch is None or selected_rows is not None or spans[0].first < store.recent.first:
        return _from_states(store, known_keys, spans, stretch=stretch, selected_rows=selected_rows)
    assert known_keys.mark is not None, "the stretch begins there"
    ids = span_ids(spans)
    positions = np.searchsorted(stretch.ids, ids)
    # A position after the last id is brought into the array by the modulo. The id found there
    # differs from the searched one, so the comparison fails as it should.
    if positions[0] >= len(stretch.ids) or not np.array_equal(
        stretch.ids[positions % len(stretch.ids)], ids
    ):
        return _from_states(store, known_keys, spans, stretch=stretch, selected_rows=None)
    slots = stretch.slots[positions]
    if not (known_keys.known_among(slots, store) & stretch.only_deltas(slots)).all():
        return _from_states(store, known_keys, spans, stretch=stretch, selected_rows=None)
    is_fresh = int(stretch.ids[0]) >= known_keys.granted_end
    key = (spans, known_keys.mark, is_fresh)
    if key not in made:
        rows = batches_as_published(stretch, ids) if is_fresh else None
        made[key] = rows or [deltas(stretch, ids)]
    return OfferedBatches(made[key])


def _from_states(
    store: MergeStore,
    known_keys: KnownKeys,
    spans: Spans,
    stretch: Stretch | None,
    selected_rows: SelectedRows | None,
) -> OfferedBatches:
    """Return the batches of the granted events, made from their merged states."""
    rows = store.merged_rows(spans) if selected_rows is None else selected_rows.rows
    if rows is None:
        return OfferedBatches([])
    slots = rows.slots
    matches = np.ones(len(slots), dtype=np.bool_)
    skipped: Spans = ()
    if selected_rows is not None:
        matches = np.asarray(selected_rows.mask.to_numpy(zero_copy_only=False), dtype=np.bool_)
        skipped = tuple(map(Span, *(runs.tolist() for runs in runs_of(rows.ids[~matches]))))
    as_delta = matches & known_keys.known_among(slots, store)
    if stretch is None:  # the publishes since the mark are no longer kept
        as_delta[:] = False
    else:
        as_delta &= stretch.only_deltas(slots) & np.isin(rows.ids, stretch.ids)
    known_keys.note(slots, matches)
    return OfferedBatches(
        _together(store, rows, matches, as_delta=as_delta, stretch=stretch), skipped
    )


def _together(
    store: MergeStore, whole: StateChunk, matches: Bools, as_delta: Bools, stretch: Stretch | None
) -> list[OutgoingBatch]:
    """Return full events and deltas together, in the order of ids."""
    full = matches & ~as_delta
    if not as_delta.any():
        if not full.any():
            return []
        return [store.rows_of(whole if full.all() else whole.take(np.flatnonzero(full)))]
    assert stretch is not None, "deltas come from it"
    changed = deltas(stretch, whole.ids[as_delta])
    if not full.any():
        return [changed]
    fulls = store.rows_of(whole.take(np.flatnonzero(full)))
    columns = store.states.columns.grown(changed.batch.schema)
    batch = pa.concat_batches([columns.conform(part.batch) for part in (fulls, changed)])
    batch = batch.take(pa.array(np.argsort(ids_of(batch), kind="stable")))
    publishers = store.rows_of(whole).publishers
    return [OutgoingBatch(spans_in(batch), batch=batch, publishers=publishers)]


def note_granted(known_keys: KnownKeys, cursor: int, next_id: int) -> None:
    """Record that all events below ``cursor`` were granted. The mark advances only if these are all
    events of the channel, because only then does the subscription have the state of every key as of
    one id."""
    known_keys.granted_end = cursor
    if cursor >= next_id:
        known_keys.mark = next_id


def span_ids(spans: Spans) -> Int64s:
    """Return the ids of spans as an array."""
    return np.concatenate([np.arange(*Span(*span), dtype=np.int64) for span in spans])
