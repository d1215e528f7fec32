"""The integration tests of kombu itself, with ``penstock://`` as the transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_testing.process import ServerProcess
from tests.interop.programs import Tell, run_python_sources

pytestmark = [pytest.mark.process, pytest.mark.slow]

KOMBU_TESTS = 47


def test_kombu(tmp_path: Path, tell: Tell) -> None:
    with ServerProcess(tmp_path) as server:
        outcome = run_python_sources("celery", "suite.py", server.url, "kombu")

    tell("kombu's integration tests", outcome)
    assert str(outcome) == f"{KOMBU_TESTS} of {KOMBU_TESTS} pass"
