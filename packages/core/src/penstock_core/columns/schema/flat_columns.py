"""Columns of a flat batch, which has one column per property (:meth:`EventBatch.to_table`)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock_core.columns.schema.layout import FIELDS, STAMPED

FLAT: Final = ("event_id", "published", "tag", "data")
"""The first columns of every flat batch."""


def flat_field(name: str) -> pa.Field:
    """Return the Arrow field of ``name``, one of the first columns of every flat batch."""
    return pa.field(name, STAMPED[name], nullable=False) if name in STAMPED else FIELDS[name]


def flat_name(name: str) -> str:
    """Return the column name of a property in a flat batch."""
    return f"properties.{name}" if name in FLAT else name
