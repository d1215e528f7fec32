"""A test kit for programs and adapters. The package ``penstock-testing`` implements it."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_testing"):
    import penstock_testing as _penstock_testing  # noqa: F401
