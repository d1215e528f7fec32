"""Reads the properties of one event of a batch, for the tests of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock_core.columns.schema.rows import Rows


def row_properties(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    """Return the properties of a row exactly as they were published (SEM E2)."""
    return Rows(batch).properties(row)
