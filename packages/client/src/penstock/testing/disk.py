"""A disk that loses power, tears writes or fills up."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_testing"):
    from penstock_testing.disk import SECTOR as SECTOR
    from penstock_testing.disk import FaultyDisk as FaultyDisk

__all__ = ["SECTOR", "FaultyDisk"]
