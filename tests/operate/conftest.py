"""What tests of operating need from outside."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def promtool() -> str:
    """The tool of Prometheus that checks rules."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("there is no promtool: install Debian's package prometheus")
    return found
