"""Numbers of redeliveries of a durable's events (SEM T10)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Spans


class RedeliveryCounts(dict[int, IdSet]):
    """Event ids by redelivery count; events without redelivery are in no set."""

    def raise_by_one(self, back: IdSet) -> None:
        """Count one more redelivery of events."""
        # The loop runs from the highest count down, so that no event is raised twice.
        for count in sorted(self, reverse=True):
            level = self[count]
            risen = level.remove_all(back)
            if not level:
                del self[count]
            if not risen:
                continue
            self.setdefault(count + 1, IdSet()).add_all(risen)
            # This is a copy, because the set belongs to the caller.
            back = back.copy()
            back.remove_all(risen)
        if back:
            self.setdefault(1, IdSet()).add_all(back)

    def at_least(self, least: int, ids: IdSet) -> IdSet:
        """Return the part of ``ids`` that was redelivered at least ``least`` times."""
        counted = IdSet()
        for count, level in self.items():
            if count >= least:
                counted.add_all(level.overlap(ids))
        return counted

    def within(self, spans: Spans) -> tuple[tuple[int, Spans], ...]:
        """Return the events of ``spans`` that were redelivered, by redelivery count."""
        if not self:
            return ()
        by_count = []
        for count, level in sorted(self.items()):
            if parts := tuple([part for span in spans for part in level.within(span).spans]):
                by_count.append((count, parts))
        return tuple(by_count)
