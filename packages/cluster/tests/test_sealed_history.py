"""What a cluster has stored, read without its engine: as the newest snapshot says, never more than
that, never what has expired, and without a hole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_cluster.sealed_history import HistoryAccess, SealedHistory
from penstock_cluster.storage.history_blobs import HistoryBlobs
from penstock_cluster.storage.shared_blobs import CachedBlobs
from penstock_core.access.rights import Principal
from penstock_core.api.channels import Locate, PurgeChannel
from penstock_core.api.publishing import PublishEvents
from penstock_core.api.reading import BrowseEvents
from penstock_core.api.subscriptions import Attach, Subscribe
from penstock_core.api.transactions import BeginTransaction, CommitTransaction
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import NameDoesNotExist, NoQuorum, PenstockError
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs, inline
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.bootstrap import rules
from penstock_server.runtime.access.access import AccessRules
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.access.audit import Audit
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.tokens import TokenRules, Tokens
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal, MemoryPages
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import SimLoop, pass_time, simulated

KEPT = Definition(type="persistent", storage=Storage(events_per_spindle=2))


class Cluster:
    """The engine, and the disk of the node that owns the realm."""

    def __init__(self) -> None:
        self.servers = EngineServers()
        self.disk = MemoryBlobs()
        self.epoch = 0

    @asynccontextmanager
    async def owner(self) -> AsyncIterator[RunningRealm]:
        self.epoch += 1
        engine = MemoryEngine(self.servers)
        blobs = CachedBlobs(await engine.blobs(0), self.disk, 1 << 20, offload=inline)
        journal = await engine.journal(0, self.epoch)
        async with living(journal, blobs, sealing=EAGER, orderly=False, epoch=self.epoch) as realm:
            yield realm

    @asynccontextmanager
    async def history(self, shared: Blobs | None = None) -> AsyncIterator[SealedHistory]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.read = HistoryBlobs(self.disk, shared, offload=inline)
        history = await SealedHistory.open(
            MemoryJournal(),
            self.read,
            MemoryPages(),
            rules(),
            loop,
            inline,
            identity="i",
            name="realm",
            limits=Limits(),
        )
        running = loop.create_task(history.run())
        try:
            yield history
        finally:
            await history.close()
            running.cancel()
            await asyncio.wait([running])


async def filled(realm: RunningRealm, name: str, times: int, definition: Definition) -> ChannelId:
    """A store with so many files of two events each."""
    channel = (await realm.create_channel(name, definition)).channel
    for number in range(times):
        await publish(realm, channel, body([b"%d" % number] * 2))
        await sealed(realm, name)
    return channel


def expected_payloads(times: int, begin: int = 0) -> dict[int, bytes]:
    return {2 * n + i: b"%d" % n for n in range(begin, times) for i in range(2)}


@pytest.mark.spec("N10")
@simulated
async def test_history_is_what_the_newest_snapshot_says_and_nothing_newer() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        orders = await filled(realm, "orders", 3, definition=KEPT)
        await realm.snapshot()
        before_us = realm.clock.now_us()
        await pass_time(30)
        await publish(realm, orders, body([b"newer"]))

        async with cluster.history() as history:
            assert await events(history.realm, orders) == expected_payloads(3)
            assert history.as_of_us == pytest.approx(before_us, abs=1_000_000)
            assert history.realm.name == "realm, sealed history as of 2023-11-14T22:13:20Z"
            assert history.missing == {}

        assert len(await events(realm, orders)) == 7, "the realm knows nothing of it"


@pytest.mark.spec("N10", "T1")
@simulated
async def test_what_expires_meanwhile_is_not_shown_and_goes_nowhere() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        dead = (await realm.create_channel("dead", KEPT)).channel
        short = Definition(
            type="persistent",
            ttl=60_000,
            dead_event_store="dead",
            storage=Storage(events_per_spindle=2),
        )
        orders = await filled(realm, "orders", 2, definition=short)
        await realm.snapshot()
    files = [info.name for info in await cluster.disk.list()]

    async with cluster.history() as history:
        assert await events(history.realm, orders) == expected_payloads(2)
        await pass_time(90)
        assert await events(history.realm, orders) == {}
        assert await events(history.realm, dead) == {}, "its ids are the realm's to give"
    assert [info.name for info in await cluster.disk.list()] == files


@pytest.mark.spec("N10")
@simulated
async def test_a_store_begins_behind_a_file_that_cannot_be_read_from_here() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        orders = await filled(realm, "orders", 4, definition=KEPT)
        await realm.snapshot()
    names = [info.name for info in await cluster.disk.list("segments/")]
    await cluster.disk.delete(names[1])

    async with cluster.history() as history:
        assert await events(history.realm, orders) == expected_payloads(4, begin=2)
        assert history.missing == {"orders": 4}
    shared = await MemoryEngine(cluster.servers).blobs(0)
    async with cluster.history(shared) as history:
        assert await events(history.realm, orders) == expected_payloads(4)


@pytest.mark.spec("N10")
@simulated
async def test_a_file_with_other_bytes_is_read_elsewhere_or_ends_what_is_shown() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        orders = await filled(realm, "orders", 2, definition=KEPT)
        await realm.snapshot()
    (name, *_) = [info.name for info in await cluster.disk.list("segments/")]
    size = len(await cluster.disk.get(name))
    await cluster.disk.delete(name)
    await cluster.disk.put(name, [bytes(size)])

    shared = await MemoryEngine(cluster.servers).blobs(0)
    async with cluster.history(shared) as history:
        assert await events(history.realm, orders) == expected_payloads(2)
    async with cluster.history() as history:
        failures: list[PenstockError] = []
        cluster.read.on_failure = failures.append
        await events(history.realm, orders)
        assert [type(failure) for failure in failures] == [NameDoesNotExist]


@pytest.mark.spec("N10")
@simulated
async def test_without_a_snapshot_there_is_no_history() -> None:
    with pytest.raises(NameDoesNotExist, match="no snapshot"):
        async with Cluster().history():
            pass


@pytest.mark.spec("N10")
@simulated
async def test_a_node_keeps_the_two_newest_snapshots_that_it_has_written() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        orders = await filled(realm, "orders", 1, definition=KEPT)
        for _ in range(3):
            await publish(realm, orders, body([b"x"]))
            await realm.snapshot()
        kept = [info.name for info in await cluster.disk.list("snapshots/")]

    assert kept == [info.name for info in await cluster.servers.blobs(0).list("snapshots/")]
    assert len(kept) == 2


@pytest.mark.spec("N10", "A3")
@simulated
async def test_nothing_is_changed_or_taken_whoever_asks() -> None:
    cluster = Cluster()
    async with cluster.owner() as realm:
        orders = await filled(realm, "orders", 1, definition=KEPT)
        await realm.snapshot()

    async with cluster.history() as history:
        realm = history.realm
        realm.access = reading_only(realm)
        caller = Caller(realm, Principal("me", "here", trusted=True))

        caller.check(BrowseEvents(orders, FromEarliest(), 10))
        caller.check(Locate(orders, 0, 2))
        caller.check(Subscribe(orders, 1, FromEarliest(), credit=10, browse=True))
        for request in (
            PublishEvents(orders, "", 0, schema=0, sizes=()),
            Subscribe(orders, 1, FromEarliest(), credit=10),
            Attach(orders, 1, "billing"),
            PurgeChannel(orders, None, None),
            BeginTransaction("t", ()),
            CommitTransaction("t", ()),
        ):
            with pytest.raises(NoQuorum, match="has to wait"):
                caller.check(request)
        with pytest.raises(NoQuorum):
            await realm.create_channel("more", KEPT)
        assert not realm.access.allows(caller.principal, "channel.publish", "orders")


def reading_only(realm: RunningRealm) -> HistoryAccess:
    clock = realm.clock
    tokens = Tokens(TokenRules(), lambda _: b"", clock, offload=inline)
    accounts = Accounts(None, clock, inline)
    return HistoryAccess(
        accounts,
        tokens,
        Audit(clock),
        logins=Logins(clock),
        offload=inline,
        rules=AccessRules(),
        clock=clock,
    )
