"""Results of selectors, kept from their evaluation in a thread until the writer's turn that needs
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.selectors.lanes import Column
from penstock_core.columns.selectors.outcomes import Key, PredicateOutcomes
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_server.runtime.store.bodies import Body, SelectorKey

T = TypeVar("T")

PARTS_MAX: Final = 64
"""Batches of one channel that results are kept for; older ones are evaluated again."""

REALM_BYTES_MAX: Final = 256 << 20
"""Bytes of the batches of all channels that results are kept for, and of the merged states. Above
it, the channels whose results are oldest are evaluated again."""


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


class MatchCache:
    """Selector results computed ahead of the group that needs them, by channel and event id."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_EvaluatedEvents]] = {}
        self._states: dict[int, Sequence[Body]] = {}
        self.sweeping: set[int] = set()
        """Channels with due events that a thread is evaluating."""

    def lacks(self, channel_id: int, ids: Int64s, selectors: Mapping[SelectorKey, int]) -> Int64s:
        """Return the ids without results of all these selectors."""
        cached = [
            p.ids for p in self._parts.get(channel_id, ()) if p.body.evaluated >= selectors.keys()
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
            # A column must have all events or it is of no use: selectors are evaluated as a whole.
            if (places == len(cached_ids)).any() or (cached_ids[order[places]] != ids).any():
                return None
            return pa.concat_arrays([column for _, column in cached]).take(pa.array(order[places]))

        return PredicateOutcomes(source)

    def keep(self, channel_id: int, bodies: Sequence[Body]) -> None:
        """Keep the results for stored events of a channel."""
        parts = self._parts.pop(channel_id, [])
        parts += [_EvaluatedEvents(ids_of(body.batch), body) for body in bodies]
        # The new ones always stay: the work that is decided again would need them once more, and
        # be held for ever.
        del parts[: -max(PARTS_MAX, len(bodies))]
        size = sum([part.body.weight for part in parts])
        while len(parts) > len(bodies) and size > REALM_BYTES_MAX:
            size -= parts.pop(0).body.weight
        self._parts[channel_id] = parts
        sizes = {
            kept_id: sum([part.body.weight for part in kept])
            for kept_id, kept in self._parts.items()
        }
        _keep_newest(self._parts, sizes)
        self.sweeping.discard(channel_id)

    def moved(self, channel_id: int, spans: Spans) -> None:
        """Drop the results of events that have moved."""
        if channel_id in self._parts:
            ids = IdSet(spans)
            remaining = [p for p in self._parts[channel_id] if not ids.count(_around(p.ids))]
            self._parts[channel_id] = remaining
            if not remaining:
                del self._parts[channel_id]

    def keep_states(self, channel_id: int, states: Sequence[Body]) -> None:
        """Keep the results for the merged states that a publish to a channel leads to."""
        self._states.pop(channel_id, None)
        self._states[channel_id] = states
        sizes = {
            kept_id: sum([body.weight for body in kept]) for kept_id, kept in self._states.items()
        }
        _keep_newest(self._states, sizes)

    def states(self, channel_id: int, merged: Sequence[Body]) -> Sequence[Body] | None:
        """Return the cached bodies of ``merged`` states and drop them. None if these states were
        not evaluated, or have changed since."""
        cached = self._states.pop(channel_id, ())
        are_same = len(cached) == len(merged) and all(
            before.batch.equals(now.batch, check_metadata=True)
            for before, now in zip(cached, merged, strict=True)
        )
        return cached if are_same else None


def _keep_newest(by_channel: dict[int, T], sizes: Mapping[int, int]) -> None:
    """Drop the oldest entries above :data:`REALM_BYTES_MAX`; the newest one stays."""
    size = sum(sizes.values())
    for channel_id in list(by_channel)[:-1]:
        if size <= REALM_BYTES_MAX:
            return
        size -= sizes[channel_id]
        del by_channel[channel_id]


def _around(ids: Int64s) -> Span:
    return Span(int(ids.min()), int(ids.max()) + 1) if len(ids) else Span(0, 0)
