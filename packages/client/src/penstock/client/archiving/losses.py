"""Events that were removed from a channel before a reader has read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.client.sync.sync import Destination, Queue
from penstock_core.api.channels import Missing
from penstock_core.ids.ids import Span

NO_LOSS: Final = frozenset(("replaced", "relayed", "dropped", "never"))
"""Removal causes that are not losses: a newer event of the same key replaced the event, or it was
not for readers of the channel."""

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


def lost_events(store: Destination, span: Span, *, bound: bool = False) -> list[Missing]:
    """Return the removals of events of ``span`` that are losses for a reader, by id.

    ``bound``: whether the reader is bound to a durable.
    """
    harmless_causes = SETTLED if bound else NO_LOSS
    if isinstance(store, Queue):
        # In a queue, each event is for one consumer, so its consumption is not a loss.
        harmless_causes |= {"consumed"}
    missing = [removal for removal in store.missing(*span) if removal.cause not in harmless_causes]
    return sorted(missing, key=lambda removal: removal.spans[0].first)


def described(lost: Sequence[Missing]) -> str:
    """Return the lost events with the causes, for an error."""
    return ", ".join(map(_describe, lost))


def prevention(lost: Sequence[Missing], kind: str) -> str:
    """Return the end of an error that tells how to prevent such losses, empty if unknown.
    ``kind`` is the word for the store."""
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
