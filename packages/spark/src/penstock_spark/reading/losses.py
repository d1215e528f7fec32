"""Reports events that were removed from a channel before a query could read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.client.sync.sync import Queue
from penstock_core.api.channels import Location, Missing
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import DataLost
from penstock_spark.connections import ChannelLink

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


def check_front(
    links: Mapping[str, ChannelLink],
    spans: Mapping[str, Span],
    locations: Mapping[str, Location],
    *,
    bound: bool,
) -> None:
    """Check that no event before the first stored one of each span was lost to the reader.

    ``bound``: whether the reader is bound to a durable. Raises ``DataLost`` naming the channel, the
    ids, and the causes.
    """
    for name, location in locations.items():
        span = spans[name]
        check_losses(links[name], Span(span.first, _first_of(location, span.end)), bound=bound)


def check_first(link: ChannelLink, span: Span, first_id: int, *, bound: bool) -> None:
    """Check that events from the start of ``span``, which existed at planning, to ``first_id``, the
    first event read, were not lost. Raises ``DataLost``."""
    if first_id > span.first and _lost(link, Span(span.first, span.first + 1), bound=bound):
        check_losses(link, Span(span.first, first_id), bound=bound)


def check_losses(link: ChannelLink, span: Span, *, bound: bool = False) -> None:
    """Raise ``DataLost`` if events of ``span`` were lost to readers."""
    if not span.size > 0:
        return
    lost = _lost(link, span, bound=bound)
    if not lost:
        return
    kind = "queue" if isinstance(link.store, Queue) else "channel"
    remedies = [_PREVENTIONS[missing.cause] for missing in lost if missing.cause in _PREVENTIONS]
    remedy = f"; to prevent this, give the {kind} {' and '.join(remedies)}" if remedies else ""
    raise DataLost(
        f"{kind} {link.name}: before this query read them, {', '.join(map(_describe, lost))}. "
        f"Set failOnDataLoss to false to continue without them{remedy}"
    )


def _lost(link: ChannelLink, span: Span, *, bound: bool) -> list[Missing]:
    harmless_causes = SETTLED if bound else NO_LOSS
    if isinstance(link.store, Queue):
        # In a queue, each event is for one consumer, so its consumption is not a loss.
        harmless_causes |= {"consumed"}
    missing = [
        removal for removal in link.store.missing(*span) if removal.cause not in harmless_causes
    ]
    return sorted(missing, key=lambda removal: removal.spans[0].first)


def _describe(missing: Missing) -> str:
    shown = ", ".join(
        f"{span.first}-{span.end - 1}" if span.size > 1 else str(span.first)
        for span in missing.spans[:_SHOWN_MAX]
    )
    other_count = missing.events - sum(span.size for span in missing.spans[:_SHOWN_MAX])
    others = f" and {other_count} others" if other_count else ""
    return f"events {shown}{others} {_CAUSE_TEXTS[missing.cause]}"


def _first_of(location: Location, end: int) -> int:
    firsts = [part.spans[0].first for part in location.sealed if part.spans]
    return min([*firsts, *(span.first for span in location.tail[:1]), end])
