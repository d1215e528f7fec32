"""Fixtures for tests of bridges."""

from __future__ import annotations

from tests.commands import orders, penstock_command, work

__all__ = ["orders", "penstock_command", "work"]
