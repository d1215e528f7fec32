"""A disk that fails to sync, for tests of tables."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from penstock.tables.disk import Folder


class FailingDisk:
    """Makes the tables of this process fail to sync files whose path contains ``part``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
        self.fails = True
        self.synced: list[Path] = []
        """The files that were synced while the disk did not fail."""
        settle = Folder.settle

        def settle_or_fail(folder: Folder, path: Path) -> None:
            if part in str(path):
                if self.fails:
                    raise OSError(errno.EIO, "failed by the test")
                self.synced.append(path)
            settle(folder, path)

        monkeypatch.setattr(Folder, "settle", settle_or_fail)
