"""What happens to an event when it is published. Read it top to bottom.

1. Arrive. The front end reads a frame and hands its columns on (``frontends.native``).
2. Digest. What the rules need is computed from the columns at once (``columns.digest.digest``).
3. Recognise. A retry is answered with the ids it got (``core.producers.Producers.stored_as``).
4. Refuse, when an event is too large, when memory is short, or when the channel is full and
   honours its capacity (``core.retention.refuse_when_full``).
5. Number. The batch gets the next dense ids; an id is never given twice.
6. Make room. Over capacity the oldest events are evicted (``core.retention.make_room``).
7. Apply. The ids join the channel and the ledger of every durable
   (``core.channel.Channel.apply``).
8. Store. The shell writes the facts and the columns of everything that waited in one block;
   only then does the publisher hear of it (``runtime.shard.Shard``).
9. Offer. Durables grant events to seats with credit, subscribers follow
   (``core.channel.Channel.offer``).
10. Send. The columns travel as they came, with their ids (``runtime.delivery``).
"""

from __future__ import annotations

from msgspec import Struct

from penstock.core.channel_type import ChannelType
from penstock.core.errors import EventTooLarge, InvalidEvent, MemoryLimit
from penstock.core.ids import IdSet, Span
from penstock.core.messages import (
    Appended,
    Cause,
    Decided,
    Definition,
    IdsReserved,
    Publish,
    Removed,
    Spans,
    StoredFact,
)
from penstock.core.producers import Producers
from penstock.core.retention import make_room, refuse_when_full

RESERVE = 100_000
"""Ids reserved at once for events kept in memory: one stored fact instead of one a publish."""


class Shelf(Struct):
    """The part of a channel that publishing looks at."""

    definition: Definition
    type: ChannelType
    stored: IdSet
    next_id: int
    reserved: int
    producers: Producers
    selectors: dict[str, str]
    """Durable name to selector text, for durables that have one."""


def decide_publish(command: Publish, shelf: Shelf, now_us: int, event_bytes_max: int) -> Decided:
    """Facts of a publish, answered with its span. Raises ``Refused``."""
    if command.producer:
        known = shelf.producers.stored_as(command.producer, command.sequence)
        if known is not None:
            return Decided(answer=known)
    digest = command.digest
    volatile = shelf.type.volatile(digest)
    if digest.transient:
        raise InvalidEvent(
            f"event {digest.transient[0].first} of the publish is flagged transient, which this "
            "version does not deliver; publish it without the flag"
        )
    _refuse_oversize(digest.largest, event_bytes_max)
    if volatile and digest.size > command.memory_left:
        raise MemoryLimit(
            f"{digest.size} bytes offered, {max(command.memory_left, 0)} bytes of the realm's "
            "memory for such channels are free; consume, purge or raise the limit"
        )
    stored = len(shelf.stored)
    refuse_when_full(shelf.definition, stored, digest.count, overshoot=command.overshoot)

    span = Span(shelf.next_id, shelf.next_id + digest.count)
    by_event = shelf.type.event_ttl_counts or shelf.definition.event_ttl
    facts: list[StoredFact] = []
    if volatile and span.end > shelf.reserved:
        facts.append(IdsReserved(span.end + RESERVE))
    facts.append(
        Appended(
            span,
            now_us,
            digest.size,
            command.producer,
            command.sequence,
            volatile=_placed(volatile, span.first),
            ttls=_placed_ttls(digest.ttls, span.first) if by_event else (),
            matched={
                name: _placed(digest.matched.get(text, ()), span.first)
                for name, text in shelf.selectors.items()
            },
        )
    )
    if not shelf.definition.storage.honour_capacity:
        evicted = make_room(shelf.definition.capacity, shelf.stored, span)
        if evicted:
            facts.append(Removed(evicted, Cause.EVICTED))
    return Decided(tuple(facts), span)


def _placed(offsets: Spans, first: int) -> Spans:
    return tuple(offset.shifted(first) for offset in offsets)


def _placed_ttls(ttls: tuple[tuple[int, Spans], ...], first: int) -> tuple[tuple[int, Spans], ...]:
    return tuple((ttl_ms, _placed(offsets, first)) for ttl_ms, offsets in ttls)


def _refuse_oversize(largest: int, event_bytes_max: int) -> None:
    if largest > event_bytes_max:
        raise EventTooLarge(
            f"the largest event has {largest} bytes; this realm takes {event_bytes_max} at most "
            "(setting max_event_bytes)"
        )
