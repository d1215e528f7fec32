"""Events that were removed from a channel before a reader has read them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

import numpy as np

from penstock.client.sync.sync import Destination, Queue
from penstock_core.api.channels import Missing
from penstock_core.columns.events.batch import Int64s, runs_of
from penstock_core.ids.ids import IdSet, Span

NO_LOSS: Final = frozenset(("replaced", "relayed", "dropped", "never"))
"""Removal causes that are not losses: a newer event of the same key replaced the event, or the
event was not for readers of the channel."""

SETTLED: Final = NO_LOSS | {"consumed", "redelivery_limit", "rejected", "buried"}
"""Removal causes that are not losses for a reader bound to a durable: the durable has settled the
events."""

_CAUSE_TEXTS: Final = {
    "expired": "expired",
    "evicted": "were evicted by the capacity",
    "purged": "were purged",
    "consumed": "were acknowledged by all durables",
    "redriven": "were redriven",
    "redelivery_limit": "were rolled back too often",
    "rejected": "were rejected",
    "buried": "were buried",
    "quarantined": "are damaged",
    "forgotten": "left too long ago to know why",
}
_PREVENTIONS: Final = {
    "expired": "a longer TTL",
    "evicted": "a larger capacity",
    "consumed": "retain_consumed=True",
}
_SHOWN_MAX: Final = 3
"""Maximum number of spans that an error text lists for each cause."""


class ReadIds:
    """The ids of events that were read, in ascending order.

    Ranges are collected in arrays; the set is made only when it is needed, if events are missing.
    """

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[tuple[Int64s, Int64s]] = []

    def add(self, ids: Int64s) -> None:
        """Add ascending ids that are above those added before."""
        self.count += len(ids)
        self._runs.append(runs_of(ids))

    def add_span(self, span: Span) -> None:
        """Add all ids of a range above those added before."""
        self.count += span.size
        self._runs.append((np.array([span.first]), np.array([span.end])))

    def id_set(self) -> IdSet:
        """Return the ids as a set."""
        return IdSet.union(
            IdSet.of_runs(firsts.tolist(), ends.tolist()) for firsts, ends in self._runs
        )


def id_set_of(ids: Int64s) -> IdSet:
    """Return ascending ids as a set."""
    firsts, ends = runs_of(ids)
    return IdSet.of_runs(firsts.tolist(), ends.tolist())


def lost_events(store: Destination, span: Span, *, bound: bool = False) -> list[Missing]:
    """Return the removals of events of ``span`` that are losses for a reader, sorted by id.

    ``bound``: whether the reader is bound to a durable.
    """
    return _in_order(_losses(store, span, _harmless_causes(store, bound=bound)))


def lost_ids(store: Destination, span: Span, *, bound: bool = False) -> dict[str, IdSet]:
    """Return, by cause, the ids of all events that :func:`lost_events` counts."""
    harmless_causes = _harmless_causes(store, bound=bound)
    ids_by_cause: dict[str, IdSet] = {}
    first, size = span.first, span.size
    while first < span.end:
        searched = Span(first, min(first + size, span.end))
        losses = _losses(store, searched, harmless_causes)
        # The realm lists a limited number of spans for each cause. The next request begins where
        # the shortest list ends.
        end = min([loss.spans[-1].end for loss in losses if _is_cut(loss)], default=searched.end)
        for loss in losses:
            ids = ids_by_cause.setdefault(loss.cause, IdSet())
            for listed in loss.spans:
                ids.add(listed.clipped(Span(first, end)))
        # The realm searches the whole range of a request, however few spans it lists.
        size = 2 * (end - first)
        first = end
    return ids_by_cause


def lost_before_reading(
    store: Destination, span: Span, read: ReadIds, harmless: IdSet, *, bound: bool = False
) -> list[Missing]:
    """Return the losses among the events of ``span``, which a reader has read to its end, sorted by
    id.

    The result leaves out ``read``, the events that the reader has received (they may have left
    afterwards), and ``harmless``, ids whose absence is not a loss. ``bound``: whether the reader is
    bound to a durable.
    """
    if read.count == span.size:
        return []
    ids_by_cause = lost_ids(store, span, bound=bound)
    if not ids_by_cause:
        return []
    expected = read.id_set()
    expected.add_all(harmless)
    losses = []
    for cause, ids in ids_by_cause.items():
        ids.discard_all(expected)
        if ids:
            losses.append(Missing(cause, len(ids), ids.spans[:_SHOWN_MAX]))
    return _in_order(losses)


def _harmless_causes(store: Destination, *, bound: bool) -> Set[str]:
    """Return the causes of removal that do not count as losses. ``bound`` is whether the reader is
    bound to a durable."""
    causes = SETTLED if bound else NO_LOSS
    # In a queue, each event is for one consumer, so its consumption is not a loss.
    return causes | {"consumed"} if isinstance(store, Queue) else causes


def _losses(store: Destination, span: Span, harmless_causes: Set[str]) -> list[Missing]:
    """Return the removals of events of ``span`` that have another cause than
    ``harmless_causes``."""
    return [removal for removal in store.missing(*span) if removal.cause not in harmless_causes]


def _is_cut(loss: Missing) -> bool:
    """Return whether only the first spans are listed."""
    return sum(span.size for span in loss.spans) < loss.events


def _in_order(losses: list[Missing]) -> list[Missing]:
    return sorted(losses, key=lambda loss: loss.spans[0].first)


def described(lost: Sequence[Missing]) -> str:
    """Return the lost events with the causes, for an error."""
    return ", ".join(map(_describe, lost))


def prevention(lost: Sequence[Missing], kind: str) -> str:
    """Return the end of an error text that tells how to prevent losses like ``lost``; empty if this
    is unknown. ``kind`` is ``channel`` or ``queue``, as the text names the store."""
    remedies = [_PREVENTIONS[missing.cause] for missing in lost if missing.cause in _PREVENTIONS]
    return f"; to prevent this, give the {kind} {' and '.join(remedies)}" if remedies else ""


def _describe(missing: Missing) -> str:
    shown = ", ".join(
        f"{span.first}-{span.end - 1}" if span.size > 1 else str(span.first)
        for span in missing.spans[:_SHOWN_MAX]
    )
    other_count = missing.events - sum(span.size for span in missing.spans[:_SHOWN_MAX])
    others = f" and {other_count} others" if other_count else ""
    return f"events {shown}{others} {_CAUSE_TEXTS[missing.cause]}"
