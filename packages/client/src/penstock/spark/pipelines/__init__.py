"""Pipelines between channels and tables; ``penstock pipeline run FILE`` runs a TOML file."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_spark"):
    from penstock_spark.pipelines import ChannelTarget as ChannelTarget
    from penstock_spark.pipelines import Pipeline as Pipeline
    from penstock_spark.pipelines import Query as Query
    from penstock_spark.pipelines import Report as Report
    from penstock_spark.pipelines import Source as Source
    from penstock_spark.pipelines import TableTarget as TableTarget
    from penstock_spark.pipelines import Watermark as Watermark
    from penstock_spark.pipelines import load as load
    from penstock_spark.pipelines import parse as parse
    from penstock_spark.pipelines import run as run

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
