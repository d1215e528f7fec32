"""Columns of a flat batch, which has one column per property (:meth:`EventBatch.to_table`)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from penstock_core.columns.schema.layout import FIELDS, STAMPED

FLAT: Final = ("event_id", "published", "tag", "data")
"""The columns every flat batch starts with."""


def flat_field(name: str) -> pa.Field:
    """The Arrow field of ``name``, one of the columns every flat batch starts with."""
    return pa.field(name, STAMPED[name], nullable=False) if name in STAMPED else FIELDS[name]


def flat_name(name: str) -> str:
    """The name that the column of a property has in a flat batch."""
    return f"properties.{name}" if name in FLAT else name
