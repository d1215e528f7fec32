"""Events that left a channel before a query could read them, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.client.sync.sync import Queue
from penstock_core.api.channels import Location, Missing
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import DataLost
from penstock_spark.connections import ChannelLink

NO_LOSS: Final = frozenset(("replaced", "relayed", "dropped", "never"))
"""Causes that take nothing from a reader: a newer event of the same key is there, or no reader of
the channel was meant to have it."""

SETTLED: Final = NO_LOSS | {"consumed", "redelivery_limit", "rejected", "buried"}
"""Removal causes that are no loss for a reader bound to a durable: the durable has finished with
these events."""

_WORDS: Final = {
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
_ADVICE: Final = {
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
    """Whether what lies before the first stored event of each span was somebody's to read;
    ``bound`` to a durable or not.

    Raises ``DataLost`` naming the channel, the ids, and the cause of each.
    """
    for name, location in locations.items():
        span = spans[name]
        check(links[name], Span(span.first, _first_of(location, span.end)), bound=bound)


def check_first(link: ChannelLink, span: Span, found: int, *, bound: bool) -> None:
    """The first event of ``span`` was there when this was planned; ``found`` is the first one
    that was read. Raises ``DataLost``."""
    if found > span.first and _lost(link, Span(span.first, span.first + 1), bound=bound):
        check(link, Span(span.first, found), bound=bound)


def check(link: ChannelLink, span: Span, *, bound: bool = False) -> None:
    """Raises ``DataLost`` for events of ``span`` that were lost to readers."""
    if not span.size > 0:
        return
    lost = _lost(link, span, bound=bound)
    if not lost:
        return
    kind = "queue" if isinstance(link.store, Queue) else "channel"
    advice = [_ADVICE[each.cause] for each in lost if each.cause in _ADVICE]
    remedy = f"; to prevent this, give the {kind} {' and '.join(advice)}" if advice else ""
    raise DataLost(
        f"{kind} {link.name}: before this query read them, {', '.join(map(_said, lost))}. "
        f"Set failOnDataLoss to false to continue without them{remedy}"
    )


def _lost(link: ChannelLink, span: Span, *, bound: bool) -> list[Missing]:
    none = SETTLED if bound else NO_LOSS
    if isinstance(link.store, Queue):
        none |= {"consumed"}
    found = [each for each in link.store.missing(*span) if each.cause not in none]
    return sorted(found, key=lambda each: each.spans[0].first)


def _said(missing: Missing) -> str:
    shown = ", ".join(
        f"{span.first}-{span.end - 1}" if span.size > 1 else str(span.first)
        for span in missing.spans[:_SHOWN_MAX]
    )
    more = missing.events - sum(span.size for span in missing.spans[:_SHOWN_MAX])
    return f"events {shown}{f' and {more} others' if more else ''} {_WORDS[missing.cause]}"


def _first_of(location: Location, end: int) -> int:
    firsts = [part.spans[0].first for part in location.sealed if part.spans]
    return min([*firsts, *(span.first for span in location.tail[:1]), end])
