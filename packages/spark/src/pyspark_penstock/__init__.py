"""Registers the format ``penstock``: Spark searches packages named pyspark_* for formats."""

from __future__ import annotations

from penstock_spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
