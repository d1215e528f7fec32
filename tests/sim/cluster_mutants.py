"""Clusters with deliberate mistakes, which the oracles of the simulation notice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from msgspec import structs

from penstock_cluster.nodes.node import ShardLease
from penstock_core.vocabulary.errors import Conflict, Deposed
from penstock_server.runtime import realm
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.clock import SystemClock
from penstock_testing.engine import EngineJournal, LogFrame, NoAnswer, ShardLog
from tests.sim.cluster import ALONE, cluster_life_of
from tests.sim.mutants import Noticed, first_noticed

Spoil = Callable[[pytest.MonkeyPatch], None]


def lease_alone(patch: pytest.MonkeyPatch) -> None:
    """Append after the tail without a comparison: only leases keep owners apart."""

    def append(log: ShardLog, _: int, frame: LogFrame) -> None:
        log.frames.append(frame)

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        await journal.requests.until_answered(lambda: journal.log.append(0, frame))
        journal.last = journal.log.last

    patch.setattr(ShardLog, "append", append)
    patch.setattr(EngineJournal, "publish", publish)


def retry_at_the_tail(patch: pytest.MonkeyPatch) -> None:
    """Repeat an append without an answer at the tail of that moment."""
    original = EngineJournal.publish

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        if frame.kind != "data":
            await original(journal, frame)
            return
        while True:
            tail = journal.last
            try:
                await journal.requests.once(partial(journal.log.append, tail, frame))
            except NoAnswer:
                journal.last = await journal.requests.until_answered(lambda: journal.log.last)
                continue
            except Conflict as error:
                raise Deposed(str(error)) from error
            journal.last = tail + 1
            return

    patch.setattr(EngineJournal, "publish", publish)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Recover without a fence (R1): a new owner reads the log and begins."""
    patch.setattr(EngineJournal, "fence", EngineJournal.catch_up)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """Send deliveries and answers even if the lease has ended (R2)."""
    patch.setattr(ShardLease, "holds", lambda _: True)


def old_fences_new(patch: pytest.MonkeyPatch) -> None:
    """Let an owner that was frozen before its fence depose a newer one (R3)."""
    original = EngineJournal.catch_up

    async def catch_up(journal: EngineJournal) -> None:
        own_epoch, journal.epoch = journal.epoch, 1 << 40
        try:
            await original(journal)
        finally:
            journal.epoch = own_epoch

    patch.setattr(EngineJournal, "catch_up", catch_up)


def all_strays(patch: pytest.MonkeyPatch) -> None:
    """Remove every unknown file at a start, whatever its epoch (R4)."""
    patch.setattr(realm, "remove_strays", _strays)


async def _strays(recovered: Any, blobs: Any) -> None:
    known_names = {file.name for store in recovered.state.stores.values() for file in store.files}
    for info in await blobs.list("segments/"):
        if info.name not in known_names:
            await blobs.delete(info.name)


def talking(patch: pytest.MonkeyPatch) -> None:
    """Let a deposed owner answer its clients (R5)."""
    patch.setattr(RunningRealm, "cut", lambda _: None)


def torn_for_whole(patch: pytest.MonkeyPatch) -> None:
    """Take an unfinished append of an earlier owner for a whole block."""
    original = ShardLog.snapshot

    def snapshot(log: ShardLog) -> tuple[int, list[LogFrame]]:
        before, frames = original(log)
        for index, frame in enumerate(frames):
            is_continued = index + 1 < len(frames) and frames[index + 1].part == frame.part + 1
            if frame.kind == "data" and not is_continued:
                frames[index] = structs.replace(frame, parts=frame.part + 1)
        return before, frames

    patch.setattr(ShardLog, "snapshot", snapshot)


def floor_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Count the blocks of a reopened journal from 1, although earlier blocks were trimmed."""
    original = ShardLog.snapshot

    def snapshot(log: ShardLog) -> tuple[int, list[LogFrame]]:
        before, frames = original(log)
        block = 0
        for index, frame in enumerate(frames):
            is_data = frame.kind == "data"
            frames[index] = structs.replace(frame, block=block + is_data)
            block += is_data and frame.part + 1 == frame.parts
        return before, frames

    patch.setattr(ShardLog, "snapshot", snapshot)


def by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Measure leases with the wall clock, which people can set."""
    patch.setattr(SystemClock, "steady_us", lambda clock: clock.now_ns() // 1_000)


class ClusterMutant(NamedTuple):
    mistake: str
    """Description for the table in README.md."""
    spoil: Spoil
    theme: str = ""
    """The most frequent failure in the worlds that have to notice it."""
    first: int = 0
    """The first seed that notices it within a minute; two owners that take turns may run longer. A
    change elsewhere may move it to a later seed."""
    seeds: int = 10
    """Number of seeds to try, from ``first`` on."""


CLUSTER_MUTANTS: Final[dict[str, ClusterMutant]] = {
    "lease alone": ClusterMutant("a lease alone, no compare-and-set", lease_alone, first=7),
    "retry at the tail": ClusterMutant(
        "an append without an answer is repeated at the current tail",
        retry_at_the_tail,
        first=9,
    ),
    "no fence": ClusterMutant("a recovery without a fence", no_fence, "cut off", first=5),
    "no lease": ClusterMutant(
        "deliveries and answers without a lease", no_lease, "parted", first=9
    ),
    "old fences new": ClusterMutant(
        "an older epoch fences a newer one", old_fences_new, "starters"
    ),
    "all strays": ClusterMutant(
        "strays removed whatever their epoch", all_strays, "starters", first=13, seeds=20
    ),
    "talking": ClusterMutant("a deposed owner answers", talking, "cut off"),
    "floor forgotten": ClusterMutant(
        "the floor forgotten by a reopened journal", floor_forgotten, first=1
    ),
    "torn for whole": ClusterMutant("a torn block taken for whole", torn_for_whole),
    "wall clock": ClusterMutant("a lease by the wall clock", by_the_wall_clock, "clocks", first=2),
}
"""Mistakes that the design names, as far as one shard can make them. Three need several shards,
which do not exist yet: an outbox paid before it is stored, a part of a transaction sent twice, and
numbers counted from 1 in each shard. A cache that serves a file of the same name from another epoch
is noticed in the tests of caches (``packages/cluster/tests/storage/test_shared_blobs.py``): here
owners that write files of one span usually write the same bytes."""


def noticed_in_a_cluster(mutant: ClusterMutant, first: int = 0) -> Noticed | None:
    """Return the first seed from ``first`` on at which an oracle complains, or None."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.spoil(patch)
        seeds = range(first, first + mutant.seeds)
        return first_noticed(lambda seed: cluster_life_of(seed, mutant.theme, ALONE), seeds)


def cluster_row(mutant: ClusterMutant, seed: int | None) -> str:
    """Return a line of the table in README.md."""
    theme = mutant.theme or "any"
    return f"| {mutant.mistake} | {theme} | {'nobody' if seed is None else seed} |"
