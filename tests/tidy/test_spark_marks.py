"""Spark starts in tests that say so, and they say so by the fixture they use."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock_spark.session.jvm import find_jvm
from tests.java import REFUSING
from tests.tidy.parsing import ROOT, files_of_tests

STORIES = """
import pytest

@pytest.fixture
def spark(java):
    return None

@pytest.fixture
def table(spark):
    return None

def test_plain(tmp_path):
    assert True

def test_of_a_table(table):
    assert True

@pytest.mark.usefixtures("java")
def test_of_a_process():
    assert True
"""


def test_whoever_uses_spark_however_far_away_is_marked(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # the tests here need none
    pytester.makepyfile(STORIES)
    pytester.makeini("[pytest]\nmarkers = spark: starts Spark")
    plain = ["-p", "no:cacheprovider", "-q", "--collect-only"]

    with_spark = pytester.runpytest_inprocess(*plain, "-p", "tests.java", "-m", "spark")
    without = pytester.runpytest_inprocess(*plain, "-p", "tests.java", "-m", "not spark")

    with_spark.stdout.fnmatch_lines(["*test_of_a_table", "*test_of_a_process", "2/3 *"])
    without.stdout.fnmatch_lines(["*test_plain", "1/3 *"])


def test_no_test_writes_the_mark_itself() -> None:
    written = [
        str(path.relative_to(ROOT))
        for path in files_of_tests()
        if "mark.spark" in path.read_text() and path.name not in ("java.py", "test_spark_marks.py")
    ]

    assert written == [], "use the fixture spark, or java where a process starts Spark"


def test_without_the_fixture_no_jvm_starts_here_or_in_a_process() -> None:
    finding = find_jvm()
    in_process = subprocess.run(
        ['"$JAVA_HOME"/bin/java -cp . Main'],
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )

    assert finding.java == REFUSING / "bin" / "java" == Path(os.environ["JAVA_HOME"], "bin", "java")
    assert in_process.returncode == 1
    assert "no Spark without its mark" in in_process.stderr


@pytest.mark.usefixtures("java")
def test_with_the_fixture_a_jvm_is_found() -> None:
    assert REFUSING not in find_jvm().java.parents
