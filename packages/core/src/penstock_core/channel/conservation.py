"""Where every published event is or went: the sum that always holds (SEM T8)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from penstock_core.vocabulary.counters import Counters

MEANINGS: Final = {
    "live": "stored, and there to be read",
    "overdue": "past their TTL, about to move to the dead event store",
    "consumed": "acknowledged by all who wanted them",
    "dead": "moved to the dead event store",
    "expired": "past their TTL",
    "evicted": "pushed out by newer ones when it was full",
    "purged": "removed on request",
    "replaced": "replaced by a newer event of the same key",
    "relayed": "transient: offered to connected clients once, never stored",
    "redriven": "published again, where they came from or elsewhere",
    "dropped": "wanted by no subscriber",
    "quarantined": "unreadable, set aside",
}
"""The meaning of each term of the sum, in the order in which the terms are printed."""


class Term(NamedTuple):
    name: str
    events: int


def terms(counters: Counters, *, live: int, overdue: int) -> list[Term]:
    """All terms of the sum, those of 0 included."""
    here = {"live": live, "overdue": overdue}
    return [
        Term(name, here[name] if name in here else getattr(counters, name)) for name in MEANINGS
    ]


def conservation(counters: Counters, *, live: int, overdue: int) -> dict[str, Any]:
    """The sum for programs."""
    found = terms(counters, live=live, overdue=overdue)
    total = sum(term.events for term in found)
    return {
        "published": counters.published,
        **{term.name: term.events for term in found},
        "sum": total,
        "holds": total == counters.published,
    }
