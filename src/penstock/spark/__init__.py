"""Spark as a client of the realm: sources, sinks, and a session tuned for them."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from penstock.core.errors import Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession, url: str | None = None) -> None:
    """Make the format ``penstock`` known to a Spark session.

    ``url`` is the realm to use where the option ``url`` is not given; without it, what the
    environment variable ``PENSTOCK_URL`` says now. Where this package is installed, Spark finds
    the format without a call; it is for the default URL, and for notebooks that want to be sure.

    Raises ``Unavailable`` when PySpark is missing, ``InvalidArgument`` for what is no URL.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise Unavailable('PySpark is not installed: pip install "penstock[spark]"')
    from penstock.spark.options import URL_VARIABLE
    from penstock.spark.source import source_with

    spark.dataSource.register(source_with(url or os.environ.get(URL_VARIABLE, "")))


__all__ = ["register"]
