"""While the disk fails, work is retried less and less often."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from packages.server.tests.runtime.living import body, events, living, publish
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import Buffer, inline
from penstock_server.bootstrap import rules
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.backoff import RetryPauses
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal, MemoryPages
from penstock_testing.loop import SimLoop, pass_time, simulated

HOUR_S = 3_600.0
LIMITS = SealingLimits(
    segment_bytes_max=1, maintenance=MaintenanceLimits(dead_bytes=1, dead_share=0.1)
)
KINDS = [Storage(events_per_spindle=0), Storage(events_per_spindle=10)]


class Refusing(MemoryBlobs):
    """A disk without room for new files while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.refused = 0
        self.keeps = False
        """A disk on which files cannot be deleted."""

    async def delete(self, name: str) -> None:
        if self.keeps:
            raise StorageFailed("input/output error")
        await super().delete(name)

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        if self.is_full:
            self.refused += 1
            raise StorageFailed("no space left")
        await super().put(name, chunks)


def test_pauses_double_up_to_a_bound_and_start_again_after_a_success() -> None:
    backoff = RetryPauses(5.0, 30.0)

    assert [backoff.failed() for _ in range(5)] == [5.0, 10.0, 20.0, 30.0, 30.0]
    backoff.record_success()
    assert backoff.failed() == 5.0


def test_a_first_pause_longer_than_the_bound_is_kept() -> None:
    backoff = RetryPauses(60.0, 30.0)

    assert [backoff.failed(), backoff.failed()] == [60.0, 60.0]


@pytest.mark.slow
@pytest.mark.parametrize("storage", KINDS, ids=["one file", "files"])
@simulated
async def test_sealing_is_retried_rarely_and_resumes_soon_after_space_is_free(
    storage: Storage,
) -> None:
    blobs = Refusing()
    async with living(MemoryJournal(), blobs, sealing=LIMITS) as realm:
        kept = Definition(type="persistent", retain_consumed=True, storage=storage)
        orders = (await realm.create_channel("orders", kept)).channel
        blobs.is_full = True
        await publish(realm, orders, body([b"x"] * 10))

        await pass_time(HOUR_S)
        assert HOUR_S / 31 < blobs.refused < HOUR_S / 29, "twice a minute"
        blobs.is_full = False
        await pass_time(31)

        assert (await realm.describe_channel("orders")).storage.sealed_files == 1
        assert len(await events(realm, orders)) == 10


@pytest.mark.slow
@simulated
async def test_maintenance_is_retried_rarely_and_resumes_soon_after_space_is_free() -> None:
    blobs = Refusing()
    async with living(MemoryJournal(), blobs, sealing=LIMITS) as realm:
        kept = Definition(
            type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=0)
        )
        orders = (await realm.create_channel("orders", kept)).channel
        await publish(realm, orders, body([b"x" * 1_000] * 10))
        await pass_time(0.5)
        before = (await realm.describe_channel("orders")).storage.sealed_bytes
        blobs.is_full = True
        await realm.subscriptions.purge(orders, 0, 7, selector="")

        await pass_time(HOUR_S)
        assert HOUR_S / 32 < blobs.refused < HOUR_S / 29, "twice a minute"
        blobs.is_full = False
        await pass_time(32)

        assert (await realm.describe_channel("orders")).storage.sealed_bytes < before / 2


class BreaksDown(MemoryJournal):
    """Takes its time over a block, and fails, once it is told to."""

    fails = False

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        if self.fails:
            await pass_time(5)
            raise StorageFailed("the disk is gone")
        return await super().append(expected, block, sync=sync)


@simulated
async def test_a_realm_ends_with_its_disk_also_while_a_file_is_rewritten() -> None:
    """The rest of the file cannot be removed then; the reason of the end matters more."""
    journal, blobs = BreaksDown(), Refusing()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    realm = await RunningRealm.open(
        journal, blobs, MemoryPages(), rules(), loop, inline, identity="i", sealing=LIMITS
    )
    running = loop.create_task(realm.run())
    kept = Definition(
        type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=0)
    )
    orders = (await realm.create_channel("orders", kept)).channel
    await publish(realm, orders, body([b"x" * 1_000] * 10))
    await pass_time(0.5)
    await realm.subscriptions.purge(orders, 0, 7, selector="")

    journal.fails = True
    blobs.keeps = True
    realm.publish(orders, [body([b"y"])], "", sequence=0, reply=lambda *_: None)
    await asyncio.wait([running], timeout=60)

    assert running.done()
    assert isinstance(running.exception(), ExceptionGroup)
