"""Fixtures for tests of commands."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.commands import orders, penstock_command, work

__all__ = ["orders", "penstock_command", "work"]


@pytest.fixture
def untouched_logging() -> Iterator[None]:
    """Restore the configuration of the log after the test."""
    before, level = logging.root.handlers[:], logging.root.level
    chosen = structlog.get_config() if structlog.is_configured() else None
    yield
    logging.root.handlers[:] = before
    logging.root.setLevel(level)
    structlog.reset_defaults()
    if chosen is not None:
        structlog.configure(**chosen)
