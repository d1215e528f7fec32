"""A journal with appends, power cuts and restarts, compared with a list that never fails."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock_core.vocabulary.errors import Deposed, StorageFailed
from penstock_core.vocabulary.ports import Block
from penstock_server.storage.embedded import FileJournal
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store
from tests.thorough import examples

block_bytes = st.binary(max_size=40) | st.integers(0, 3_000).map(lambda size: b"\xf1" * size)


class JournalLife(RuleBasedStateMachine):
    """Every block acknowledged with a sync is there after any crash; others go as a suffix."""

    @initialize(seed=st.integers(0, 2**32), file_bytes_max=st.sampled_from([200, 2_000, 1 << 20]))
    def start(self, seed: int, file_bytes_max: int) -> None:
        self.disk = FaultyDisk(seed)
        self.file_bytes_max = file_bytes_max
        self.blocks: list[bytes] = []
        self.floor = 0
        self.safe = 0
        self.runner = asyncio.Runner()
        self.journal = self.opened()

    def opened(self) -> FileJournal:
        return open_store(
            "/realm", self.disk, file_bytes_max=self.file_bytes_max, allocation_bytes=1_000
        ).journal

    @rule(block=block_bytes, sync=st.booleans())
    def append(self, block: bytes, sync: bool) -> None:
        seq = self.runner.run(self.journal.append(len(self.blocks), [block], sync=sync))
        self.blocks.append(block)
        assert seq == len(self.blocks)
        if sync:
            self.safe = seq

    @rule()
    def sync(self) -> None:
        self.runner.run(self.journal.sync())
        self.safe = len(self.blocks)

    @precondition(lambda self: self.blocks)
    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        through = int(share * len(self.blocks))
        self.runner.run(self.journal.trim(through))
        if through > self.floor:
            self.floor, self.safe = through, len(self.blocks)

    @rule(block=block_bytes)
    def append_as_a_stranger(self, block: bytes) -> None:
        with pytest.raises(Deposed):
            self.runner.run(self.journal.append(len(self.blocks) + 1, [block]))

    @rule(block=block_bytes, room=st.integers(0, 100))
    def append_to_a_full_disk(self, block: bytes, room: int) -> None:
        self.disk.free_bytes = room
        try:
            self.runner.run(self.journal.append(len(self.blocks), [block]))
        except StorageFailed:
            pass
        else:
            self.blocks.append(block)
            self.safe = len(self.blocks)
        finally:
            self.disk.free_bytes = None

    @rule(block=block_bytes)
    def append_with_a_failing_write(self, block: bytes) -> None:
        self.disk.fail_writes()
        with pytest.raises(StorageFailed):
            self.runner.run(self.journal.append(len(self.blocks), [block]))
        self.disk.fail_writes(0)

    @rule(size=st.integers(0, 3_000), room=st.integers(0, 4_000))
    def reserve(self, size: int, room: int) -> None:
        self.disk.free_bytes = room
        try:
            self.runner.run(self.journal.reserve(size))
        except StorageFailed:
            pass
        else:
            self.disk.free_bytes = 0
            self.append(b"r" * size, sync=True)
        finally:
            self.disk.free_bytes = None

    @rule(block=block_bytes)
    def append_with_a_failing_sync(self, block: bytes) -> None:
        self.disk.fail_syncs()
        with pytest.raises(StorageFailed):
            self.runner.run(self.journal.append(len(self.blocks), [block]))
        self.disk.fail_syncs(0)
        self.blocks.append(block)
        self.lose_power()

    @rule()
    def lose_power(self) -> None:
        self.disk.power_cut()
        self.reopen(at_least=self.safe)

    @rule()
    def lose_power_twice(self) -> None:
        self.disk.power_cut()
        self.opened()
        self.disk.power_cut()
        self.reopen(at_least=self.safe)

    @rule()
    def end_the_process(self) -> None:
        self.disk.kill()
        self.reopen(at_least=len(self.blocks))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.journal.close())
        self.disk.power_cut()
        self.reopen(at_least=len(self.blocks))

    def reopen(self, *, at_least: int) -> None:
        self.journal = self.opened()
        tail = self.journal.info().tail
        assert at_least <= tail <= len(self.blocks)
        del self.blocks[tail:]
        self.safe = tail

    @invariant()
    def holds_what_was_written(self) -> None:
        if not hasattr(self, "journal"):
            return
        assert self.journal.info().floor == self.floor
        assert not self.journal.damage
        blocks = self.runner.run(self.journal.read(self.floor + 1, 10**9))
        assert all(isinstance(block, Block) for block in blocks)
        assert [block.data for block in blocks if isinstance(block, Block)] == self.blocks[
            self.floor :
        ]

    def teardown(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()


TestJournalLife = pytest.mark.spec("S1")(JournalLife.TestCase)
TestJournalLife.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
