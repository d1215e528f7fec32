"""Spark finds the format ``penstock`` here by itself: it looks into packages named pyspark_*."""

from __future__ import annotations

from penstock_spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
