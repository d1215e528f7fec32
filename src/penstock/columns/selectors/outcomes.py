"""What predicates have turned out to be for the events of a batch, kept so that nobody works it
out twice: a thread may do so before the turn that needs it, with all else that is stamped then.

Kept is what depends on nothing but what the publisher gave. Ids, times and origins are the
realm's, and change with the place an event is stored in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from penstock.columns.selectors.expressions import (
    CONDITIONS,
    Expression,
    Now,
    Reference,
    walk,
)
from penstock.columns.selectors.headers import HEADERS
from penstock.columns.selectors.lanes import Column
from penstock.columns.selectors.wording import canonical

Key = tuple[object, str]
"""What knows the fields of the messages in the data, and the text of a predicate."""
Source = Callable[[Key], Column | None]

_GIVEN: Final = frozenset(("tag", "headers.type", "headers.correlation_id"))
"""Columns behind names of headers that stay as the publisher gave them."""


def is_given(node: Expression) -> bool:
    """Whether it asks only of what the publisher gave: no ids, times, defaults or origins."""
    return not any(_is_stamped(part) for part in walk(node))


def key_text(node: Expression) -> str:
    """What tells a predicate from all others; empty for one whose outcome is not kept."""
    return canonical(node) if isinstance(node, CONDITIONS) and is_given(node) else ""


def _is_stamped(node: Expression) -> bool:
    match node:
        case Now():
            return True
        case Reference(steps):
            name = str(steps[0])
            if name in HEADERS:
                return HEADERS[name] not in _GIVEN
            return any(isinstance(step, str) and "$" in step for step in steps)
        case _:
            return False


class PredicateOutcomes:
    """The outcomes of predicates, a row for each event of one batch."""

    __slots__ = ("_known", "_sources")

    def __init__(self, *sources: Source) -> None:
        self._known: dict[Key, Column] = {}
        self._sources = list(sources)
        """Where to look for what is not here."""

    def find(self, key: Key) -> Column | None:
        """What is known; None: nobody has worked it out."""
        if key not in self._known:
            for source in self._sources:
                if (found := source(key)) is not None:
                    self._known[key] = found
                    break
        return self._known.get(key)

    def add_parts(self, parts: Sequence[PredicateOutcomes]) -> None:
        """Take up what is known of all ``parts`` of the batch, which lie end to end."""

        def source(key: Key) -> Column | None:
            found = [part.find(key) for part in parts]
            if any(each is None for each in found):
                return None
            return pa.concat_arrays(found)

        self._sources.append(source)

    def keep(self, key: Key, outcome: Column) -> None:
        """Take an outcome up, true, false or null for each row."""
        self._known[key] = outcome if outcome.type == pa.bool_() else outcome.cast(pa.bool_())

    def chosen(self, wanted: pa.BooleanArray) -> PredicateOutcomes:
        """Those of some of the rows."""

        def source(key: Key) -> Column | None:
            found = self.find(key)
            return None if found is None else found.filter(wanted)

        return PredicateOutcomes(source)
