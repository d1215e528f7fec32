"""Reads and writes channels with Spark. The package ``penstock-spark`` implements it."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark import register as register
    from penstock_spark import table as table

__all__ = ["register", "table"]
