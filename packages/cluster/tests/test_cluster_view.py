"""A cluster is looked at from outside: who is there is found out, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packages.cluster.tests.machines import LEASE_S, end, owner_and_others, until
from penstock_cluster.nodes.cluster_view import ClusterExamined, examine, observe, state_of
from penstock_cluster.owning.member_view import ClusterSeen
from penstock_core.vocabulary.ports import EngineCheck, EngineServer, VersionedRecord
from penstock_testing.engine import EngineServers, MemoryInspector
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

ANSWER_S = 10.0


class CountedInspector(MemoryInspector):
    """Counts the questions."""

    queries = 0

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        self.queries += 1
        return await super().records(prefix)


async def inspect_cluster(servers: EngineServers) -> ClusterSeen:
    seen = await observe(MemoryInspector(servers), the_loop(), LEASE_S)
    assert seen is not None
    return seen


async def examined(servers: EngineServers) -> ClusterExamined:
    return await examine(MemoryInspector(servers), the_loop(), LEASE_S)


def conditions(seen: ClusterSeen) -> dict[str, str]:
    return {member.node: member.condition for member in seen.members}


@simulated
async def test_nodes_that_renew_are_there_and_it_takes_no_longer_than_their_renewals() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers, 3)
    began_s = the_loop().time()

    seen = await inspect_cluster(servers)

    assert the_loop().time() - began_s <= LEASE_S / 3 + 1
    assert (seen.owner, seen.epoch, seen.format) == (owner.name, 1, 1)
    assert seen.lease_left_s is not None
    assert 0 < seen.lease_left_s <= LEASE_S - 1
    assert conditions(seen) == {
        owner.name: "owner",
        **{standby.name: "stands by" for standby in others},
    }
    assert {member.serves["native"] for member in seen.members} == {
        f"penstock://127.0.0.1:{machine.native}" for machine in (owner, *others)
    }
    await end(owner, *others)


@simulated
async def test_a_look_changes_nothing_and_nobody_becomes_a_member() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers)
    await end(owner, *others)
    before = {key: await servers.records.get(key) for key in await servers.records.list("")}
    frames = servers.log(0).snapshot()

    await inspect_cluster(servers)
    await examined(servers)
    await state_of(MemoryInspector(servers), the_loop(), LEASE_S)

    assert before == {key: await servers.records.get(key) for key in await servers.records.list("")}
    assert servers.log(0).snapshot() == frames


@simulated
async def test_a_killed_owner_is_gone_and_the_next_one_is_seen() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers, 3)
    owner.kill()

    seen = await inspect_cluster(servers)
    assert conditions(seen)[owner.name] == "gone"

    await until(lambda: any(standby.serves for standby in others))
    seen = await inspect_cluster(servers)
    assert (seen.epoch, seen.owner) == (
        2,
        next(standby.name for standby in others if standby.serves),
    )
    assert conditions(seen)[owner.name] == "gone"
    await end(*others)


@simulated
async def test_an_engine_without_a_cluster_has_nothing_to_look_at() -> None:
    inspector = CountedInspector(EngineServers())

    assert await observe(inspector, the_loop(), LEASE_S) is None

    assert inspector.queries == 3
    state = await state_of(inspector, the_loop(), LEASE_S)
    assert (state.seen, state.health.kind, len(state.servers)) == (None, "memory", 3)


@simulated
async def test_ports_that_nobody_reaches_are_told() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    examined_cluster = await examined(servers)

    reached = {port.url: port.failure for port in examined_cluster.ports}
    assert reached[f"penstock://127.0.0.1:{owner.native}"] == ""
    assert reached[f"penstock://127.0.0.1:{standby.native}"] == ""
    assert reached[f"http://127.0.0.1:{standby.http}"] == ""
    assert reached[f"amqp://127.0.0.1:{owner.amqp}"], "these machines serve no AMQP when they own"
    assert reached[f"mqtt://127.0.0.1:{owner.mqtt}"], "nor MQTT"
    assert len(examined_cluster.ports) == 8
    await end(owner, standby)


@simulated
async def test_an_engine_without_a_majority_is_told_and_not_waited_for() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers)
    servers.running = 1

    examined_cluster = await examined(servers)

    assert examined_cluster.seen is None
    assert examined_cluster.failure == "the engine in memory has no majority of its servers"
    assert [check.is_ok for check in examined_cluster.checks] == [False]
    await end(owner, *others)


class DeadInspector(MemoryInspector):
    """Each of its questions waits for servers that are down."""

    async def records(self, prefix: str = "") -> Mapping[str, VersionedRecord]:
        await pass_time(ANSWER_S)
        return await super().records(prefix)

    async def checks(self, shard: int) -> Sequence[EngineCheck]:
        await pass_time(ANSWER_S)
        return await super().checks(shard)

    async def servers(self) -> Sequence[EngineServer]:
        await pass_time(ANSWER_S)
        return await super().servers()


@simulated
async def test_servers_that_are_down_are_waited_for_once() -> None:
    servers = EngineServers()
    servers.running = 1
    began_s = the_loop().time()

    examined_cluster = await examine(DeadInspector(servers), the_loop(), LEASE_S)

    assert examined_cluster.failure == "the engine in memory has no majority of its servers"
    assert the_loop().time() - began_s < 1.5 * ANSWER_S
