"""The tests that every storage adapter must pass."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_testing"):
    from penstock_testing.contracts import BlobsContract as BlobsContract
    from penstock_testing.contracts import JournalContract as JournalContract
    from penstock_testing.contracts import RegistryContract as RegistryContract
    from penstock_testing.contracts import checks as checks
    from penstock_testing.contracts import run as run

__all__ = ["BlobsContract", "JournalContract", "RegistryContract", "checks", "run"]
