"""Interest: the events that some durable or subscriber still waits for (SEM J2, D6).

A durable has interest in events that it has not acknowledged, a plain subscriber in all events from
its cursor on. A browse has no interest: it reads whatever is stored when it reaches an id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans

_BEYOND = 1 << 62
"""A number above all event ids."""


class Interest(Struct, frozen=True):
    """Sets of published events that are not kept; the channel's type decides how other events are
    kept."""

    passing: IdSet
    """Events that stay in memory until they have reached connected clients."""
    dropped: IdSet
    """Events that no durable or subscriber waits for, which are not kept at all."""


def unwanted(ids: IdSet, durables: Iterable[Durable], subscribers: Iterable[Subscriber]) -> IdSet:
    """Return the part of ``ids``, all stored, that no durable or subscriber has interest in."""
    remaining = ids.copy()
    for durable in durables:
        if not durable.selector:
            remaining.remove(Span(durable.head, _BEYOND))
        remaining.discard_all(durable.outstanding)
    for subscriber in subscribers:
        remaining.discard_all(subscriber.waits_for(remaining))
    return remaining


def not_chosen_yet(
    subscribers: Iterable[Subscriber], seats: Iterable[tuple[Durable, Seat]]
) -> IdSet:
    """Return the events that wait for a slow selector, which is being applied to them or to earlier
    events."""
    waiting = IdSet()
    for subscriber in subscribers:
        if subscriber.is_choosing and subscriber.lost_us is None:
            waiting.add(Span(subscriber.cursor, _BEYOND))
    for durable, seat in seats:
        if seat.is_choosing:
            waiting.add_all(durable.ready)
    return waiting


def awaited(subscribers: Collection[Subscriber], span: Span, matched: Mapping[str, Spans]) -> IdSet:
    """Return the part of ``span``, about to be published, that some subscriber waits for.
    ``matched`` contains the ids that each selector matches, by the selector's text."""
    texts = {subscriber.selector for subscriber in subscribers if subscriber.has_interest}
    if "" in texts:
        return IdSet((span,))
    ids = IdSet()
    for text in texts:
        ids.add_all(IdSet(matched.get(text, ())))
    return ids


def wanted_of(durable: Durable, span: Span, matched: Spans) -> IdSet:
    """Return the part of ``span``, about to be published, that ``durable`` will want. ``matched``
    are the ids that the durable's selector matches, if it has one."""
    ids_from_head = Span(durable.head, _BEYOND)
    if durable.selector:
        return IdSet(
            part for part in (Span(*m).clipped(ids_from_head) for m in matched) if part.size
        )
    part = span.clipped(ids_from_head)
    return IdSet((part,)) if part.size else IdSet()
