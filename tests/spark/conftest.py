"""One Spark session for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import session

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options that trade throughput for start-up; for tests only."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on two cores that retries no task."""
    started = session(
        "penstock-tests",
        "local[2]",
        **{"spark.driver.extraJavaOptions": QUICK_START, "spark.driver.memory": "1g"},
    )
    yield started
    started.stop()
