"""Interest: which events somebody still waits for (SEM J2, D6).

A durable has interest in what it has not acknowledged, a plain subscriber in everything from its
cursor on. A browse has none: it gets what is there when it reaches it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from penstock_core.durable.durable import Durable
from penstock_core.durable.seat import Seat
from penstock_core.durable.subscriber import Subscriber
from penstock_core.ids.ids import IdSet, Span, Spans

_BEYOND = 1 << 62


class Interest(Struct, frozen=True):
    """How events are kept as they are published. An event in neither set is kept the way the
    channel's type keeps events."""

    passing: IdSet
    """Events that stay in memory until they have reached connected clients."""
    dropped: IdSet
    """Events that nobody waits for; they are not kept at all."""


def unwanted(ids: IdSet, durables: Iterable[Durable], subscribers: Iterable[Subscriber]) -> IdSet:
    """The part of ``ids``, all stored, in which nobody has interest."""
    left = ids.copy()
    for durable in durables:
        if not durable.selector:
            left.remove(Span(durable.head, _BEYOND))
        left.discard_all(durable.outstanding)
    for subscriber in subscribers:
        left.discard_all(subscriber.waits_for(left))
    return left


def not_chosen_yet(
    subscribers: Iterable[Subscriber], seats: Iterable[tuple[Durable, Seat]]
) -> IdSet:
    """The events that come, for some of these, once a selector has been put to what is before
    them, or to them: it takes long."""
    found = IdSet()
    for subscriber in subscribers:
        if subscriber.is_choosing and subscriber.lost_us is None:
            found.add(Span(subscriber.cursor, _BEYOND))
    for durable, seat in seats:
        if seat.is_choosing:
            found.add_all(durable.ready)
    return found


def awaited(subscribers: Collection[Subscriber], span: Span, matched: Mapping[str, Spans]) -> IdSet:
    """The part of ``span``, about to be published, that some subscriber waits for; ``matched``
    are the ids that each selector matches."""
    texts = {subscriber.selector for subscriber in subscribers if subscriber.has_interest}
    if "" in texts:
        return IdSet((span,))
    found = IdSet()
    for text in texts:
        found.add_all(IdSet(matched.get(text, ())))
    return found


def wanted_of(durable: Durable, span: Span, matched: Spans) -> IdSet:
    """The part of ``span``, about to be published, that ``durable`` will want; ``matched`` are
    the ids its selector matches, if it has one."""
    begins = Span(durable.head, _BEYOND)
    if durable.selector:
        return IdSet(part for part in (Span(*m).clipped(begins) for m in matched) if part.size)
    part = span.clipped(begins)
    return IdSet((part,)) if part.size else IdSet()
