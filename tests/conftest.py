"""What tests of several areas share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from penstock.testing.process import ServerProcess

Serve = Callable[..., ServerProcess]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts ``penstock serve`` in a process of its own: ``serve("--log-level", "debug")``.

    All servers of a test share one data directory, so that a second one recovers the first's.
    """
    with ExitStack() as running:

        def start(*arguments: str) -> ServerProcess:
            return running.enter_context(ServerProcess(tmp_path / "realm", *arguments))

        yield start
