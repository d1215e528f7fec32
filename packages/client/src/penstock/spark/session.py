"""A session of Spark that is tuned for Penstock."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.session.session import session as session

__all__ = ["session"]
