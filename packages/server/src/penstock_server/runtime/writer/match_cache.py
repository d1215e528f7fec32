"""Results of selectors, kept from their evaluation in a thread until the writer's turn that needs
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.selectors.outcomes import Key, PredicateOutcomes
from penstock_core.columns.selectors.typed_columns import Column
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_server.runtime.store.bodies import Body, SelectorKey

T = TypeVar("T")

PARTS_MAX: Final = 64
"""Batches of one channel that results are kept for; older ones are evaluated again."""

REALM_BYTES_MAX: Final = 256 << 20
"""Limit on the bytes of batches with results, over all channels, and of the merged states. Above it
the oldest results are dropped, and their channels evaluated again."""


class NeedsEvaluation(Exception):
    """Raised when a thread must evaluate selectors on events first. Nothing has been changed; the
    work is decided again after :attr:`keep` was called."""

    def __init__(
        self,
        channel_id: int,
        evaluations: Sequence[tuple[Body, dict[SelectorKey, int]]],
        keep: Callable[[], None],
    ) -> None:
        super().__init__(f"selectors must be evaluated on events of channel {channel_id} first")
        self.channel_id = channel_id
        self.evaluations = evaluations
        self.keep = keep


class _EvaluatedEvents(Struct):
    """Stored events, with the results in their body."""

    ids: Int64s
    body: Body


class _NewestByChannel(Generic[T]):
    """Values by channel, of at most ``bytes_max`` together; the newest one always
    stays."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: dict[int, tuple[T, int]] = {}
        """Each value with its size in bytes, the oldest first."""
        self._bytes = 0

    def get(self, channel_id: int) -> T | None:
        entry = self._entries.get(channel_id)
        return None if entry is None else entry[0]

    def pop(self, channel_id: int) -> T | None:
        """Drop the value of a channel, and return it."""
        value, size = self._entries.pop(channel_id, (None, 0))
        self._bytes -= size
        return value

    def replace(self, channel_id: int, value: T, size: int) -> None:
        """Replace a value without changing its age."""
        self._bytes += size - self._entries[channel_id][1]
        self._entries[channel_id] = value, size

    def put(self, channel_id: int, value: T, size: int) -> None:
        """Store a value as the newest one, and drop the oldest values above the limit."""
        self.pop(channel_id)
        self._entries[channel_id] = value, size
        self._bytes += size
        while self._bytes > self._bytes_max and len(self._entries) > 1:
            self.pop(next(iter(self._entries)))


class MatchCache:
    """Selector results computed ahead of the group that needs them, by channel and event id."""

    def __init__(self, bytes_max: int = REALM_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._parts = _NewestByChannel[list[_EvaluatedEvents]](bytes_max)
        self._states = _NewestByChannel[Sequence[Body]](bytes_max)
        self.sweeping: set[int] = set()
        """Channels with due events that a thread is evaluating."""

    def lacks(self, channel_id: int, ids: Int64s, selectors: Mapping[SelectorKey, int]) -> Int64s:
        """Return the ids without results of all these selectors."""
        cached = [
            part.ids
            for part in self._parts.get(channel_id) or ()
            if part.body.evaluated >= selectors.keys()
        ]
        return ids[~np.isin(ids, np.concatenate(cached))] if cached else ids

    def known_of(self, channel_id: int, batch: pa.RecordBatch) -> PredicateOutcomes | None:
        """Return the results for stored events, in the order of ``batch``; None without any."""
        parts = self._parts.get(channel_id)
        if not parts:
            return None
        ids = ids_of(batch)

        def source(key: Key) -> Column | None:
            candidates = [(p.ids, p.body.outcomes.find(key)) for p in parts if p.body.outcomes]
            cached = [(part_ids, column) for part_ids, column in candidates if column is not None]
            if not cached:
                return None
            cached_ids = np.concatenate([part_ids for part_ids, _ in cached])
            order = np.argsort(cached_ids, kind="stable")
            places = np.searchsorted(cached_ids, ids, sorter=order)
            # A column without the result of some event is of no use: selectors are evaluated on
            # whole batches.
            if (places == len(cached_ids)).any() or (cached_ids[order[places]] != ids).any():
                return None
            return pa.concat_arrays([column for _, column in cached]).take(pa.array(order[places]))

        return PredicateOutcomes(source)

    def keep(self, channel_id: int, bodies: Sequence[Body]) -> None:
        """Keep the results for stored events of a channel."""
        parts = self._parts.get(channel_id) or []
        parts += [_EvaluatedEvents(ids_of(body.batch), body) for body in bodies]
        # New results are never dropped: the work that waits for them is decided again, and without
        # them it would be held again, for ever.
        del parts[: -max(PARTS_MAX, len(bodies))]
        size = sum([part.body.weight for part in parts])
        while len(parts) > len(bodies) and size > self._bytes_max:
            size -= parts.pop(0).body.weight
        self._parts.put(channel_id, parts, size)
        self.sweeping.discard(channel_id)

    def forget(self, channel_id: int, spans: Spans) -> None:
        """Drop the cached selector results of events that have moved to another store."""
        if parts := self._parts.get(channel_id):
            ids = IdSet(spans)
            remaining = [part for part in parts if not ids.count(_around(part.ids))]
            if remaining:
                size = sum([part.body.weight for part in remaining])
                self._parts.replace(channel_id, remaining, size)
            else:
                self._parts.pop(channel_id)

    def keep_states(self, channel_id: int, states: Sequence[Body]) -> None:
        """Keep the results for the merged states that a publish to a channel leads to."""
        self._states.put(channel_id, states, sum([body.weight for body in states]))

    def states(self, channel_id: int, merged: Sequence[Body]) -> Sequence[Body] | None:
        """Return the cached bodies of ``merged`` states and drop them. None if these states were
        not evaluated, or have changed since."""
        cached = self._states.pop(channel_id) or ()
        are_same = len(cached) == len(merged) and all(
            before.batch.equals(now.batch, check_metadata=True)
            for before, now in zip(cached, merged, strict=True)
        )
        return cached if are_same else None


def _around(ids: Int64s) -> Span:
    """Return the span from the lowest to the highest id."""
    return Span(int(ids.min()), int(ids.max()) + 1) if len(ids) else Span(0, 0)
