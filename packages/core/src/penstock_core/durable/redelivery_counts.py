"""How often events of a durable were given back after a delivery (SEM T10)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Spans


class RedeliveryCounts(dict[int, IdSet]):
    """Event ids by their redelivery count; an event that was never given back is in none."""

    def raise_by_one(self, back: IdSet) -> None:
        """Count events that were given back once more."""
        for count in sorted(self, reverse=True):
            level = self[count]
            risen = level.remove_all(back)
            if not level:
                del self[count]
            if not risen:
                continue
            self.setdefault(count + 1, IdSet()).add_all(risen)
            back = back.copy()
            back.remove_all(risen)
        if back:
            self.setdefault(1, IdSet()).add_all(back)

    def at_least(self, least: int, ids: IdSet) -> IdSet:
        """The part of ``ids`` that was given back so often, or more often."""
        found = IdSet()
        for count, level in self.items():
            if count >= least:
                found.add_all(level.overlap(ids))
        return found

    def within(self, spans: Spans) -> tuple[tuple[int, Spans], ...]:
        """The events of ``spans`` that were given back, by how often."""
        if not self:
            return ()
        found = []
        for count, level in sorted(self.items()):
            if parts := tuple([part for span in spans for part in level.within(span).spans]):
                found.append((count, parts))
        return tuple(found)
