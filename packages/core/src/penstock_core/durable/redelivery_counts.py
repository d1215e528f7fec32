"""Numbers of redeliveries of a durable's events (SEM T10)."""

from __future__ import annotations

from penstock_core.ids.ids import IdSet, Spans


class RedeliveryCounts(dict[int, IdSet]):
    """Event ids by redelivery count; events without redelivery are in no set."""

    def raise_by_one(self, remaining: IdSet) -> None:
        """Count one more redelivery of the events in ``remaining``."""
        # The loop runs from the highest count down, so that no event is raised twice.
        for count in sorted(self, reverse=True):
            level = self[count]
            raised = level.remove_all(remaining)
            if not level:
                del self[count]
            if not raised:
                continue
            self.setdefault(count + 1, IdSet()).add_all(raised)
            # The set belongs to the caller, so it is copied before the change.
            remaining = remaining.copy()
            remaining.remove_all(raised)
        if remaining:
            self.setdefault(1, IdSet()).add_all(remaining)

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
