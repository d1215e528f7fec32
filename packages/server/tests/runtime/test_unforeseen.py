"""An unexpected failure affects its request alone; it ends the realm only if facts are half
applied."""

from __future__ import annotations

import asyncio
from typing import Never

import pytest

from packages.server.tests.runtime.living import body, living, publish
from penstock_core.ids.ids import Span
from penstock_core.messages.retention import PurgeEvents as PurgeSpans
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import RealmStopping
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.group import Group
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated


class Unforeseen(Exception):
    pass


class FailingOnce(MemoryJournal):
    """Fails in an unforeseen way when room for a large group is reserved for the first time."""

    failures = 0

    async def reserve(self, size: int) -> None:
        if size > LARGE and not self.failures:
            self.failures += 1
            raise Unforeseen
        await super().reserve(size)


LARGE = 9 << 20
"""Bytes of an event. A group of two such events is cut."""


def fail(_: Group) -> Never:
    raise Unforeseen


async def opened(realm: RunningRealm) -> int:
    return (await realm.create_channel("orders", Definition(type="persistent"))).channel


@simulated
async def test_work_that_fails_before_a_fact_is_answered_and_the_rest_is_done() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = await opened(realm)
        one = asyncio.ensure_future(publish(realm, ChannelId(number), body([b"a"])))  # noqa: TID251
        with pytest.raises(Unforeseen):
            await realm.shard.act(fail)
        assert await one == Span(0, 1)
        assert await publish(realm, ChannelId(number), body([b"b"])) == Span(1, 2)


@simulated
async def test_earlier_acknowledgements_and_sweeps_stay_when_work_fails() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = (await realm.create_channel("orders", Definition(ttl=1))).channel
        await publish(realm, number, body([b"a"]))
        await pass_time(1)

        def sweeps_and_fails(group: Group) -> Never:
            group.settle()
            group.sweep(number)
            raise Unforeseen

        with pytest.raises(Unforeseen):
            await realm.shard.act(sweeps_and_fails)
        assert await publish(realm, number, body([b"b"])) == Span(1, 2)


@simulated
async def test_work_that_fails_after_a_fact_ends_the_realm_and_is_not_stored() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs, breaks=Unforeseen) as realm:
        number = await opened(realm)
        await publish(realm, ChannelId(number), body([b"a", b"b"]))

        def half(group: Group) -> Never:
            group.do(number, PurgeSpans((Span(0, 1),)))
            raise Unforeseen

        with pytest.raises(RealmStopping):
            await realm.shard.act(half)
        await realm.shard.ended.wait()

    async with living(journal, blobs) as realm:
        assert (await realm.describe_channel("orders", "channel")).events == 2


@simulated
async def test_a_group_that_was_cut_before_an_unforeseen_failure_is_decided_once() -> None:
    journal = FailingOnce()
    async with living(journal, MemoryBlobs()) as realm:
        number = await opened(realm)
        async with asyncio.TaskGroup() as tasks:
            publishes = [
                tasks.create_task(publish(realm, ChannelId(number), body([bytes([n]) * LARGE])))
                for n in range(3)
            ]

        assert [task.result() for task in publishes] == [Span(0, 1), Span(1, 2), Span(2, 3)]
        assert journal.failures == 1
        assert await publish(realm, ChannelId(number), body([b"next"])) == Span(3, 4)
