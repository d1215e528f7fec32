"""What selectors match of events, kept from when a thread has evaluated them until the turn of the
writer that needs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.events.batch import Int64s, ids_of
from penstock_core.columns.selectors.lanes import Column
from penstock_core.columns.selectors.outcomes import Key, PredicateOutcomes
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_server.runtime.store.bodies import Body, SelectorKey

PARTS_MAX: Final = 64
"""Batches of one channel about which results are kept; those of older ones are found out again."""


class NeedsEvaluation(Exception):
    """Selectors have much to examine in these events before the work may go on. Nothing has been
    done; the work is decided again once :attr:`keep` was called."""

    def __init__(
        self,
        number: int,
        looks: Sequence[tuple[Body, dict[SelectorKey, int]]],
        keep: Callable[[], None],
    ) -> None:
        super().__init__(f"selectors are put to events of channel {number} first")
        self.number = number
        self.evaluations = looks
        self.keep = keep


class _LookedEvents(Struct):
    """Some stored events, and what is known of them."""

    ids: Int64s
    body: Body


class MatchCache:
    """What was found out about events before the turn that needs it."""

    def __init__(self) -> None:
        self._parts: dict[int, list[_LookedEvents]] = {}
        self._states: dict[int, Sequence[Body]] = {}
        self.sweeping: set[int] = set()
        """Channels whose due events are being looked at."""

    def lacks(self, number: int, ids: Int64s, asked: Mapping[SelectorKey, int]) -> Int64s:
        """The events about which some of what is asked is not known."""
        known = [p.ids for p in self._parts.get(number, ()) if p.body.evaluated >= asked.keys()]
        return ids[~np.isin(ids, np.concatenate(known))] if known else ids

    def known_of(self, number: int, batch: pa.RecordBatch) -> PredicateOutcomes | None:
        """The results for stored events, in their order."""
        parts = self._parts.get(number)
        if not parts:
            return None
        ids = ids_of(batch)

        def source(key: Key) -> Column | None:
            found = [(p.ids, p.body.outcomes.find(key)) for p in parts if p.body.outcomes]
            there = [(own, column) for own, column in found if column is not None]
            if not there:
                return None
            known = np.concatenate([own for own, _ in there])
            order = np.argsort(known, kind="stable")
            places = np.searchsorted(known, ids, sorter=order)
            if (places == len(known)).any() or (known[order[places]] != ids).any():
                return None
            return pa.concat_arrays([column for _, column in there]).take(pa.array(order[places]))

        return PredicateOutcomes(source)

    def keep(self, number: int, bodies: Sequence[Body]) -> None:
        """Keep what is known of stored events of a channel."""
        parts = self._parts.setdefault(number, [])
        parts += [_LookedEvents(ids_of(body.batch), body) for body in bodies]
        del parts[: -max(PARTS_MAX, len(bodies))]
        self.sweeping.discard(number)

    def moved(self, number: int, spans: Spans) -> None:
        """Forget events that have moved."""
        if number in self._parts:
            ids = IdSet(spans)
            left = [p for p in self._parts[number] if not ids.count(_around(p.ids))]
            self._parts[number] = left
            if not left:
                del self._parts[number]

    def keep_states(self, number: int, states: Sequence[Body]) -> None:
        """Keep what is known of the states that a publish to a channel leads to."""
        self._states[number] = states

    def states(self, number: int, found: Sequence[Body]) -> Sequence[Body] | None:
        """Take what is known of the states found, once. None if they were not looked at."""
        known = self._states.pop(number, ())
        same = len(known) == len(found) and all(
            one.batch.equals(other.batch, check_metadata=True)
            for one, other in zip(known, found, strict=True)
        )
        return known if same else None


def _around(ids: Int64s) -> Span:
    return Span(int(ids.min()), int(ids.max()) + 1) if len(ids) else Span(0, 0)
