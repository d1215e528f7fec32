"""Stored batches of events."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of_columns
from penstock_core.ids.ids import Span

Rows = list[dict[str, Any]]


def stored(rows: Rows, first: int = 0) -> pa.RecordBatch:
    body = body_of_columns([b""] * len(rows), properties=rows)
    return stamp(body, Span(first, first + len(rows)), 0)
