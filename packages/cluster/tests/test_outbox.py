"""Joins from the local channels of a node to stores of the whole cluster: through an outbox, each
event once, whoever is killed meanwhile (SEM N9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from packages.cluster.tests.machines import NodeMachine, Valve, end, owner_and_others, until
from packages.server.tests.runtime.lives import End, Lives, body_from_events, datas, named
from penstock import aio
from penstock_cluster.nodes.outbox import OutboxSender
from penstock_cluster.nodes.owner_link import OwnerClient
from penstock_cluster.nodes.roles import owning_node
from penstock_core.access.rights import Principal
from penstock_core.api.joins import CopyIn, JoinInfo
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import (
    AccessDenied,
    CapacityReached,
    InvalidArgument,
    InvalidEvent,
    NameAlreadyBound,
    NameDoesNotExist,
    NoQuorum,
)
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import execute
from penstock_server.runtime.writer.copies_in import Copies
from penstock_server.runtime.writer.outboxes import Outboxes, Outgoing
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

SECRET = b"s" * 32
MIB = 1 << 20


class Local:
    """The local channels of one node of a cluster, whose realm has several lives."""

    def __init__(self, *machines: NodeMachine, seed: int = 1) -> None:
        """``machines`` are those of the cluster; the first of them tells who owns its realm."""
        self.lives = Lives(seed, local_to="n9")
        self.machines = list(machines)
        self.outboxes: type[Outboxes] = Outboxes

    @asynccontextmanager
    async def life(self, ending: End = "power cut") -> AsyncIterator[None]:
        async with self.lives.life(ending):
            realm = self.lives.realm
            realm.joins.outboxes = self.outboxes(realm.shard, realm.dispatch, realm.blobs)
            door = OwnerClient(
                self._owner, SECRET, "n9", clock=the_loop(), answer_s=8.0, has_quorum=lambda: True
            )
            sending = the_loop().create_task(OutboxSender(realm, door).run())
            try:
                yield
            finally:
                sending.cancel()
                await asyncio.wait([sending])
                assert sending.cancelled() or sending.exception() is None
                door.abort()

    def _owner(self) -> Any:
        return owning_node(self.machines[0].node)

    async def kill_the_owner(self) -> None:
        """Kill the node that serves the realm of the cluster."""
        await until(lambda: any(machine.serves for machine in self.machines))
        (owner,) = [machine for machine in self.machines if machine.serves]
        self.machines.remove(owner)
        owner.kill()

    async def join(self, source: str, destination: str, selector: str = "", **more: Any) -> None:
        await self.lives.realm.joins.create(
            source, destination, selector, **{"archive": False, **more}
        )

    async def info(self) -> JoinInfo:
        (join,) = await self.lives.realm.joins.list()
        return join

    async def empty(self) -> None:
        """Wait until nothing is on its way."""
        outboxes = self.lives.realm.joins.outboxes
        await until(lambda: not any(outbox.waiting for outbox in outboxes.now()))


@asynccontextmanager
async def out_of_reach(
    outboxes: type[Outboxes] = Outboxes,
) -> AsyncIterator[tuple[Valve, aio.Session, Local]]:
    """A cluster with a channel that is the destination of joins, whose engine answers while the
    valve is open; a session there, and a node beside it."""
    valve = Valve()
    owner, others = await owner_and_others(EngineServers(), call=valve, secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(owner, *others)
        local.outboxes = outboxes
        yield valve, wide, local
    await end(owner, *others)


async def stored(session: aio.Session, name: str) -> list[Any]:
    channel = await session.channels.get(name)
    return [event async for event in channel.browse()]


@pytest.mark.spec("N9", "L1", "L4", "E3", "F5")
@simulated
async def test_what_a_selector_matches_is_copied_into_the_cluster_with_its_origin() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(*others)
        async with local.life():
            await local.lives.create("readings")
            await local.lives.put("readings", *named("early", properties={"n": 9}))
            await local.join("readings", "orders", "n > 1")
            await local.lives.put(
                "readings",
                *named("a", properties={"n": 2}, tag="t", ttl=70_000),
                *named("b", properties={"n": 1}),
                publisher="ann@one",
            )
            await local.lives.put("readings", *named("c", properties={"n": 3}), publisher="bob@two")
            await local.empty()

            events = await stored(wide, "orders")
            assert [event.data for event in events] == [b"a", b"c"]
            assert [event.headers["publisher"] for event in events] == ["ann", "bob"]
            assert (events[0].tag, events[0].ttl, events[0].properties) == ("t", 70_000, {"n": 2})
            assert (events[0].origin.store, events[0].origin.event_id) == ("readings", 1)
            info = await local.info()
            assert (info.source, info.destination, info.copied) == ("readings", "orders", 2)
            assert (info.leads_out, info.waiting, info.waits_for) == (True, 0, "")
    await end(owner, *others)


@pytest.mark.spec("N9", "N3")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@simulated
async def test_each_event_comes_once_and_in_order_whoever_is_killed(seed: int) -> None:
    random, servers = Random(seed), EngineServers()
    owner, others = await owner_and_others(servers, 3, secret=SECRET)
    published = 0
    async with aio.connect(
        ",".join([owner.url, *(address.url[20:] for address in others)])
    ) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(owner, *others, seed=seed)
        async with local.life():
            await local.lives.create("readings")
            await local.join("readings", "orders")
        for life in range(5):
            async with local.life(random.choice(["power cut", "killed", "closed", "snapshot"])):
                for _ in range(random.randrange(1, 40)):
                    batch = [str(published + n) for n in range(random.randrange(1, 4))]
                    await local.lives.put("readings", *named(*batch))
                    published += len(batch)
                    await pass_time(random.choice([0, 0, 0.001, 0.01]))
                if life in (1, 3):
                    await local.kill_the_owner()
                await pass_time(random.choice([0, 0.002, 0.05]))
        async with local.life():
            await local.empty()
            assert (await local.info()).waits_for == ""

        numbers = [int(event.data) for event in await stored(wide, "orders")]
        assert numbers == list(range(published))
    await end(*local.machines)


@pytest.mark.spec("N9", "N2")
@simulated
async def test_without_a_quorum_events_wait_and_leave_by_themselves_when_it_is_back() -> None:
    async with out_of_reach() as (valve, wide, local):
        async with local.life():
            await local.lives.create("readings")
            await local.join("readings", "orders")
            valve.open.clear()
            await pass_time(20)
            await local.lives.put("readings", *named("a", "b"))
            await pass_time(5)

            info = await local.info()
            assert (info.waiting, info.waiting_ms >= 4_900) == (2, True)
            assert "no majority of its servers" in info.waits_for or "has not answered" in (
                info.waits_for
            )
            with pytest.raises(NoQuorum):
                await local.join("readings", "others")
            valve.open.set()
            await local.empty()
        assert [event.data for event in await stored(wide, "orders")] == [b"a", b"b"]


@pytest.mark.spec("N9")
@simulated
async def test_a_join_into_the_cluster_is_refused_where_it_cannot_be() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        for name in ("orders", "prices"):
            await wide.channels.create(name, type="persistent")
        local = Local(*others)
        async with local.life():
            await local.lives.create("readings")
            await local.lives.create("work", kind="queue")
            await local.join("readings", "orders")

            with pytest.raises(NameDoesNotExist, match="there is no channel or queue nothing"):
                await local.join("readings", "nothing")
            with pytest.raises(NameAlreadyBound, match="from readings to orders already exists"):
                await local.join("readings", "orders")
            with pytest.raises(InvalidArgument, match="work is a queue; the source of a join"):
                await local.join("work", "orders")
            with pytest.raises(InvalidArgument, match="an archive join must be a queue"):
                await local.join("readings", "prices", archive=True)
            assert owner.realm is not None
            owner.realm.directory.local_names = {"readings": "channel of node n9"}
            with pytest.raises(InvalidArgument, match="make a join from it there"):
                await wide.joins.create("orders", "readings")
    await end(owner, *others)


@pytest.mark.spec("N9", "L1", "L2", "L3")
@simulated
async def test_two_routes_bring_an_event_once_and_an_archive_keeps_both() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        archive = await wide.queues.create("archive", type="persistent")
        local = Local(*others)
        async with local.life():
            for name in ("a", "b"):
                await local.lives.create(name)
            await local.join("a", "b")
            for name in ("a", "b"):
                await local.join(name, "orders")
                await local.join(name, "archive", archive=True)
            await local.lives.put("a", *named("x"))
            await local.empty()

            assert datas(await local.lives.stored("b")) == ["x"]
        events = await stored(wide, "orders")
        assert [event.data for event in events] == [b"x"]
        assert (await archive.info()).events == 2
    await end(owner, *others)


@pytest.mark.spec("N9")
@pytest.mark.parametrize("what", ["join", "channel"])
@simulated
async def test_what_was_copied_before_the_end_of_a_join_or_its_channel_still_leaves(
    what: str,
) -> None:
    async with out_of_reach() as (valve, wide, local):
        async with local.life():
            await local.lives.create("readings")
            await local.join("readings", "orders")
            valve.open.clear()
            await pass_time(20)
            await local.lives.put("readings", *named("a", "b"))
            if what == "join":
                await local.lives.realm.joins.delete("readings", "orders")
                await local.lives.put("readings", *named("c"))
                with pytest.raises(NameDoesNotExist, match="deleted; events that it copied"):
                    await local.lives.realm.joins.delete("readings", "orders")
            else:
                await local.lives.realm.delete_channel("readings")
        async with local.life("snapshot"):
            info = await local.info()
            assert (info.source, info.ending, info.waiting) == ("readings", True, 2)
        valve.open.set()
        async with local.life():
            await until(lambda: not local.lives.realm.joins.outboxes.now())
            assert await local.lives.realm.joins.list() == ()
            assert "orders" not in local.lives.realm.directory.names("channel")
        assert [event.data for event in await stored(wide, "orders")] == [b"a", b"b"]


@pytest.mark.spec("N9")
@simulated
async def test_a_request_is_bounded_in_bytes_where_the_oldest_events_are_the_largest() -> None:
    async with out_of_reach() as (valve, wide, local), local.life():
        await local.lives.create("readings")
        await local.join("readings", "orders")
        valve.open.clear()
        await local.lives.put("readings", *[Event(bytes(MIB))] * 20)
        for _ in range(300):  # the newest events say nothing about the size of the oldest
            await local.lives.put("readings", *named("x"))
        outboxes = local.lives.realm.joins.outboxes
        (outbox,) = outboxes.now()
        outgoing = await outboxes.next(outbox.channel_id)

        assert outgoing is not None
        assert 1 <= sum(map(len, outgoing.bodies)) // MIB <= 8
        valve.open.set()
        await local.empty()
        assert len(await stored(wide, "orders")) == 320


@pytest.mark.spec("N9")
@simulated
async def test_a_destination_that_is_gone_is_told_and_waited_for() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(*others)
        async with local.life():
            await local.lives.create("readings")
            await local.join("readings", "orders")
            await wide.channels.delete("orders")
            await local.lives.put("readings", *named("a"))
            await pass_time(1)
            assert "there is no channel or queue orders" in (await local.info()).waits_for

            await wide.channels.create("orders", type="persistent")
            await local.empty()
            assert [event.data for event in await stored(wide, "orders")] == [b"a"]

            await wide.channels.delete("orders")
            await local.lives.put("readings", *named("b"))
            await local.lives.realm.joins.delete("readings", "orders")
            await until(lambda: not local.lives.realm.joins.outboxes.now())
    await end(owner, *others)


@pytest.mark.spec("N9", "T4")
@simulated
async def test_an_outbox_is_bounded_and_what_it_would_get_is_refused() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(*others)
        local.lives = Lives(1, local_to="n9", outbox_bytes_max=1_000)
        async with local.life():
            for name in ("a", "b", "c"):
                await local.lives.create(name)
            await local.join("a", "b")
            await local.join("b", "orders")
            await wide.channels.delete("orders")
            await local.lives.put("b", *named("x" * 2_000))

            for name in ("a", "b"):
                with pytest.raises(CapacityReached, match="the join from b to orders is full: 2,"):
                    await local.lives.put(name, *named("y"))
            with pytest.raises(CapacityReached):
                await local.lives.transact("t", {"a": named("y")})
            await local.lives.put("c", *named("y"))
            await wide.channels.create("orders", type="persistent")
            await local.empty()
            await local.lives.put("a", *named("z"))
            await local.empty()
        assert [len(event.data) for event in await stored(wide, "orders")] == [2_000, 1]
    await end(owner, *others)


@pytest.mark.spec("N9", "A2", "A3")
@simulated
async def test_a_join_copies_with_the_rights_of_its_owner_which_the_cluster_knows() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET, asks_who=True)
    assert owner.realm is not None
    realm, ann = owner.realm, Principal("ann", "127.0.0.1")
    accounts = realm.access.accounts
    await realm.create_channel("orders", Definition(type="persistent"))
    await accounts.grant("realm", "", "ann@*", rights=["access"])
    local = Local(*others)
    async with local.life():
        await local.lives.create("readings")
        joins = local.lives.realm.joins

        with pytest.raises(AccessDenied, match=r"ann@127\.0\.0\.1 lacks"):
            await joins.create("readings", "orders", "", archive=False, by=ann)
        await accounts.grant("channel", "orders", "ann@*", rights=["publish"])
        await joins.create("readings", "orders", "", archive=False, by=ann)
        await local.lives.put("readings", *named("a"))
        await local.empty()
        await accounts.revoke("channel", "orders", "ann@*")
        await local.lives.put("readings", *named("b"))
        await pass_time(1)
        assert "lacks" in (await local.info()).waits_for
        await accounts.grant("channel", "orders", "ann@*", rights=["publish"])
        await local.empty()
    assert (await realm.describe_channel("orders")).events == 2
    await end(owner, *others)


@pytest.mark.spec("N9")
@simulated
async def test_a_node_that_was_restored_does_not_take_new_events_for_those_it_brought() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    async with aio.connect(owner.url) as wide:
        await wide.channels.create("orders", type="persistent")
        local = Local(*others)
        async with local.life("closed"):
            await local.lives.create("readings")
            await local.join("readings", "orders")
        before = deepcopy(local.lives.disk)
        async with local.life("closed"):
            await local.lives.put("readings", *named("a", "b", "c"))
            await local.empty()
        local.lives.disk = before
        async with local.life():
            await local.lives.put("readings", *named("d"))
            await pass_time(1)
            assert "restored from a backup" in (await local.info()).waits_for
            await local.lives.realm.joins.delete("readings", "orders")
            await until(lambda: not local.lives.realm.joins.outboxes.now())
            await local.join("readings", "orders")
            await local.lives.put("readings", *named("e"))
            await local.empty()
        assert [event.data for event in await stored(wide, "orders")] == [b"a", b"b", b"c", b"e"]
    await end(owner, *others)


def copies(first: int, count: int) -> Copies:
    return Copies(first, "ann@one", body_from_events(named(*map(str, range(count)))))


@pytest.mark.spec("N9")
@pytest.mark.parametrize(
    ("last_id", "remaining"), [(-1, (5, 3)), (4, (5, 3)), (5, (6, 2)), (7, None), (9, None)]
)
def test_what_comes_again_is_told_by_its_ids(
    last_id: int, remaining: tuple[int, int] | None
) -> None:
    new = copies(5, 3).above(last_id)

    assert (None if new is None else (new.first, new.body.rows)) == remaining


@pytest.mark.spec("N9")
@simulated
async def test_only_nodes_bring_copies() -> None:
    owner, others = await owner_and_others(EngineServers(), secret=SECRET)
    assert owner.realm is not None
    await owner.realm.create_channel("orders", Definition(type="persistent"))
    anybody = Caller(owner.realm, Principal("ann", "here", trusted=True))

    with pytest.raises(AccessDenied, match="only nodes of the cluster may send copies"):
        await execute(anybody, CopyIn("orders", archive=False, producer="txn:out:1"))
    node = Caller(owner.realm, Principal("realm", "n9", trusted=True), is_node=True)
    with pytest.raises(InvalidEvent, match="have 0 bytes, but the body has 1"):
        await execute(node, CopyIn("orders", archive=False, producer="txn:out:1"), memoryview(b"x"))
    await end(owner, *others)


class FailingOutboxes(Outboxes):
    """Outboxes of which those from a channel ``bad`` cannot be read."""

    is_failing = True

    async def next(self, channel_id: int) -> Outgoing | None:
        bad_ids = [outbox.channel_id for outbox in self.now() if outbox.source == "bad"]
        if self.is_failing and channel_id in bad_ids:
            raise ValueError("a bad fact")
        return await super().next(channel_id)


@simulated
async def test_an_outbox_that_cannot_be_read_keeps_no_other_from_being_sent() -> None:
    async with out_of_reach(FailingOutboxes) as (_, wide, local), local.life():
        for name in ("bad", "good"):
            await local.lives.create(name)
            await local.join(name, "orders")
        outboxes = local.lives.realm.joins.outboxes
        assert isinstance(outboxes, FailingOutboxes)
        await local.lives.put("bad", *named("a"))
        await local.lives.put("good", *named("b"))
        await pass_time(5.0)

        assert [event.data for event in await stored(wide, "orders")] == [b"b"]
        assert [incident.task for incident in local.lives.realm.incidents.open()] == ["outboxes"]
        outboxes.is_failing = False
        await local.empty()
        assert [event.data for event in await stored(wide, "orders")] == [b"b", b"a"]
        assert not local.lives.realm.incidents.open()
