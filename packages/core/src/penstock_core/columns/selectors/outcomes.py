"""A cache of the outcomes of predicates for the events of a batch.

A thread may evaluate predicates before the realm's turn that needs them, so no predicate is
evaluated twice. Only predicates that depend on nothing but what the publisher sent are cached:
ids, times and origins are set by the realm, and change with the store an event is in.
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
from penstock_core.columns.selectors.lanes import Column
from penstock_core.columns.selectors.wording import canonical

Key = tuple[object, str]
"""The reader of message fields, and the text of a predicate."""
Source = Callable[[Key], Column | None]

_GIVEN: Final = frozenset(("tag", "headers.message_id", "headers.type", "headers.correlation_id"))
"""Columns of header names that the realm never changes."""


def is_given(node: Expression) -> bool:
    """True if it reads only what the publisher sent: no ids, times, defaults or origins."""
    return not any(_is_stamped(part) for part in walk(node))


def key_text(node: Expression) -> str:
    """The text that identifies a predicate; empty if its outcome is not cached."""
    return canonical(node) if isinstance(node, (*CONDITIONS, Reference)) and is_given(node) else ""


def stamped_texts(expression: Expression) -> frozenset[str]:
    """The predicates of a selector that also depend on what the realm adds to events: they are
    evaluated in the turn that stores them."""
    return frozenset(
        canonical(node)
        for node in walk(expression)
        if isinstance(node, PREDICATES) and not is_given(node)
    )


def _is_stamped(node: Expression) -> bool:
    match node:
        case Now():
            return True
        case Reference(steps):
            name = str(steps[0])
            if name in HEADERS:
                return HEADERS[name] not in _GIVEN
            return any(isinstance(step, str) and step.startswith(RESERVED_PREFIX) for step in steps)
        case _:
            return False


class PredicateOutcomes:
    """Cached outcomes of predicates, with one row per event of a batch."""

    __slots__ = ("_known", "_sources")

    def __init__(self, *sources: Source) -> None:
        self._known: dict[Key, Column] = {}
        self._sources = list(sources)
        """Caches to search for outcomes that are not in this one."""

    def find(self, key: Key) -> Column | None:
        """The cached outcome; None if there is none."""
        if key not in self._known:
            for source in self._sources:
                if (found := source(key)) is not None:
                    self._known[key] = found
                    break
        return self._known.get(key)

    def add_parts(self, parts: Sequence[PredicateOutcomes]) -> None:
        """Add the outcomes cached for all ``parts`` of the batch; parts follow each other."""

        def source(key: Key) -> Column | None:
            found = [part.find(key) for part in parts]
            if any(each is None for each in found):
                return None
            return pa.concat_arrays(found)

        self._sources.append(source)

    def keep(self, key: Key, outcome: Column) -> None:
        """Cache an outcome: true, false or null for each row."""
        self._known[key] = outcome if outcome.type == pa.bool_() else outcome.cast(pa.bool_())

    def chosen(self, wanted: pa.BooleanArray) -> PredicateOutcomes:
        """The outcomes for the ``wanted`` rows."""

        def source(key: Key) -> Column | None:
            found = self.find(key)
            return None if found is None else found.filter(wanted)

        return PredicateOutcomes(source)
