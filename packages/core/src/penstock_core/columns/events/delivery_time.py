"""Delayed events (SEM X4), for whole batches or tables: reads the column ``deliver_at``."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from penstock_core.columns.events.batch import Int64s
from penstock_core.columns.events.digest import grouped
from penstock_core.columns.schema.layout import DELIVERY_TIME
from penstock_core.ids.ids import Spans


def waiting_rows(rows: pa.RecordBatch | pa.Table) -> int:
    """Return the number of events with a delivery time."""
    index = rows.schema.get_field_index(DELIVERY_TIME)
    return rows.num_rows - rows.column(index).null_count if index >= 0 else 0


def all_wait(parts: Iterable[pa.RecordBatch | pa.Table]) -> bool:
    """Whether every event has a delivery time."""
    return all(waiting_rows(part) == part.num_rows for part in parts)


def split_by_waiting(table: pa.Table) -> list[pa.Table]:
    """Split a table into delayed events and others, because one publish takes only one of the two
    kinds."""
    waiting = waiting_rows(table)
    if DELIVERY_TIME not in table.column_names or waiting == table.num_rows:
        return [table]
    times = table.column(DELIVERY_TIME)
    without_time = table.filter(times.is_null()).drop_columns([DELIVERY_TIME])
    return [table.filter(times.is_valid()), without_time] if waiting else [without_time]


def due_times_us(batch: pa.RecordBatch) -> Int64s:
    """Return the delivery time of each event in microseconds since 1970. All events must have
    one."""
    times: Int64s = batch.column(DELIVERY_TIME).view(pa.int64()).to_numpy()
    return times


def waiting_times_ms(batch: pa.RecordBatch, now_us: int) -> tuple[tuple[int, Spans], ...]:
    """Return the remaining delay of each event in whole milliseconds, rounded up, at least 1.

    Each delay comes with the offsets of its events in the batch, shortest delay first. An event
    without a delivery time gets 1 ms.
    """
    index = batch.schema.get_field_index(DELIVERY_TIME)
    if index < 0:
        return grouped(np.ones(batch.num_rows, dtype=np.int64))
    due = batch.column(index).view(pa.int64())
    due = np.asarray((due.fill_null(now_us) if due.null_count else due).to_numpy())
    # Floor division of the negated delay rounds the delay up.
    return grouped(np.maximum(-((now_us - due) // 1_000), 1))
