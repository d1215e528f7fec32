"""Hand-made records of clients."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Span
from tests.faults.journals import (
    Acknowledged,
    Published,
    Received,
    digest_of,
)
from tests.faults.names import event_of

EVENTS = {event_id: event_of("single", event_id) for event_id in range(6)}


def published(name: str = "single", **first_answer: int) -> Published:
    """Return the record of six events that were attempted and acknowledged in order."""
    all_six = IdSet([Span(0, 6)])
    answers = [Acknowledged(first_answer.get("first", 0), 6, first_answer.get("first_id", 0))]
    return Published(name, all_six.copy(), all_six.copy(), refused=0, answers=answers, open=None)


def stored(*ids: int) -> dict[int, list[int]]:
    return {event_id: [event_id] for event_id in ids}


def got(at: int, *ids: int, consumer: str = "a", what: str = "got") -> Received:
    digest = digest_of([EVENTS.get(event_id, b"") for event_id in ids]) if what == "got" else ""
    events = tuple(("single", event_id) for event_id in ids)
    return Received(at, what, list(ids), digest=digest, consumer=consumer, events=events)


def done(at: int, *ids: int, consumer: str = "a") -> list[Received]:
    return [
        got(at, *ids, consumer=consumer),
        got(at + 1, *ids, consumer=consumer, what="ack"),
        got(at + 2, *ids, consumer=consumer, what="acked"),
    ]
