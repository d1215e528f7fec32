"""An embedded realm on virtual time, for tests of programs."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_testing"):
    from penstock_testing.virtual_realm import VirtualRealm as VirtualRealm

__all__ = ["VirtualRealm"]
