"""Stores that feed each other in every possible way, on a disk that fails at random moments."""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta
from random import Random

import pytest

from packages.server.tests.runtime.lives import ENDS, Lives, Worker, clock_now, datas, named
from penstock_core.vocabulary.errors import CapacityReached, StorageFailed
from penstock_server.runtime.realm import Limits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_testing.loop import pass_time, simulated
from tests.spindles import spindles

BUSY = SealingLimits(
    segment_bytes_max=300,
    interval_s=0.02,
    retry_s=0.02,
    journal_bytes_max=4_000,
    snapshot_tail_bytes_max=500,
)
KINDS = ("persistent", "mixed", "paged")


class Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lives = Lives(seed, sealing=BUSY, limits=Limits(sweep_interval_s=0.1))
        self.promised: set[str] = set()
        self.steps = 0

    async def begin(self) -> None:
        """``a`` leads to ``dead`` and on to ``z``, and is copied to ``c``; so does queue ``q``."""
        draw, create = self.random.choice, self.lives.create
        for name, ttl, capacity, dead in [
            ("z", 0, 0, ""),
            ("dead", draw((0, 400)), 0, "z"),
            ("a", draw((0, 200)), draw((0, 5, 20)), "dead"),
            ("c", 0, 0, ""),
        ]:
            rows, kind = draw((0, 3, 10)), draw(KINDS)
            await create(
                name,
                kind,
                ttl=ttl,
                capacity=capacity,
                dead_event_store=dead,
                storage=spindles(kind, rows),
            )
        await create("q", draw(KINDS), kind="queue", dead_event_store="dead", max_deliveries=2)
        await self.lives.realm.joins.create("a", "c", "", archive=False)
        if draw((True, False)):
            await self.lives.durable("a", "team")

    async def one_life(self) -> None:
        if self.random.random() < 0.5:
            self.lives.disk.fail_syncs_after(self.random.randint(0, 60))
        reader = await self.lives.attach("q", window=3)
        for _ in range(25):
            await self.step(reader)
            await pass_time(self.random.random() * 0.1)

    async def step(self, reader: Worker) -> None:
        self.steps += 1
        words = [f"{self.steps}-{n}" for n in range(self.random.randint(1, 8))]
        what = self.random.random()
        if what < 0.4:
            await self.lives.put("a", *named(*words))
            self.promised.update(words)
        elif what < 0.5:
            jobs = [f"{word}q" for word in words]
            await self.lives.transact(f"{self.steps}", {"a": named(*words), "q": named(*jobs)})
            self.promised.update(words, jobs)
        elif what < 0.6:
            due = clock_now() + timedelta(milliseconds=self.random.randint(1, 300))
            await self.lives.put("a", *named(*words, deliver_at=due))
            self.promised.update(words)
        elif what < 0.7:
            with contextlib.suppress(CapacityReached):
                await self.lives.realm.redrive("dead", "", "")
        elif what < 0.8 and reader.outlet.ids:
            await reader.settle(*reader.outlet.ids[-2:], back=True)

    async def check(self) -> None:
        """Everything promised is somewhere, once, and has left its copy."""
        await pass_time(2)
        await self.lives.conserved()
        stored_counts: Counter[str] = Counter()
        for name in ("a", "dead", "z"):
            stored_counts.update(datas(await self.lives.stored(name)))
        reader = await self.lives.attach("q", window=10_000)
        stored_counts.update(datas(await reader.has((await self.lives.info("q")).events)))
        assert not [word for word, count in stored_counts.items() if count > 1]
        assert self.promised <= stored_counts.keys()
        copied = set(datas(await self.lives.stored("c")))
        assert {word for word in stored_counts if not word.endswith("q")} <= copied
        for name in ("a", "dead", "z", "c", "q"):
            assert (await self.lives.info(name)).storage.quarantined == ()


@pytest.mark.slow
@pytest.mark.spec("T7", "T8", "T10", "L1", "X1", "X4", "Q3", "C1g")
@pytest.mark.parametrize("seed", range(8))
@simulated
async def test_each_event_is_in_one_store_whatever_happens(seed: int) -> None:
    story = Story(seed)
    async with story.lives.life("closed"):
        await story.begin()
    for _ in range(4):
        with contextlib.suppress(StorageFailed):
            async with story.lives.life(story.random.choice(ENDS)):
                await story.one_life()
        story.lives.disk.fail_syncs(0)
    async with story.lives.life("closed"):
        await story.check()
