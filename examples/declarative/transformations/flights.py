"""Copy the flights of a channel to a table, and publish the late ones to another channel.

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
    """Every flight, once: a streaming table continues where the last run ended."""
    options = {"channel": "flights", "startingOffsets": "earliest"}
    return spark.readStream.format("penstock").options(**options).load()


pipelines.create_sink("late", "penstock", {"channel": "late"})


@pipelines.append_flow(target="late")
def late_flights() -> DataFrame:
    """Publish late flights through the ordinary sink, each micro-batch exactly once."""
    late = spark.readStream.table("flights").where("dep_delay > 60")
    return late.select("carrier", "flight", "dep_delay")
