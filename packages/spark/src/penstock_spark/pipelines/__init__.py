"""Pipelines: continuous queries from channels and tables to channels and tables.

``penstock pipeline run FILE`` runs a pipeline that is defined in a TOML file. A Python program
imports::

    from penstock_spark.pipelines import Pipeline, Query, Source, run
"""

from __future__ import annotations

from penstock_spark.pipelines.definition import Pipeline, load, parse
from penstock_spark.pipelines.runner import Report, run
from penstock_spark.pipelines.sources import Source, Watermark
from penstock_spark.pipelines.step import ChannelTarget, TableTarget
from penstock_spark.pipelines.steps.query import Query

__all__ = [
    "ChannelTarget",
    "Pipeline",
    "Query",
    "Report",
    "Source",
    "TableTarget",
    "Watermark",
    "load",
    "parse",
    "run",
]
