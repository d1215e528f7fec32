"""Cluster-wide channels: whatever their type, the next owner has all their events (SEM N3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from packages.server.tests.runtime.lives import Outlet, body_from_events, datas, named
from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_core.api.durables import DurableInfo
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.identities import ChannelId, SubscriptionId
from penstock_core.vocabulary.start_positions import (
    AnyStart,
    FromEarliest,
    FromId,
    FromLatest,
)
from penstock_server.runtime.operations.tar_handlers import TarOfExport
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import SimLoop, pass_time, simulated

ORDERS = ChannelId(1)
LATE = SealingLimits(interval_s=1e6)
"""Limits with which events are sealed only on request."""
TYPES = ("mixed", "off_heap", "paged", "persistent", "reliable")


class Shard:
    """One shard on an engine, and the owners it has had."""

    def __init__(self, sealing: SealingLimits = LATE) -> None:
        self.servers = EngineServers()
        self.sealing = sealing
        self.epoch = 0

    @asynccontextmanager
    async def owner(
        self, limits: Limits | None = None, *, orderly: bool = False
    ) -> AsyncIterator[RunningRealm]:
        self.epoch += 1
        engine = MemoryEngine(self.servers)
        journal, blobs = await engine.journal(0, self.epoch), await engine.blobs(0)
        async with living(
            journal,
            blobs,
            sealing=self.sealing,
            orderly=orderly,
            epoch=self.epoch,
            limits=limits,
        ) as realm:
            yield realm


async def durable(realm: RunningRealm, name: str, **attributes: Any) -> DurableInfo:
    persistent, durable_attributes = (
        attributes.pop("persistent", None),
        DurableAttributes(**attributes),
    )
    return await realm.subscriptions.create_durable(
        ORDERS,
        name,
        "shared",
        start=FromEarliest(),
        selector="",
        persistent=persistent,
        attributes=durable_attributes,
    )


@pytest.mark.spec("C5")
@pytest.mark.parametrize("sealing", [LATE, EAGER], ids=["in the journal", "in files"])
@pytest.mark.parametrize("type_", TYPES)
@simulated
async def test_the_next_owner_has_all_events_of_a_cluster_wide_channel(
    type_: str, sealing: SealingLimits
) -> None:
    shard = Shard(sealing)
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type=type_))
        await publish(realm, ORDERS, body([b"a", b"b"]))
        await publish(realm, ORDERS, body_from_events(named("c", persistent=False)))
        if sealing is EAGER:
            await sealed(realm, "orders")
        expected = {0: b"a", 1: b"b", 2: b"c"}
        assert await events(realm, ORDERS) == expected
    for ends in (True, False):
        async with shard.owner(orderly=ends) as realm:
            assert realm.recovered.damage == []
            assert await events(realm, ORDERS) == expected
            span = await publish(realm, ORDERS, body([b"next"]))
            assert span.first == len(expected), "no id was reserved, none is left out"
            expected[span.first] = b"next"


@pytest.mark.parametrize("type_", ["reliable", "off_heap", "mixed"])
@simulated
async def test_a_channel_that_is_not_cluster_wide_forgets_with_its_owner_as_with_a_restart(
    type_: str,
) -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type=type_, cluster_wide=False))
        await publish(realm, ORDERS, body_from_events(named("gone", persistent=False)))
    async with shard.owner() as realm:
        assert await events(realm, ORDERS) == {}
        span = await publish(realm, ORDERS, body_from_events(named("new", persistent=False)))
        assert span.first >= 1, "its id is not given again"


@simulated
async def test_a_cluster_wide_channel_takes_more_than_memory_holds() -> None:
    few = Limits(memory=MemoryLimits(heap_bytes_max=1_000, off_heap_bytes_max=1_000))
    shard = Shard()
    async with shard.owner(few) as realm:
        await realm.create_channel("orders", Definition(type="reliable"))
        for _ in range(5):
            await publish(realm, ORDERS, body([b"x" * 900]))

        assert len(await events(realm, ORDERS)) == 5
        info = await realm.describe("1")
        assert info.memory_bytes == 0, "they do not live in memory"


@simulated
async def test_what_waits_for_its_time_outlives_the_owner_on_every_cluster_wide_type() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        due = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=loop.now_us(), seconds=60)
        await realm.create_channel("orders", Definition(type="reliable"))
        await publish(realm, ORDERS, body_from_events(named("later", deliver_at=due)))
        assert await events(realm, ORDERS) == {}
    async with shard.owner() as realm:
        await pass_time(70)
        assert await events(realm, ORDERS) == {0: b"later"}


@simulated
async def test_a_durable_is_cluster_wide_with_its_channel() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type="reliable"))
        made = await durable(realm, "billing")
        brief = await durable(realm, "brief", persistent=False)
        assert (made.cluster_wide, made.persistent) == (True, True)
        assert (brief.cluster_wide, brief.persistent) == (False, False)
        await publish(realm, ORDERS, body([b"a", b"b"]))
    async with shard.owner() as realm:
        (kept,) = await realm.subscriptions.durables(ORDERS)
        assert (kept.name, kept.cluster_wide, kept.outstanding) == ("billing", True, 2)


@simulated
async def test_a_durable_of_a_channel_that_is_not_cluster_wide_is_not_either() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type="persistent", cluster_wide=False))

        assert not (await durable(realm, "billing")).cluster_wide
        with pytest.raises(InvalidArgument, match="is not cluster-wide"):
            await durable(realm, "everywhere", cluster_wide=True)


async def moved(source: RunningRealm, destination: RunningRealm) -> None:
    """Export the channel ``orders`` of one realm into another."""
    begun = await source.exports.begin("me", "orders", "channel")
    manifest = await TarOfExport(source.exports, "me", begun).manifest("channel")
    import_begun = await destination.imports.begin("me", "orders", manifest.encoded())
    for number in (begun.files, *range(begun.files)):
        part = await source.exports.read("me", begun.export, number, offset=0)
        await destination.imports.put(
            "me", import_begun, number, offset=0, content=memoryview(part.content)
        )
    await destination.imports.commit("me", import_begun)
    await source.exports.end("me", begun.export)


@pytest.mark.parametrize(("type_", "is_wide"), [("persistent", True), ("reliable", False)])
@simulated
async def test_what_was_in_memory_only_where_it_was_exported_is_so_in_a_cluster(
    type_: str, is_wide: bool
) -> None:
    shard = Shard()
    async with (
        living(MemoryJournal(), MemoryBlobs()) as alone,
        shard.owner() as realm,
    ):
        await alone.create_channel("orders", Definition(type=type_))
        await publish(alone, ORDERS, body([b"a", b"b"]))
        await moved(alone, realm)

        info = await realm.describe_channel("orders")
        assert info.definition.cluster_wide is is_wide
        assert await events(realm, ORDERS) == {0: b"a", 1: b"b"}
    async with shard.owner() as realm:
        assert realm.recovered.damage == []
        assert await events(realm, ORDERS) == ({0: b"a", 1: b"b"} if is_wide else {})


@pytest.mark.spec("C5")
@simulated
async def test_what_is_moved_is_cluster_wide_where_it_arrives_in_a_cluster_and_nowhere_else() -> (
    None
):
    shard = Shard()
    async with living(MemoryJournal(), MemoryBlobs()) as alone, shard.owner() as realm:
        await alone.create_channel("orders", Definition(type="persistent"))
        assert not (await durable(alone, "billing")).cluster_wide
        await moved(alone, realm)
        (durable_info,) = await realm.subscriptions.durables(ORDERS)
        await alone.delete_channel("orders")
        await moved(realm, alone)
        back = await alone.describe_channel("orders")
        (returned,) = await alone.subscriptions.durables(ChannelId(2))

    assert durable_info.cluster_wide
    assert (back.definition, returned.cluster_wide) == (Definition(type="persistent"), False)


@pytest.mark.parametrize("type_", TYPES)
@simulated
async def test_what_a_cluster_has_kept_is_there_in_a_realm_that_is_alone(type_: str) -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs) as alone, Shard().owner() as realm:
        await realm.create_channel("orders", Definition(type=type_))
        await publish(realm, ORDERS, body([b"a", b"b"]))
        await moved(realm, alone)

        assert await events(alone, ORDERS) == {0: b"a", 1: b"b"}
        await publish(alone, ORDERS, body_from_events(named("c", persistent=True)))
        assert await events(alone, ORDERS) == {0: b"a", 1: b"b", 2: b"c"}


async def listening(
    realm: RunningRealm, start: AnyStart, selector: str = ""
) -> tuple[SubscriptionId, Outlet]:
    """A listener of the JMS engine, at a place that is known to the next connection."""
    outlet = Outlet("s", selector)
    opened = await realm.subscriptions.subscribe(
        ORDERS, start, outlet, credit=100, place="here", confirms=True
    )
    return opened.number, outlet


@pytest.mark.spec("J5", "N7")
@pytest.mark.parametrize("lost", [False, True], ids=["there", "lost before"])
@pytest.mark.parametrize("selector", ["", "tag = 'a'"])
@pytest.mark.parametrize("type_", ["persistent", "reliable"])
@simulated
async def test_what_a_listener_misses_while_owners_change_comes_when_it_is_back(
    type_: str, selector: str, lost: bool
) -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type=type_, engine="jms"))
        number, outlet = await listening(realm, FromLatest(), selector)
        await publish(realm, ORDERS, body_from_events(named("0", tag="a")))
        await outlet.has(1)
        if lost:
            realm.subscriptions.lose(number)
    async with shard.owner(orderly=True) as realm:
        await realm.snapshot()
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body_from_events(named("1", tag="a")))
        await publish(realm, ORDERS, body_from_events(named("2", tag="b")))
        wanted = ["1"] if selector else ["1", "2"]
        assert sorted((await events(realm, ORDERS)).values()) == [text.encode() for text in wanted]

        number, outlet = await listening(realm, FromId(1), selector)
        assert datas(await outlet.has(len(wanted))) == wanted
        realm.subscriptions.credit(number, 0, 1 << 40)
        await pass_time(3)
        assert await events(realm, ORDERS) == {}


@pytest.mark.spec("J5", "N7")
@simulated
async def test_a_listener_that_does_not_come_back_is_waited_for_once() -> None:
    shard = Shard()
    async with shard.owner() as realm:
        await realm.create_channel("orders", Definition(type="persistent", engine="jms"))
        await listening(realm, FromLatest())
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body([b"a"]))
        assert await events(realm, ORDERS) != {}
        await pass_time(70)
        assert await events(realm, ORDERS) == {}
    async with shard.owner() as realm:
        await publish(realm, ORDERS, body([b"b"]))
        assert await events(realm, ORDERS) == {}
