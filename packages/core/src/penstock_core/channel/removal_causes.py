"""Remembers why ids have no event any more: the ids that left, by cause (SEM T8).

Events leave in ranges, or scattered among events that stay. The memory used is therefore about
proportional to the number of gaps in the set of stored ids, and independent of the number of
events. Beyond a limit the lower half of the ids is forgotten.

One cause is implied: an id below the next id that has no event and no recorded cause has the usual
cause. On a channel with publish keys, where each publish replaces scattered earlier events, the
usual cause is replacement. On other channels the usual cause is that no event was ever stored.
"""

from __future__ import annotations

from typing import Final

from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.causes import Cause
from penstock_core.vocabulary.stored_ids import Ids, id_set, stored_form

PIECES_MAX: Final = 4_096
"""Maximum number of ranges, or bitmaps of 1,024 ids, kept for a channel."""

NEVER: Final = "never"
"""No event was stored under the id: the event was transient, without interest, or in memory and
lost in a restart; or the id was skipped."""
FORGOTTEN: Final = "forgotten"
"""The event left so long ago, and so many ranges have left since, that the cause is not known."""

Kept = tuple[tuple[str, Ids], ...]
"""Causes of removal in the form of snapshots, each with its ids."""


class Departures:
    """The ids of events that have left, with their causes."""

    __slots__ = ("_left", "known_from", "usual")

    def __init__(self, known_from: int = 0, *, keyed: bool = False) -> None:
        self.known_from = known_from
        """The lowest id with a known cause; removals below it are not remembered."""
        self.usual: str = Cause.REPLACED.value if keyed else NEVER
        """The cause of ids that have no recorded cause."""
        self._left: dict[str, IdSet] = {}
        """Ids of removed events, by cause; without the usual cause."""

    def record(self, ids: IdSet, cause: str) -> None:
        """Record the cause of stored events that have left."""
        if cause == self.usual:
            return
        ids_of_cause = self._left.get(cause)
        if ids_of_cause is None:
            ids_of_cause = self._left[cause] = IdSet()
        ids_of_cause.add_all(ids)
        if ids_of_cause.pieces > PIECES_MAX // 2:
            self._forget_oldest()

    def record_late(self, ids: IdSet, cause: str, stored: IdSet) -> None:
        """Record the cause for those of ``ids`` that are in ``stored``.

        The others may have left earlier: after a restart, removals of events in memory are applied
        again.
        """
        if self.usual == NEVER:
            newly_left = ids.copy()
            for earlier in self._left.values():
                newly_left.discard_all(earlier)
        else:
            newly_left = stored.copy()
            if unstored := self._left.get(NEVER):
                newly_left.add_all(unstored.remove_all(ids))
        self.record(newly_left, cause)

    def record_unstored(self, *spans: tuple[int, int]) -> None:
        """Record ids that were assigned although no event is stored under them."""
        if self.usual != NEVER:
            self.record(IdSet(Span(*span) for span in spans), NEVER)

    def forget_unstored(self, ids: IdSet) -> None:
        """Drop the cause ``NEVER`` of ids that turn out to have stored events."""
        if unstored := self._left.get(NEVER):
            unstored.discard_all(ids)

    def missing(self, span: Span, assigned: Span, stored: IdSet) -> dict[str, IdSet]:
        """Return, by cause, the ids of ``span`` that are in ``assigned`` and not in ``stored``."""
        span = span.clipped(assigned)
        absent = _absent(span, stored)
        missing: dict[str, IdSet] = {}
        for cause, ids in self._left.items():
            if by_cause := absent.remove_all(ids.within(span)):
                missing[str(cause)] = by_cause
        if forgotten := absent.remove(Span(span.first, max(span.first, self.known_from))):
            missing[FORGOTTEN] = forgotten
        if absent:
            missing[self.usual] = absent
        return missing

    @property
    def pieces(self) -> int:
        """Number of ranges or bitmaps remembered."""
        return sum([ids.pieces for ids in self._left.values()]) if self._left else 0

    def copy(self) -> Departures:
        twin = Departures(self.known_from)
        twin.usual = self.usual
        twin._left = {cause: ids.copy() for cause, ids in self._left.items()}
        return twin

    def kept(self, end: int, stored: IdSet) -> dict[str, IdSet]:
        """Return the causes to keep over a restart for ids before ``end``, except ``NEVER``."""
        assigned = Span(self.known_from, end)
        departed = self.missing(assigned, assigned, stored) if self.usual != NEVER else self._left
        return {str(cause): ids.copy() for cause, ids in departed.items() if ids and cause != NEVER}

    def restore(self, known_from: int, kept: Kept, end: int, stored: IdSet) -> None:
        """Continue from a snapshot; ids below ``end`` are in use."""
        self.known_from = known_from
        departed = {cause: id_set(ids) for cause, ids in kept} if kept else {}
        if self.usual != NEVER:
            unstored = _absent(Span(known_from, end), stored)
            for ids in departed.values():
                unstored.discard_all(ids)
            departed.pop(self.usual, None)
            departed[NEVER] = unstored
        self._left = departed

    def _forget_oldest(self) -> None:
        """Forget the causes of the lower half of the ids until few enough pieces remain."""
        # The loop ends, because `known_from` rises each time.
        while self.pieces > PIECES_MAX:
            highest = max(ids.highest or 0 for ids in self._left.values())
            self.known_from = (self.known_from + highest) // 2 + 1
            for ids in self._left.values():
                ids.remove(Span(0, self.known_from))


def _absent(span: Span, stored: IdSet) -> IdSet:
    """Return the ids of ``span`` that are not in ``stored``."""
    absent = IdSet([span] if span.first < span.end else [])
    absent.discard_all(stored.within(span))
    return absent


def as_kept(left: dict[str, IdSet]) -> Kept:
    """Return causes in the form that snapshots hold."""
    return tuple((cause, stored_form(ids)) for cause, ids in sorted(left.items()))
