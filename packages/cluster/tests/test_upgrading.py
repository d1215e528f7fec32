"""Nodes of two versions at one cluster: both serve until the upgrade is finished, and the older one
claims nothing afterwards."""

from __future__ import annotations

import asyncio

import pytest

from packages.cluster.tests.machines import LEASE_S, Valve, until
from packages.cluster.tests.nodes import Machine, end
from penstock_cluster.nodes.node import ShardLease
from penstock_cluster.nodes.upgrading import UpgradeState, finish_upgrade, upgrade_state
from penstock_cluster.owning.register_records import FORMAT_KEY
from penstock_core.messages.publishing import PublishingPauseSet
from penstock_core.vocabulary.errors import IllegalState, NewerFormat
from penstock_server.runtime.store import records
from penstock_server.runtime.store.records import FactRecord, decode_block, encode_block
from penstock_testing.engine import EngineServers, MemoryInspector
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


async def state_of(servers: EngineServers) -> UpgradeState:
    return await upgrade_state(MemoryInspector(servers), the_loop(), LEASE_S, cluster="penstock")


async def finish(servers: EngineServers) -> int:
    return await finish_upgrade(servers.records, await state_of(servers))


async def written(servers: EngineServers) -> bytes:
    record = await servers.records.get(FORMAT_KEY)
    assert record is not None
    return record.value


@simulated
async def test_an_upgrade_is_finished_once_every_node_has_the_newer_version() -> None:
    servers = EngineServers()
    older = Machine(servers, 1)
    await until(lambda: older.owns)
    newer = Machine(servers, 2, format=2)
    await pass_time(5)
    state = await state_of(servers)
    assert (state.format, state.format_all_know, state.is_finished) == (1, 1, True)

    with pytest.raises(IllegalState, match=r"n1 \(, owner\) knows format 1, and others know 2"):
        await finish(servers)
    assert await written(servers) == b"1"

    await older.node.leave()
    await until(lambda: newer.owns)
    assert newer.node.claims.claims[0].format == 1, "the older one may come back"
    state = await state_of(servers)
    assert (state.format, state.format_all_know, state.is_finished) == (1, 2, False)
    assert await finish(servers) == 2
    await until(lambda: newer.node.claims.writes(0) == 2)
    assert newer.owns, "it has not given it up for that"
    assert newer.node.claims.claims[0].epoch == 2

    again = Machine(servers, 3)
    await asyncio.wait([again.task])
    with pytest.raises(NewerFormat, match="start node n3 with the version that the others have"):
        again.task.result()
    assert await finish(servers) == 2, "nothing is left to do"
    await end(newer)


@simulated
async def test_an_owner_knows_which_nodes_hold_an_upgrade_back() -> None:
    servers = EngineServers()
    newer = Machine(servers, 1, format=2)
    await until(lambda: newer.owns)
    await servers.records.cas(FORMAT_KEY, 1, b"1")
    older = Machine(servers, 2)
    await pass_time(5)
    lease = ShardLease(newer.node, 0, epoch=1)
    assert lease.nodes_behind(2) == ("n2 (version unknown, format 1)",)

    older.kill()
    await pass_time(3 * LEASE_S)
    assert lease.nodes_behind(2) == ("n2 (version unknown, format 1)",), "it may be frozen"
    assert lease.nodes_behind(1) == ()
    await end(newer)


@simulated
async def test_a_frozen_node_of_the_older_version_counts_and_a_killed_one_does_not() -> None:
    servers = EngineServers()
    valve = Valve()
    older = Machine(servers, 1, call=valve)
    await until(lambda: older.owns)
    newer = Machine(servers, 2, format=2)
    await pass_time(5)
    valve.open.clear()

    with pytest.raises(IllegalState, match=r"n1 \(, silent\) knows format 1"):
        await finish(servers)

    older.kill()
    await until(lambda: newer.owns)
    assert await finish(servers) == 2
    await end(newer)


@simulated
async def test_an_older_node_that_stood_by_when_the_format_was_raised_ends() -> None:
    """It was started in the moment between the look and the end of the upgrade."""
    servers = EngineServers()
    newer = Machine(servers, 1, format=2)
    await until(lambda: newer.owns)
    await servers.records.cas(FORMAT_KEY, 1, b"1")
    older = Machine(servers, 2)
    await pass_time(5)
    assert not older.task.done()

    await servers.records.cas(FORMAT_KEY, 2, b"2")
    await asyncio.wait([older.task])

    with pytest.RaisesGroup(NewerFormat, allow_unwrapped=True):
        older.task.result()
    assert newer.owns
    await end(newer)


@simulated
async def test_there_is_nothing_to_finish_without_a_cluster_or_a_node() -> None:
    servers = EngineServers()
    with pytest.raises(IllegalState, match="the engine has no cluster 'penstock'"):
        await finish(servers)

    machine = Machine(servers, 1)
    await until(lambda: machine.owns)
    await machine.node.leave()
    with pytest.raises(IllegalState, match="no node is running"):
        await finish(servers)


def test_a_fact_of_a_newer_format_is_written_where_all_nodes_know_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fact = FactRecord(0, PublishingPauseSet(paused=True))
    monkeypatch.setattr(records, "FORMAT", 2)
    monkeypatch.setattr(records, "SINCE", {PublishingPauseSet: 2})

    header, _ = decode_block(memoryview(b"".join(encode_block(5, [fact], [], format=2))))
    assert header.records == (fact,)
    with pytest.raises(AssertionError, match="nodes that know format 1 do not know"):
        encode_block(5, [fact], [], format=1)
