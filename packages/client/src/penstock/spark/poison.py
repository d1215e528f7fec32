"""Sends events that make a streaming query fail to the dead event store."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.reading.poison import bury_poison as bury_poison

__all__ = ["bury_poison"]
