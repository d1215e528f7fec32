"""Why an id has no event any more: for each cause the ids that left by it (SEM T8).

Events leave in ranges, or scattered among those that stay, so this takes about as much room as
the set of what is stored has gaps; how many events there are, or were, does not matter. Beyond
a bound the lower half of the ids is forgotten.
"""

from __future__ import annotations

from typing import Final

from penstock.core.ids import IdSet, Span
from penstock.core.messages import Cause, Ids
from penstock.core.written import id_set, written

PIECES_MAX: Final = 4_096
"""Ranges, or bitmaps of 1,024 ids, kept for a channel."""

NEVER: Final = "never"
"""Nothing was stored under the id: a transient event, one that nobody was interested in, one in
memory only that a restart has lost, or an id that was passed over."""
FORGOTTEN: Final = "forgotten"
"""It left so long ago, and so many ranges have left since, that the realm does not know why."""

Kept = tuple[tuple[str, Ids], ...]


class Departures:
    """Which ids have left, and why."""

    def __init__(self, known_from: int = 0) -> None:
        self.known_from = known_from
        """Of ids below it nothing is known."""
        self._left: dict[Cause, IdSet] = {}

    def left(self, ids: IdSet, cause: Cause) -> None:
        """Stored events have left."""
        known = self._left.get(cause)
        if known is None:
            known = self._left[cause] = IdSet()
        known.add_all(ids)
        if known.pieces > PIECES_MAX // 2:
            self._bound()

    def left_late(self, ids: IdSet, cause: Cause) -> None:
        """The same, where some of them may have left before."""
        new = ids.copy()
        for earlier in self._left.values():
            new.discard_all(earlier)
        self.left(new, cause)

    def missing(self, span: Span, given: Span, stored: IdSet) -> dict[str, IdSet]:
        """By cause, the ids of ``span`` among those ``given`` that are not ``stored``."""
        span = span.clipped(given)
        gone = IdSet([span] if span.size else [])
        gone.discard_all(stored.within(span))
        found: dict[str, IdSet] = {}
        for cause, ids in self._left.items():
            if by_cause := gone.remove_all(ids.within(span)):
                found[cause.value] = by_cause
        if forgotten := gone.remove(Span(span.first, max(span.first, self.known_from))):
            found[FORGOTTEN] = forgotten
        if gone:
            found[NEVER] = gone
        return found

    def kept(self) -> dict[str, IdSet]:
        """What outlives a restart: a copy."""
        return {cause.value: ids.copy() for cause, ids in self._left.items() if ids}

    def restore(self, known_from: int, kept: Kept) -> None:
        self.known_from = known_from
        self._left = {Cause(cause): id_set(ids) for cause, ids in kept}

    def _bound(self) -> None:
        while sum(ids.pieces for ids in self._left.values()) > PIECES_MAX:
            highest = max(ids.highest or 0 for ids in self._left.values())
            self.known_from = (self.known_from + highest) // 2 + 1
            for ids in self._left.values():
                ids.remove(Span(0, self.known_from))


def as_kept(left: dict[str, IdSet]) -> Kept:
    """As snapshots hold it."""
    return tuple((cause, written(ids)) for cause, ids in sorted(left.items()))
