"""The tests that every store of paged channels' pages must pass."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_testing"):
    from penstock_testing.pages_contract import PagesContract as PagesContract

__all__ = ["PagesContract"]
