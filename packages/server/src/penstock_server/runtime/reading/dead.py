"""Reads the origins of dead events: counts by origin and cause (SEM T6), and delivery states (SEM
D23)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock_core.api.reading import DeadGroup, DeadSummary
from penstock_core.columns.events.dead_runs import DEAD_SCHEMA, dead_columns
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.layout import UTC_MICROSECONDS, cause_and_reason
from penstock_core.ids.ids import Spans
from penstock_server.runtime.reading.collecting import Collected
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch

GROUPS_MAX = 1_000
"""Largest number of groups in an answer. It is limited because clients choose the reasons, so each
event could have a different one."""

_SUMS = [
    ("event_id", "count"),
    ("event_id", "min"),
    ("event_id", "max"),
    ("at", "min"),
    ("at", "max"),
]


class DeadOrigins(Collected):
    """An outlet that keeps the origins of events only."""

    def __init__(self, session: str, count_max: int) -> None:
        super().__init__(session, None, count_max)
        self._parts = [DEAD_SCHEMA.empty_table()]

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Add the origins of a batch."""
        if self.is_full:  # batches that were in flight when the page became full
            return
        batch = rows.batch.slice(0, self.count_max - self.count)
        self._parts.append(dead_columns(batch))
        self.advance(batch)

    @property
    def columns(self) -> pa.Table:
        """The origins, by event id."""
        return pa.concat_tables(self._parts)


class DeadEvents(Collected):
    """An outlet that counts events instead of keeping them."""

    def __init__(self, session: str, count_max: int) -> None:
        super().__init__(session, None, count_max)
        self._groups: dict[tuple[str, str], list[Any]] = {}

    def deliver(self, rows: OutgoingBatch, redeliveries: tuple[tuple[int, Spans], ...]) -> None:
        """Add the events of a batch to their groups."""
        batch = rows.batch
        index = batch.schema.get_field_index("origin")
        if index >= 0:
            self._add(batch.column("event_id"), batch.column(index))
        self.advance(batch)

    def _add(self, ids: pa.Array, origins: pa.Array) -> None:
        """Add dead events with these origins to the groups."""
        table = pa.table(
            {
                "event_id": ids,
                "store": pc.struct_field(origins, "store"),
                "cause": pc.struct_field(origins, "cause"),
                "at": pc.struct_field(origins, "at").cast(UTC_MICROSECONDS),
            }
        )
        for row in table.group_by(["store", "cause"]).aggregate(_SUMS).to_pylist():
            if row["store"] is None:
                continue
            key = row["store"], row["cause"]
            new = [row[f"{name}_{aggregate}"] for name, aggregate in _SUMS]
            old = self._groups.get(key)
            if old is not None:
                new = [old[0] + new[0], *_wider(old[1:3], new[1:3]), *_wider(old[3:], new[3:])]
            elif len(self._groups) >= GROUPS_MAX:
                continue  # counted in the total only
            self._groups[key] = new

    def summary(self, *, is_complete: bool) -> DeadSummary:
        """Return the groups, largest first."""
        groups = [_group(store, cause, *sums) for (store, cause), sums in self._groups.items()]
        groups.sort(key=lambda group: (-group.events, group.store, group.cause, group.reason))
        return DeadSummary(events=self.count, is_complete=is_complete, groups=groups)


def _wider(old: list[Any], new: list[Any]) -> list[Any]:
    """Return the smallest range that contains two ranges; a range is its minimum and its
    maximum."""
    return [min(old[0], new[0]), max(old[1], new[1])]


def _group(
    store: str, written: str, events: int, first: int, last: int, oldest: datetime, newest: datetime
) -> DeadGroup:
    """Return a group of dead events. ``written`` is their stored cause, which may contain a
    reason."""
    cause, reason = cause_and_reason(written)
    return DeadGroup(
        store=store,
        cause=cause,
        reason=reason,
        events=events,
        first_id=first,
        last_id=last,
        oldest=oldest,
        newest=newest,
    )
