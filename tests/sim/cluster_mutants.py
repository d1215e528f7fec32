"""Clusters with a mistake on purpose: the oracles of the simulation notice each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from msgspec import structs

from penstock.cluster.node import ClusterNode, ShardLease
from penstock.core.vocabulary.errors import Conflict, Deposed
from penstock.runtime import realm
from penstock.runtime.realm import RunningRealm
from penstock.testing.engine import EngineJournal, FrameKind, LogFrame, NoAnswer, ShardLog
from tests.sim.cluster import cluster_life_of
from tests.sim.mutants import Noticed, first_noticed

Spoil = Callable[[pytest.MonkeyPatch], None]


def lease_alone(patch: pytest.MonkeyPatch) -> None:
    """Appends go behind whatever is there: only leases keep owners apart."""

    def append(log: ShardLog, _: int, frame: LogFrame) -> None:
        log.frames.append(frame)

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        await journal._asking.patiently(lambda: journal._log.append(0, frame))
        journal._last = journal._log.last

    patch.setattr(ShardLog, "append", append)
    patch.setattr(EngineJournal, "_publish", publish)


def retry_at_the_tail(patch: pytest.MonkeyPatch) -> None:
    """An append without an answer is asked again behind what is there by then."""
    whole = EngineJournal._publish

    async def publish(journal: EngineJournal, frame: LogFrame) -> None:
        if frame.kind != "data":
            await whole(journal, frame)
            return
        while True:
            at = journal._last
            try:
                await journal._asking.once(partial(journal._log.append, at, frame))
            except NoAnswer:
                journal._last = await journal._asking.patiently(lambda: journal._log.last)
                continue
            except Conflict as error:
                raise Deposed(str(error)) from error
            journal._last = at + 1
            return

    patch.setattr(EngineJournal, "_publish", publish)


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A new owner reads what is there and begins (R1)."""
    patch.setattr(EngineJournal, "fence", EngineJournal._catch_up)


def no_lease(patch: pytest.MonkeyPatch) -> None:
    """Deliveries and answers leave whatever became of the lease (R2)."""
    patch.setattr(ShardLease, "holds", lambda _: True)


def old_fences_new(patch: pytest.MonkeyPatch) -> None:
    """An owner that was frozen before its fence deposes a newer one (R3)."""
    whole = EngineJournal._catch_up

    async def catch_up(journal: EngineJournal) -> None:
        own, journal._epoch = journal._epoch, 1 << 40
        try:
            await whole(journal)
        finally:
            journal._epoch = own

    patch.setattr(EngineJournal, "_catch_up", catch_up)


def all_strays(patch: pytest.MonkeyPatch) -> None:
    """Whoever starts removes every file it does not know (R4)."""
    patch.setattr(realm, "_remove_strays", _strays)


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
    whole = ShardLog.held

    def held(log: ShardLog) -> tuple[int, list[LogFrame]]:
        before, frames = whole(log)
        for at, frame in enumerate(frames):
            goes_on = at + 1 < len(frames) and frames[at + 1].part == frame.part + 1
            if frame.kind == "data" and not goes_on:
                frames[at] = structs.replace(frame, parts=frame.part + 1)
        return before, frames

    patch.setattr(ShardLog, "held", held)


def forgotten_floor(patch: pytest.MonkeyPatch) -> None:
    """A journal without blocks does not know any more how many there were."""
    whole = EngineJournal._frame

    def forget(journal: EngineJournal, kind: FrameKind, block: int, *more: Any) -> LogFrame:
        return whole(journal, kind, block if kind == "data" else 0, *more)

    patch.setattr(EngineJournal, "_frame", forget)


def wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Leases are told by a clock that people set."""
    whole = ClusterNode.__init__

    def begin(node: ClusterNode, *args: Any, **more: Any) -> None:
        whole(node, *args, **more)
        node._clock.steady_us = node._clock.now_us  # type: ignore[method-assign]

    patch.setattr(ClusterNode, "__init__", begin)


class ClusterMutant(NamedTuple):
    mistake: str
    """What is wrong, for people."""
    spoil: Spoil
    seeds: int
    """In how many lives it has to be noticed."""
    is_soon: bool = False
    """Whether it is noticed so quickly that every change can wait for it."""


CLUSTER_MUTANTS: Final[dict[str, ClusterMutant]] = {
    "lease alone": ClusterMutant("a lease alone, no compare-and-set", lease_alone, 5),
    "retry at the tail": ClusterMutant(
        "a timeout asked again behind the tail that is there now", retry_at_the_tail, 5
    ),
    "no fence": ClusterMutant("a recovery without a fence", no_fence, 5),
    "no lease": ClusterMutant("deliveries and answers without a lease", no_lease, 5),
    "old fences new": ClusterMutant("an older epoch fences a newer one", old_fences_new, 5),
    "all strays": ClusterMutant("strays removed whatever their epoch", all_strays, 5),
    "talking": ClusterMutant("a deposed owner answers", talking, 5),
    "torn for whole": ClusterMutant("a torn block taken for whole", torn_for_whole, 5),
    "forgotten floor": ClusterMutant("a floor forgotten by a reopened journal", forgotten_floor, 5),
    "wall clock": ClusterMutant("a lease by the wall clock", wall_clock, 5),
}


def noticed_in_a_cluster(mutant: ClusterMutant) -> Noticed | None:
    """The first seed an oracle complains of; None when none of its seeds does."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.spoil(patch)
        return first_noticed(cluster_life_of, mutant.seeds)
