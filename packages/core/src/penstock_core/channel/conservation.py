"""The conservation sum: every published event is stored or has left by a counted cause (SEM T8)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock_core.vocabulary.counters import Counters

MEANINGS: Final = {
    "live": "stored and readable",
    "overdue": "past their TTL, about to move to the dead event store",
    "consumed": "acknowledged by all durables that wanted them",
    "dead": "moved to the dead event store",
    "expired": "past their TTL",
    "evicted": "pushed out by newer ones when it was full",
    "purged": "removed on request",
    "replaced": "replaced by a newer event of the same key",
    "relayed": "transient: offered to connected clients once, never stored",
    "redriven": "published again, to their origin or another store",
    "dropped": "wanted by no subscriber",
    "quarantined": "unreadable, set aside",
}
"""The meaning of each term of the sum, in the order of output."""


class Term(NamedTuple):
    """One addend of the conservation sum: a name of :data:`MEANINGS`, and a number of events."""

    name: str
    events: int


def terms(counters: Counters, *, live: int, overdue: int) -> list[Term]:
    """Return all terms of the sum, including those that are 0."""
    current = {"live": live, "overdue": overdue}
    return [
        Term(name, current[name] if name in current else getattr(counters, name))
        for name in MEANINGS
    ]


def conservation(counters: Counters, *, live: int, overdue: int) -> dict[str, Any]:
    """Return the number of published events, each term, the sum of the terms, and whether the sum
    equals that number, as a JSON object."""
    all_terms = terms(counters, live=live, overdue=overdue)
    total = sum(term.events for term in all_terms)
    return {
        "published": counters.published,
        **{term.name: term.events for term in all_terms},
        "sum": total,
        "holds": total == counters.published,
    }
