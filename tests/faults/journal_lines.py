"""Lines of journals, made by hand."""

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


def published(name: str = "single", **told: int) -> Published:
    """Six events tried and acknowledged, in order."""
    all_six = IdSet([Span(0, 6)])
    answers = [Acknowledged(told.get("first", 0), 6, told.get("first_id", 0))]
    return Published(name, all_six.copy(), all_six.copy(), refused=0, answers=answers, open=None)


def stored(*ids: int) -> dict[int, list[int]]:
    return {event_id: [event_id] for event_id in ids}


def got(at: int, *ids: int, by: str = "a", what: str = "got") -> Received:
    digest = digest_of([EVENTS.get(event_id, b"") for event_id in ids]) if what == "got" else ""
    events = tuple(("single", event_id) for event_id in ids)
    return Received(at, what, list(ids), digest=digest, by=by, events=events)


def done(at: int, *ids: int, by: str = "a") -> list[Received]:
    return [
        got(at, *ids, by=by),
        got(at + 1, *ids, by=by, what="ack"),
        got(at + 2, *ids, by=by, what="acked"),
    ]
