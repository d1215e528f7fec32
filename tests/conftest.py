"""What tests of several areas share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.process import ServerProcess

Serve = Callable[..., ServerProcess]

DOORS = ("access", "cli", "frontends")
"""Folders whose tests go through a whole realm's front door: fifty times the time of a story."""

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes through a front door says so by where it lies."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in DOORS:
            item.add_marker(pytest.mark.door)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``penstock serve`` in a process of its own: ``serve("--log-level", "debug")``.

    All servers of a test share one data directory, so that a second one recovers the first's.
    """
    with ExitStack() as running:

        def start(*arguments: str) -> ServerProcess:
            return running.enter_context(ServerProcess(tmp_path / "realm", *arguments))

        yield start
