"""A background task survives a failure for one channel, and continues with the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from packages.server.tests.runtime.living import body, events, living, publish
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.access.incidents import RETRY_FIRST_S
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.runtime.upkeep.history import STEP_US
from penstock_server.runtime.upkeep.regular_work import RegularWork
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

FILES = Definition(type="persistent", ttl=5_000, retain_consumed=True)
SINGLE = Definition(type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=0))
LIMITS = SealingLimits(
    segment_bytes_max=1,
    snapshot_tail_bytes_max=1 << 20,
    interval_s=0.1,
    maintenance=MaintenanceLimits(dead_share=0.0, dead_bytes=1, interval_s=0.1),
)


class BadFact(Exception):
    pass


class Bad:
    """An object in a channel that raises an error in every task that reads it."""

    def __getattr__(self, name: str) -> Any:
        raise BadFact(name)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Any:
        raise BadFact


def state(realm: RunningRealm, number: int) -> Any:
    return realm.directory.channels[number].state


def store(realm: RunningRealm, number: int) -> Any:
    return realm.shard.state.stores[ChannelId(number)]


def bad_tail(realm: RunningRealm) -> None:
    store(realm, 1).unsealed = Bad()


def bad_files(realm: RunningRealm) -> None:
    store(realm, 1).empty_files = lambda: iter(Bad())


def bad_age(realm: RunningRealm) -> None:
    state(realm, 1).ages = Bad()
    realm.shard.timers.touch([1], realm.clock.now_us())


def bad_number(realm: RunningRealm) -> None:
    state(realm, 1).counters.published = 1 << 70


def bad_measure(realm: RunningRealm) -> None:
    state(realm, 1).counters.published = None


def bad_files_to_maintain(realm: RunningRealm) -> None:
    store(realm, 3).recount = Bad().__iter__
    realm.shard.state.to_maintain.add(3)


async def sealed_elsewhere(realm: RunningRealm) -> None:
    while (await realm.describe_channel("good")).storage.tail_bytes:
        await pass_time(0.1)


async def expired_elsewhere(realm: RunningRealm) -> None:
    await pass_time(10.0)
    assert state(realm, 2).counters.expired


async def snapshots_again(realm: RunningRealm) -> None:
    state(realm, 1).counters.published = 1
    await pass_time(RETRY_FIRST_S)
    await realm.snapshot()


async def history_elsewhere(realm: RunningRealm) -> None:
    state(realm, 1).counters.published = 10
    assert sum(rate or 0 for rate in realm.history.read("good").published)


async def maintained_elsewhere(realm: RunningRealm) -> None:
    realm.shard.state.to_maintain.add(4)
    await pass_time(1.0)
    assert not store(realm, 4).dead_bytes


Work = Callable[[RunningRealm], Any]
TASKS: dict[str, tuple[Work, str, Work]] = {
    "sealing": (bad_tail, "bad", sealed_elsewhere),
    "dropping files": (bad_files, "bad", sealed_elsewhere),
    "snapshots": (bad_number, "bad", snapshots_again),
    "maintenance": (bad_files_to_maintain, "single", maintained_elsewhere),
    "expiry": (bad_age, "bad", expired_elsewhere),
    "history": (bad_measure, "bad", history_elsewhere),
}


async def filled(realm: RunningRealm) -> None:
    """Two channels with segment files and two with a single file each."""
    for name in ("bad", "good", "single", "other"):
        definition = FILES if name in ("bad", "good") else SINGLE
        number = (await realm.create_channel(name, definition)).channel
        await publish(realm, number, body([b"x"] * 10))


@pytest.mark.parametrize("task", TASKS)
@simulated
async def test_a_failure_for_one_channel_is_an_incident_and_the_task_serves_the_others(
    task: str,
) -> None:
    breaks, name, is_done_elsewhere = TASKS[task]
    journal, blobs = MemoryJournal(), MemoryBlobs()
    with capture_logs() as logged:
        async with living(journal, blobs, sealing=LIMITS) as realm:
            await filled(realm)
            breaks(realm)
            if task == "snapshots":
                await realm.sealer.snapshot_at_the_end(0)
            await pass_time(STEP_US / 1e6 + 1.0)

            incidents = [incident for incident in realm.incidents.open() if incident.task == task]
            assert [incident.channel for incident in incidents] == [name]
            lines = [line for line in logged if line["event"] == "task.failed"]
            assert [
                (line["incident"], line["channel"]) for line in lines if line["task"] == task
            ] == [(incidents[0].incident, name)], "it is logged once"
            await publish(realm, ChannelId(2), body([b"more"]))
            await is_done_elsewhere(realm)
    assert not [line for line in logged if line["event"] == "shard.broken"]
    async with living(journal, blobs) as realm:  # the realm was closed in order
        assert await events(realm, ChannelId(4))


@simulated
async def test_every_background_task_is_run_again_after_an_unforeseen_failure() -> None:
    begun: dict[str, int] = {}

    def failing_once(name: str) -> Callable[[], Any]:
        async def run() -> None:
            begun[name] = begun.get(name, 0) + 1
            if begun[name] == 1:
                raise BadFact(name)
            await asyncio.Event().wait()

        return run

    class FailingTasks(RunningRealm):
        def background_tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
            return {name: failing_once(name) for name in super().background_tasks()}

    async with living(MemoryJournal(), MemoryBlobs(), realm_class=FailingTasks) as realm:
        tasks = set(RunningRealm.background_tasks(realm))
        await pass_time(1.0)
        assert {incident.task for incident in realm.incidents.open()} == tasks
        await pass_time(RETRY_FIRST_S)
        assert begun == dict.fromkeys(tasks, 2)
        await pass_time(RETRY_FIRST_S)
        assert not realm.incidents.open()


@simulated
async def test_a_failing_step_of_the_regular_work_does_not_stop_the_others() -> None:
    rounds = 0

    def count() -> None:
        nonlocal rounds
        rounds += 1

    class FailingSteps(RunningRealm):
        def background_tasks(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
            full = _raiser(StorageFailed("the disk is full"))
            steps = {
                "subscriptions": Bad().__iter__,
                "stages": full,
                "exports": full,
                "last": count,
            }
            work = RegularWork(self.incidents, interval_s=1.0, steps=steps)
            return {**super().background_tasks(), "regular work": work.run}

    async with living(MemoryJournal(), MemoryBlobs(), realm_class=FailingSteps) as realm:
        await realm.create_channel("soon", Definition(ttl=1_000))
        await publish(realm, ChannelId(1), body([b"x"]))
        await pass_time(5.0)
        assert state(realm, 1).counters.expired == 1
        assert rounds >= 4


def _raiser(failure: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise failure

    return fail


@simulated
async def test_a_channel_that_cannot_be_sealed_does_not_hold_up_publishers_of_others() -> None:
    limits = replace(LIMITS, unsealable_bytes_max=1_000)
    async with living(MemoryJournal(), MemoryBlobs(), sealing=limits) as realm:
        await filled(realm)
        bad_tail(realm)
        await publish(realm, ChannelId(1), body([b"x" * 2_000]))
        await pass_time(1.0)

        with pytest.raises(StorageFailed, match=r"bad accepts no events: .*cannot be sealed"):
            await publish(realm, ChannelId(1), body([b"x"]))
        assert await publish(realm, ChannelId(2), body([b"x"])) == Span(10, 11)
        assert realm.sealer.unsealable_bytes > 2_000
        assert not realm.is_congested

        del store(realm, 1).unsealed
        await pass_time(2 * RETRY_FIRST_S)
        assert not realm.incidents.open()
        await publish(realm, ChannelId(1), body([b"x"]))


@simulated
async def test_the_incident_of_a_deleted_channel_is_over() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LIMITS) as realm:
        await filled(realm)
        bad_tail(realm)
        await publish(realm, ChannelId(1), body([b"x"]))
        await pass_time(1.0)
        assert realm.incidents.open()

        await realm.delete_channel("bad")

        assert not realm.incidents.open()
