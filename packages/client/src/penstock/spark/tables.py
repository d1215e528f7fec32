"""Tables whose rows may be DataFrames."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.tables import Table as Table

__all__ = ["Table"]
