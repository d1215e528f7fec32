"""A context for steps that run without a runner, and mostly without Spark."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_spark.pipelines.sources import Source
from penstock_spark.pipelines.step import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StepContext:
    """A context with given settings, which records the reports of its step."""

    def __init__(
        self,
        url: str,
        folder: Path,
        step: str,
        *,
        once: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        self.pipeline = "test"
        self.step = step
        self.url = url
        self.folder = folder
        self.checkpoint = str(folder / "checkpoints" / step)
        self.once = once
        self.stopping = threading.Event()
        self.reports: list[Progress] = []
        self._spark = spark
        Path(self.checkpoint).mkdir(parents=True, exist_ok=True)

    @property
    def sources(self) -> Mapping[str, Source]:
        return {}

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "the test gave this context no Spark session"
        return self._spark

    def table(self, source: str, **options: str) -> DataFrame:
        raise AssertionError(f"the steps of these tests have no sources: {source} {options}")

    def source(self, name: str) -> Source:
        raise AssertionError(f"the steps of these tests have no sources: {name}")

    def located(self, path: str) -> str:
        return path if "://" in path else str(self.folder / path)

    def report(self, progress: Progress) -> None:
        self.reports.append(progress)
