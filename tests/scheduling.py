"""A pytest plugin that assigns tests to workers, with ``--dist loadscope``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SESSION = "the session of Spark"
LONG = (
    "packages/airflow/tests/test_triggerer.py",
    "packages/cluster/tests/test_rolling_upgrade.py",
    "tests/integration/test_strangers.py",
    "tests/interop/test_celery.py",
    "tests/interop/test_kombu.py",
    "packages/spark/tests/pipelines/steps/test_archive_killed.py",
    "packages/spark/tests/pipelines/test_declarative.py",
    "packages/spark/tests/test_kills.py",
    "packages/spark/tests/test_takeovers.py",
)
"""Files with few tests, of which one takes half a minute or more. They are begun first: at the end
they would keep one worker busy while the others have nothing to do."""
_SHARING = re.compile(r"\bspark: SparkSession\b")


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests of a file to one worker, so that their shared fixtures are made once, and all
    tests with the Spark session to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SESSION if shares_the_session(self.config.rootpath / file) else file


# The marks of xdist for groups do nothing with pytest 9.2 (pytest-xdist, issue 1386).
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Move long files to the front. With ``--no-loadscope-reorder`` workers take files in this
    order."""
    if not getattr(config.option, "loadscopereorder", True):
        items.sort(key=lambda item: not (_is_long(item.path) or shares_the_session(item.path)))
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures and not shares_the_session(item.path):
            raise pytest.UsageError(f"{item.nodeid}: {_SHARING.pattern} does not find {item.path}")


@cache
def shares_the_session(file: Path) -> bool:
    """Whether a test of a file uses the Spark session of ``packages/spark/tests/conftest.py``."""
    return bool(_SHARING.search(file.read_text()))


@cache
def _is_long(file: Path) -> bool:
    return file.as_posix().endswith(tuple(f"/{name}" for name in LONG))
