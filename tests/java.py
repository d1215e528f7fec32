"""Lets only tests that use the fixture ``java`` start a JVM, and marks these tests ``spark``.

For all others, and while tests are collected, ``JAVA_HOME`` is a folder whose ``java`` only
fails, in this process and in those that it starts. So a test without the mark cannot start Spark
unnoticed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REFUSING = Path(__file__).parent / "no_java"
_OWN = "TESTS_JAVA_HOME"
"""The environment variable that keeps the real ``JAVA_HOME``, also for workers of pytest-xdist."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options that trade throughput for start-up; for tests only."""
FOR_DRIVERS = "SPARK_SUBMIT_OPTS"
"""The variable from which Spark's launcher takes Java options; those of a session override them.
It also reaches programs, documentation pages and benchmarks that set none, and saves them a third
of their processor time."""


@pytest.fixture(scope="session")
def java() -> None:
    """Lets a test start a JVM. The fixture ``spark`` uses it, as do tests that start Java or
    Maven."""


def pytest_configure() -> None:
    os.environ.setdefault(_OWN, os.environ.get("JAVA_HOME", ""))
    os.environ.setdefault(FOR_DRIVERS, QUICK_START)
    _refuse()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _asks_for_java(item):
            item.add_marker(pytest.mark.spark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _asks_for_java(item):
        _refuse()
    elif home := os.environ[_OWN]:
        os.environ["JAVA_HOME"] = home
    else:
        os.environ.pop("JAVA_HOME", None)


def _asks_for_java(item: pytest.Item) -> bool:
    """Whether a test uses the fixture ``java``, directly or through another fixture."""
    return "java" in getattr(item, "fixturenames", ())


def _refuse() -> None:
    os.environ["JAVA_HOME"] = str(REFUSING)
