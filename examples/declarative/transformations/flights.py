"""Flights of a channel as a table, and the late ones back to a channel.

``PENSTOCK_URL`` names the realm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import pipelines
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

spark = SparkSession.active()


@pipelines.table
def flights() -> DataFrame:
    """Every flight, once: a streaming table goes on where the last run was."""
    options = {"channel": "flights", "startingOffsets": "earliest"}
    return spark.readStream.format("penstock").options(**options).load()


pipelines.create_sink("late", "penstock", {"channel": "late"})


@pipelines.append_flow(target="late")
def late_flights() -> DataFrame:
    """What is late goes to a channel, by the same sink as ever: each micro-batch once."""
    late = spark.readStream.table("flights").where("dep_delay > 60")
    return late.select("carrier", "flight", "dep_delay")
