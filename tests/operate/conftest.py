"""External programs for the tests of operating."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def promtool() -> str:
    """Prometheus's tool for checking rules."""
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("there is no promtool: install Debian's package prometheus")
    return path
