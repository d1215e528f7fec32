"""A cache of the outcomes of predicates for the events of a batch.

A thread may evaluate predicates before the turn of the realm that needs their outcomes; with the
cache no predicate is evaluated twice. Only predicates that depend on nothing but published values
are cached. The realm sets ids, times and origins, which differ between the stores of an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from penstock_core.columns.schema.layout import RESERVED_PREFIX
from penstock_core.columns.selectors.expressions import (
    CONDITIONS,
    PREDICATES,
    Expression,
    Now,
    Reference,
    walk,
)
from penstock_core.columns.selectors.headers import HEADERS
from penstock_core.columns.selectors.typed_columns import Column
from penstock_core.columns.selectors.wording import canonical

Key = tuple[object, str]
"""The reader of message fields, and the text of a predicate."""
Source = Callable[[Key], Column | None]
"""Returns the outcome of a predicate from another cache; None if that cache does not have it."""

_UNCHANGED_COLUMNS: Final = frozenset(
    ("tag", "headers.message_id", "headers.type", "headers.correlation_id")
)
"""Columns of header names that the realm never changes."""


def reads_published_only(node: Expression) -> bool:
    """Whether ``node`` reads only published values: no ids, times, defaults or origins."""
    return not any(_is_stamped(part) for part in walk(node))


def key_text(node: Expression) -> str:
    """Return the text that identifies a predicate; empty if its outcome is not cached."""
    return (
        canonical(node)
        if isinstance(node, (*CONDITIONS, Reference)) and reads_published_only(node)
        else ""
    )


def stamped_texts(expression: Expression) -> frozenset[str]:
    """Return the predicates of a selector that also depend on columns stamped by the realm.

    These predicates are evaluated in the turn that stores the events.
    """
    return frozenset(
        canonical(node)
        for node in walk(expression)
        if isinstance(node, PREDICATES) and not reads_published_only(node)
    )


def _is_stamped(node: Expression) -> bool:
    """Whether a node depends on the clock or on columns stamped by the realm."""
    match node:
        case Now():
            return True
        case Reference(steps):
            name = str(steps[0])
            if name in HEADERS:
                return HEADERS[name] not in _UNCHANGED_COLUMNS
            return any(isinstance(step, str) and step.startswith(RESERVED_PREFIX) for step in steps)
        case _:
            return False


class PredicateOutcomes:
    """Cached outcomes of predicates, with one row per event of a batch."""

    __slots__ = ("_outcomes", "_sources")

    def __init__(self, *sources: Source) -> None:
        self._outcomes: dict[Key, Column] = {}
        self._sources = list(sources)
        """Caches to search for outcomes that are missing in this one."""

    def find(self, key: Key) -> Column | None:
        """Return the cached outcome, or None."""
        if key not in self._outcomes:
            for source in self._sources:
                if (outcome := source(key)) is not None:
                    self._outcomes[key] = outcome
                    break
        return self._outcomes.get(key)

    def add_parts(self, parts: Sequence[PredicateOutcomes]) -> None:
        """Add the outcomes that are cached for all consecutive ``parts`` of the batch."""

        def source(key: Key) -> Column | None:
            outcomes = [part.find(key) for part in parts]
            if any(outcome is None for outcome in outcomes):
                return None
            return pa.concat_arrays(outcomes)

        self._sources.append(source)

    def keep(self, key: Key, outcome: Column) -> None:
        """Cache an outcome: true, false or null for each row."""
        self._outcomes[key] = outcome if outcome.type == pa.bool_() else outcome.cast(pa.bool_())

    def chosen(self, mask: pa.BooleanArray) -> PredicateOutcomes:
        """Return the outcomes for the rows selected by ``mask``."""

        def source(key: Key) -> Column | None:
            outcome = self.find(key)
            return None if outcome is None else outcome.filter(mask)

        return PredicateOutcomes(source)
