"""Who may start a JVM: tests that use the fixture ``java``, which marks them ``spark``.

For all others, and while tests are collected, ``JAVA_HOME`` names a program that refuses, in this
process and in those that it starts. So a test without the mark cannot start Spark unnoticed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REFUSING = Path(__file__).parent / "no_java"
_OWN = "TESTS_JAVA_HOME"
"""Where ``JAVA_HOME`` is kept meanwhile; workers of pytest-xdist find it there, too."""
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Java options that trade throughput for start-up; for tests only."""
FOR_DRIVERS = "SPARK_SUBMIT_OPTS"
"""The variable from which Spark's launcher takes Java options, before those of a session, which
win. It reaches programs, pages and benchmarks that set none, in a third less processor time."""


@pytest.fixture(scope="session")
def java() -> None:
    """Asks for a JVM. ``spark`` uses it; so does a test that starts Java or Maven in a process."""


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
    elif own := os.environ[_OWN]:
        os.environ["JAVA_HOME"] = own
    else:
        os.environ.pop("JAVA_HOME", None)


def _asks_for_java(item: pytest.Item) -> bool:
    """Whether it, or a fixture that it uses, uses ``java``."""
    return "java" in getattr(item, "fixturenames", ())


def _refuse() -> None:
    os.environ["JAVA_HOME"] = str(REFUSING)
