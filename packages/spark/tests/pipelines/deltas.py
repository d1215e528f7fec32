"""Reads Delta tables without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return all rows of a table, in no particular order."""
    table_rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return table_rows
