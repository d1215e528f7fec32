"""Fixtures for tests of commands."""

from __future__ import annotations

from tests.commands import orders, penstock_command, work
from tests.plugin import realm, session

# The realm of all other tests: that of the folder above is one for all tests of a file.
__all__ = ["orders", "penstock_command", "realm", "session", "work"]
