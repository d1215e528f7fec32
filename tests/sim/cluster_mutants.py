"""Clusters with a mistake on purpose: the oracles of the simulation notice each of them."""

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
    """Appends go behind whatever is there: only leases keep owners apart."""

    def append(log: ShardLog, _: int, frame: LogFrame) -> None:
        log.frames.append(frame)

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        await journal.requests.until_answered(lambda: journal.log.append(0, frame))
        journal.last = journal.log.last

    patch.setattr(ShardLog, "append", append)
    patch.setattr(EngineJournal, "publish", publish)


def retry_at_the_tail(patch: pytest.MonkeyPatch) -> None:
    """An append without an answer is asked again behind what is there by then."""
    whole = EngineJournal.publish

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        if frame.kind != "data":
            await whole(journal, frame)
            return
        while True:
            at = journal.last
            try:
                await journal.requests.once(partial(journal.log.append, at, frame))
            except NoAnswer:
                journal.last = await journal.requests.until_answered(lambda: journal.log.last)
                continue
            except Conflict as error:
                raise Deposed(str(error)) from error
            journal.last = at + 1
            return

    patch.setattr(EngineJournal, "publish", publish)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A new owner reads what is there and begins (R1)."""
    patch.setattr(EngineJournal, "fence", EngineJournal.catch_up)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """Deliveries and answers leave whatever became of the lease (R2)."""
    patch.setattr(ShardLease, "holds", lambda _: True)


def old_fences_new(patch: pytest.MonkeyPatch) -> None:
    """An owner that was frozen before its fence deposes a newer one (R3)."""
    whole = EngineJournal.catch_up

    async def catch_up(journal: EngineJournal) -> None:
        own, journal.epoch = journal.epoch, 1 << 40
        try:
            await whole(journal)
        finally:
            journal.epoch = own

    patch.setattr(EngineJournal, "catch_up", catch_up)


def all_strays(patch: pytest.MonkeyPatch) -> None:
    """Whoever starts removes every file it does not know (R4)."""
    patch.setattr(realm, "remove_strays", _strays)


async def _strays(recovered: Any, blobs: Any) -> None:
    known = {file.name for store in recovered.state.stores.values() for file in store.files}
    for info in await blobs.list("segments/"):
        if info.name not in known:
            await blobs.delete(info.name)


def talking(patch: pytest.MonkeyPatch) -> None:
    """A deposed owner tells everybody that it is (R5)."""
    patch.setattr(RunningRealm, "cut", lambda _: None)


def torn_for_whole(patch: pytest.MonkeyPatch) -> None:
    """What an owner has begun to append and could not finish is taken for a block."""
    whole = ShardLog.snapshot

    def snapshot(log: ShardLog) -> tuple[int, list[LogFrame]]:
        before, frames = whole(log)
        for at, frame in enumerate(frames):
            goes_on = at + 1 < len(frames) and frames[at + 1].part == frame.part + 1
            if frame.kind == "data" and not goes_on:
                frames[at] = structs.replace(frame, parts=frame.part + 1)
        return before, frames

    patch.setattr(ShardLog, "snapshot", snapshot)


def floor_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A journal that is opened again counts its blocks from 1, whatever was trimmed before."""
    whole = ShardLog.snapshot

    def snapshot(log: ShardLog) -> tuple[int, list[LogFrame]]:
        before, frames = whole(log)
        block = 0
        for at, frame in enumerate(frames):
            is_data = frame.kind == "data"
            frames[at] = structs.replace(frame, block=block + is_data)
            block += is_data and frame.part + 1 == frame.parts
        return before, frames

    patch.setattr(ShardLog, "snapshot", snapshot)


def by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases are reckoned with a clock that people set."""
    patch.setattr(SystemClock, "steady_us", lambda clock: clock.now_ns() // 1_000)


class ClusterMutant(NamedTuple):
    mistake: str
    """What is wrong, for people."""
    spoil: Spoil
    theme: str = ""
    """What goes wrong most in the worlds that are to notice."""
    first: int = 0
    """The first seed that notices it without going round for a minute, as two owners that take
    turns may. Another change may let it be a later one."""
    seeds: int = 10
    """From which on so many are tried at most."""


CLUSTER_MUTANTS: Final[dict[str, ClusterMutant]] = {
    "lease alone": ClusterMutant("a lease alone, no compare-and-set", lease_alone, first=7),
    "retry at the tail": ClusterMutant(
        "a timeout asked again behind the tail that is there now",
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
"""The mistakes of which the design speaks, as far as one shard can make them. An outbox paid before
it is stored there, a part of a transaction sent twice, and numbers made from 1 in each shard are
mistakes between several shards, which there are not yet. That a cache serves a file of the same
name and other epoch is noticed where caches are tested
(``packages/cluster/tests/storage/test_shared_blobs.py``): here owners that write files of one span
mostly write the same bytes."""


def noticed_in_a_cluster(mutant: ClusterMutant, first: int = 0) -> Noticed | None:
    """The first seed from ``first`` on that an oracle complains of; None: none of them does."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.spoil(patch)
        seeds = range(first, first + mutant.seeds)
        return first_noticed(lambda seed: cluster_life_of(seed, mutant.theme, ALONE), seeds)


def cluster_row(mutant: ClusterMutant, seed: int | None) -> str:
    """A line of the table in README.md."""
    theme = mutant.theme or "any"
    return f"| {mutant.mistake} | {theme} | {'nobody' if seed is None else seed} |"
