"""The integration tests of Celery itself, with ``penstock://`` as the transport and the result
backend."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest

from penstock_testing.process import ServerProcess
from tests.interop.programs import HERE, RUNNING_S, Tell, run_python_sources

pytestmark = [pytest.mark.process, pytest.mark.slow]

WHOLE_S = 900
"""Largest number of seconds that a part of Celery's suite takes with ``--whole-celery``."""
CELERY_TESTS = {"fast tasks": 50, "tasks": 64, "held by the worker": 1}
"""Numbers of tests that apply: others need Redis or RabbitMQ and are skipped by themselves."""


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("realm")) as running:
        yield running


def test_the_suites_are_those_of_the_installed_versions() -> None:
    pinned = (HERE / "celery" / "sources.txt").read_text()

    for project in ("celery", "kombu"):
        assert f"{project}=={version(project)} " in pinned


@pytest.mark.parametrize("part", ["tasks", "held by the worker"])
def test_celery(
    part: str, server: ServerProcess, tell: Tell, request: pytest.FixtureRequest
) -> None:
    is_whole = bool(request.config.getoption("whole_celery"))
    if part == "tasks" and not is_whole:
        part = "fast tasks"

    outcome = run_python_sources(
        "celery",
        "suite.py",
        server.url,
        "celery",
        part,
        running_s=WHOLE_S if is_whole else RUNNING_S,
    )

    tell(f"Celery's integration tests, {part}", outcome)
    assert str(outcome) == f"{CELERY_TESTS[part]} of {CELERY_TESTS[part]} pass"
