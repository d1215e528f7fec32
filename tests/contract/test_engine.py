"""The engine in memory does what an engine has to, and a journal on any disk outlives its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from penstock_core.vocabulary.ports import Journal
from penstock_server.storage.disk import Disk, RealDisk
from penstock_testing.contracts import checks, run
from penstock_testing.disk import FaultyDisk
from penstock_testing.engine_contracts import EngineContract, ReopenedJournalContract
from penstock_testing.loop import simulate
from penstock_testing.stores import open_store
from tests.contract.fateful import EngineJournalKit, MemoryEngineKit


class DiskJournalKit(ReopenedJournalContract):
    torn_bytes = 100

    def __init__(self, disk: Disk, root: str, *, is_tiny: bool = False) -> None:
        self._disk = disk
        self._open = partial(open_store, root, disk)
        if is_tiny:
            self._open = partial(self._open, file_bytes_max=200, allocation_bytes=64)

    async def open(self, epoch: int) -> Journal:
        self._journal = self._open().journal
        return self._journal

    async def tear(self, data: bytes) -> None:
        """What was written and not synced when the power failed: the first half of it is there."""
        journal = self._journal
        await journal.append(journal.info().tail, [data], sync=False)
        newest = journal._files[-1]
        self._disk.truncate(newest.file, newest.end - len(data) // 2)
        lock = journal._lock  # type: ignore[attr-defined]  # it dies without giving it back
        self._disk.close(lock)


@pytest.fixture(params=["real disk", "faulty disk", "tiny files", "engine"])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> ReopenedJournalContract:
    kits: dict[str, Callable[[], ReopenedJournalContract]] = {
        "real disk": lambda: DiskJournalKit(RealDisk(), f"{tmp_path}/realm"),
        "faulty disk": lambda: DiskJournalKit(FaultyDisk(), "/realm"),
        "tiny files": lambda: DiskJournalKit(FaultyDisk(), "/realm", is_tiny=True),
        "engine": EngineJournalKit,
    }
    return kits[request.param]()


@pytest.mark.parametrize("check", checks(ReopenedJournalContract))
def test_a_journal_outlives_its_owner(reopened: ReopenedJournalContract, check: str) -> None:
    asyncio.run(run(reopened, check))


@pytest.mark.parametrize("check", checks(EngineContract))
def test_an_engine_has_one_owner_and_one_outcome(check: str) -> None:
    simulate(run(MemoryEngineKit(), check), Random(7))
