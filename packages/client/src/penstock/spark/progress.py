"""The progress of streaming queries that read channels."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.reading.progress import lag as lag
    from penstock_spark.reading.progress import later_columns as later_columns

__all__ = ["lag", "later_columns"]
