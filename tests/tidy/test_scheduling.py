"""Tests that share something costly run in one worker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.scheduling import LONG

ROOT = Path(__file__).parents[2]

SHARING = """
from __future__ import annotations

import pytest

@pytest.fixture
def spark():
    return None

@pytest.mark.parametrize("number", range(3))
def test_sharing(spark: SparkSession, number, told):
    told()
"""
PLAIN = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_plain(number, told):
    told()
"""
TOLD = """
import pytest

@pytest.fixture
def told(request, worker_id):
    file = request.path.parent / f"{request.path.stem}.{request.node.name}"
    return lambda: file.write_text(worker_id)
"""


def test_a_file_has_one_worker_and_so_have_all_files_that_share_a_session(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    files = {name: PLAIN for name in ("test_a", "test_b")}
    files |= {name: SHARING for name in ("test_c", "test_d", "test_e")}
    pytester.makepyfile(**files)
    pytester.makeconftest(TOLD)

    plugins = [part for name in ("xdist", "tests.scheduling") for part in ("-p", name)]
    done = pytester.runpytest_subprocess(*plugins, "-n", "2", "--dist", "loadscope")

    done.assert_outcomes(passed=15)
    workers = {
        name: {file.read_text() for file in pytester.path.glob(f"{name}.*[[]*")} for name in files
    }
    assert Counter(map(len, workers.values())) == {1: 5}
    assert workers["test_c"] == workers["test_d"] == workers["test_e"] != workers["test_a"]


def test_a_session_that_scheduling_does_not_see_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SHARING.replace("spark: SparkSession", "spark: object"))
    pytester.makeconftest(TOLD)

    done = pytester.runpytest_inprocess("-p", "tests.scheduling", "-p", "no:cacheprovider")

    done.stderr.fnmatch_lines(["*test_sharing*does not find*"])


def test_files_that_take_long_are_there_to_be_begun_first(pytester: pytest.Pytester) -> None:
    assert [name for name in LONG if not (ROOT / name).is_file()] == []
    for name in ("cluster/tests/test_first.py", "spark/tests/test_kills.py"):
        file = pytester.path / "packages" / name
        file.parent.mkdir(parents=True)
        file.write_text("def test_it(): pass")

    options = ["-p", "xdist", "-p", "tests.scheduling", "-p", "no:cacheprovider"]
    done = pytester.runpytest_inprocess(*options, "-v", "--no-loadscope-reorder")

    done.stdout.fnmatch_lines(
        ["packages/spark/tests/test_kills.py*", "packages/cluster/tests/test_first.py*"]
    )
