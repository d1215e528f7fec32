"""Remembers why ids have no event any more: for each cause the ids that left by it (SEM T8).

Events leave in ranges, or scattered among those that stay, so this takes about as much memory as
the set of stored ids has gaps, however many events there are or were. Beyond a limit the lower half
of the ids is forgotten.

One cause is implied: an id below the next one that has no event and no recorded cause has the usual
cause. On a channel with publish keys, where each publish removes scattered earlier events, that is
their replacement; otherwise it is that nothing was ever stored.
"""

from __future__ import annotations

from typing import Final

from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.stored_ids import Ids, id_set, written

PIECES_MAX: Final = 4_096
"""Ranges, or bitmaps of 1,024 ids, kept for a channel."""

NEVER: Final = "never"
"""Nothing was stored under the id: a transient event, one that nobody had interest in, one in
memory that a restart has lost, or an id that was skipped."""
FORGOTTEN: Final = "forgotten"
"""It left so long ago, and so many ranges have left since, that the realm does not know why."""

Kept = tuple[tuple[str, Ids], ...]


class Departures:
    """The ids that have left, with their causes."""

    __slots__ = ("_left", "known_from", "usual")

    def __init__(self, known_from: int = 0, *, keyed: bool = False) -> None:
        self.known_from = known_from
        """The lowest id with a known cause: removals below it are not remembered."""
        self.usual: str = Cause.REPLACED.value if keyed else NEVER
        """The cause that is not written down."""
        self._left: dict[str, IdSet] = {}

    def record(self, ids: IdSet, cause: str) -> None:
        """Stored events have left."""
        if cause == self.usual:
            return
        known = self._left.get(cause)
        if known is None:
            known = self._left[cause] = IdSet()
        known.add_all(ids)
        if known.pieces > PIECES_MAX // 2:
            self._bound()

    def record_late(self, ids: IdSet, cause: str, stored: IdSet) -> None:
        """Note the cause for those of ``ids`` that are in ``stored``: others may have left before,
        and removals of events in memory are reported again after a restart."""
        if self.usual == NEVER:
            new = ids.copy()
            for earlier in self._left.values():
                new.discard_all(earlier)
        else:
            new = stored.copy()
            if unstored := self._left.get(NEVER):
                new.add_all(unstored.remove_all(ids))
        self.record(new, cause)

    def record_unstored(self, *spans: tuple[int, int]) -> None:
        """They were given, and nothing is stored under them."""
        if self.usual != NEVER:
            self.record(IdSet(Span(*span) for span in spans), NEVER)

    def forget_unstored(self, ids: IdSet) -> None:
        """Something is stored under them after all."""
        if unstored := self._left.get(NEVER):
            unstored.discard_all(ids)

    def missing(self, span: Span, given: Span, stored: IdSet) -> dict[str, IdSet]:
        """By cause, the ids of ``span`` among those ``given`` that are not ``stored``."""
        span = span.clipped(given)
        gone = _absent(span, stored)
        found: dict[str, IdSet] = {}
        for cause, ids in self._left.items():
            if by_cause := gone.remove_all(ids.within(span)):
                found[str(cause)] = by_cause
        if forgotten := gone.remove(Span(span.first, max(span.first, self.known_from))):
            found[FORGOTTEN] = forgotten
        if gone:
            found[self.usual] = gone
        return found

    @property
    def pieces(self) -> int:
        """A measure of what is remembered: ranges, or bitmaps."""
        return sum([ids.pieces for ids in self._left.values()]) if self._left else 0

    def copy(self) -> Departures:
        twin = Departures(self.known_from)
        twin.usual = self.usual
        twin._left = {cause: ids.copy() for cause, ids in self._left.items()}
        return twin

    def kept(self, end: int, stored: IdSet) -> dict[str, IdSet]:
        """The causes to keep over a restart, for ids before ``end``: all but ``NEVER``."""
        known = Span(self.known_from, end)
        found = self.missing(known, known, stored) if self.usual != NEVER else self._left
        return {str(why): ids.copy() for why, ids in found.items() if ids and why != NEVER}

    def restore(self, known_from: int, kept: Kept, end: int, stored: IdSet) -> None:
        """Continue from a snapshot; ids below ``end`` are in use."""
        self.known_from = known_from
        left = {cause: id_set(ids) for cause, ids in kept} if kept else {}
        if self.usual != NEVER:
            unstored = _absent(Span(known_from, end), stored)
            for ids in left.values():
                unstored.discard_all(ids)
            left.pop(self.usual, None)
            left[NEVER] = unstored
        self._left = left

    def _bound(self) -> None:
        while self.pieces > PIECES_MAX:
            highest = max(ids.highest or 0 for ids in self._left.values())
            self.known_from = (self.known_from + highest) // 2 + 1
            for ids in self._left.values():
                ids.remove(Span(0, self.known_from))


def _absent(span: Span, stored: IdSet) -> IdSet:
    absent = IdSet([span] if span.first < span.end else [])
    absent.discard_all(stored.within(span))
    return absent


def as_kept(left: dict[str, IdSet]) -> Kept:
    """The form in which snapshots hold it."""
    return tuple((cause, written(ids)) for cause, ids in sorted(left.items()))
