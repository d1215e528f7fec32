"""Nodes of a cluster do what people order: the realm moves in order, and by force."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from packages.cluster.tests.machines import (
    LEASE_S,
    NodeMachine,
    Valve,
    end,
    owner_and_others,
    until,
)
from packages.cluster.tests.ordering import orders
from penstock import aio
from penstock_cluster.nodes.cluster_view import observe
from penstock_core.vocabulary.errors import IllegalState, NameDoesNotExist
from penstock_testing.engine import EngineServers, MemoryInspector
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


async def condition(servers: EngineServers, node: str) -> str:
    seen = await observe(MemoryInspector(servers), the_loop(), LEASE_S)
    assert seen is not None
    return {member.node: member.condition for member in seen.members}.get(node, "not shown")


def urls(*machines: NodeMachine) -> str:
    return "penstock://somebody@" + ",".join(f"127.0.0.1:{machine.native}" for machine in machines)


@simulated
async def test_a_drained_owner_hands_over_and_takes_nothing_until_it_is_admitted() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    session = await aio.connect(urls(owner, standby))
    channel = await session.channels.create("orders", type="persistent")
    await channel.publish(b"a")

    done = await orders(servers).drain(owner.name)

    assert (done.owner, done.epoch) == (standby.name, 2)
    assert done.took_s < 1.0
    assert await channel.publish(b"b") == 1
    assert await condition(servers, owner.name) == "drained"
    assert await orders(servers).drain(owner.name) == done.__class__(standby.name, 2, 0.0)
    with pytest.raises(IllegalState, match=f"{owner.name} is drained: it cannot own the realm"):
        await orders(servers).move(owner.name)
    standby.kill()
    await pass_time(5 * LEASE_S)
    assert not owner.owns

    await orders(servers).admit(owner.name)

    await until(lambda: owner.serves)
    assert [event.data async for event in channel.browse()] == [b"a", b"b"]
    await session.close()
    await end(owner)


@pytest.mark.slow
@simulated
async def test_the_realm_moves_to_every_node_by_its_name() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers, 3)
    session = await aio.connect(urls(owner, *others))
    channel = await session.channels.create("orders", type="persistent")

    for number, to in enumerate([*others, owner, *others]):
        done = await orders(servers).move(to.name)

        assert (done.owner, done.epoch) == (to.name, number + 2)
        assert await channel.publish(b"%d" % number) == number
        await until(partial(getattr, to, "serves"))
    assert (await orders(servers).move(others[-1].name)).took_s == 0.0, "it is there already"
    await session.close()
    await end(owner, *others)


@pytest.mark.slow
@simulated
async def test_a_handover_pauses_acknowledgements_for_less_than_half_a_second() -> None:
    servers = EngineServers()
    owner, others = await owner_and_others(servers, 3)
    session = await aio.connect(urls(owner, *others))
    channel = await session.channels.create("orders", type="persistent")
    times: list[float] = []

    async def publish() -> None:
        while True:
            await channel.publish(b"x")
            times.append(the_loop().time())
            await pass_time(0.01)

    publishing = the_loop().create_task(publish())
    for to in (*others, owner) * 3:
        await orders(servers).move(to.name)
        await pass_time(1.0)
    publishing.cancel()

    pauses = [after - before for before, after in pairwise(times)]
    assert sum(pause > 0.1 for pause in pauses) <= 9, "one of each move"
    assert max(pauses) < 0.5
    await session.close()
    await end(owner, *others)


@simulated
async def test_by_force_the_realm_is_taken_from_an_owner_that_does_not_close() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    stuck = the_loop().create_future()

    async def never() -> None:
        await stuck

    assert owner.realm is not None
    vars(owner.realm)["prepare_to_close"] = never
    moving = the_loop().create_task(orders(servers).move(standby.name))
    await pass_time(20.0)
    assert owner.owns, "it was asked to, and does not come to it"
    moving.cancel()

    done = await orders(servers).move(standby.name, by_force=True)

    assert (done.owner, done.epoch) == (standby.name, 2)
    assert done.took_s < LEASE_S
    await until(lambda: standby.serves)
    assert not owner.owns
    await end(owner, standby)


@simulated
async def test_a_frozen_owner_is_followed_by_force_before_its_lease_is_over() -> None:
    servers, valve = EngineServers(), Valve()
    owner, (standby,) = await owner_and_others(servers)
    silent = NodeMachine(servers, 9, valve)
    await until(lambda: silent.reported_owners[-1:] == [owner.name])
    await orders(servers).move(silent.name)
    await until(lambda: silent.serves)
    valve.open.clear()
    began_s = the_loop().time()

    done = await orders(servers).move(standby.name, by_force=True)

    assert done.owner == standby.name
    assert the_loop().time() - began_s < LEASE_S
    valve.open.set()
    await until(lambda: standby.serves)
    await end(owner, standby, silent)


@simulated
async def test_a_node_that_is_gone_is_removed_and_one_that_comes_back_is_there_again() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    with pytest.raises(IllegalState, match=r"n\d is running \(stands by\): stop it first"):
        await orders(servers).remove(standby.name)
    standby.kill()
    assert await condition(servers, standby.name) == "gone"

    await orders(servers).remove(standby.name)

    assert await condition(servers, standby.name) == "not shown"
    with pytest.raises(
        NameDoesNotExist, match=f"no node '{standby.name}'; its nodes are: {owner.name}"
    ):
        await orders(servers).remove(standby.name)
    again = NodeMachine(servers, int(standby.name[1:]))
    await until(lambda: again.reported_owners[-1:] == [owner.name])
    assert await condition(servers, standby.name) == "stands by"
    assert (await orders(servers).move(standby.name)).owner == standby.name
    await end(owner, again)


@simulated
async def test_a_node_that_was_removed_while_it_was_cut_off_is_there_again() -> None:
    servers, valve = EngineServers(), Valve()
    owner, others = await owner_and_others(servers)
    silent = NodeMachine(servers, 9, valve)
    await until(lambda: silent.reported_owners[-1:] == [owner.name])
    valve.open.clear()
    await pass_time(2 * LEASE_S)
    assert await condition(servers, silent.name) == "silent"
    await orders(servers).remove(silent.name)

    valve.open.set()
    await pass_time(LEASE_S)

    assert await condition(servers, silent.name) == "stands by"
    assert not silent.task.done()
    await end(owner, silent, *others)


@simulated
async def test_what_cannot_be_done_is_refused_with_the_reason() -> None:
    servers = EngineServers()
    with pytest.raises(NameDoesNotExist, match="the engine has no cluster of this name"):
        await orders(servers).move("n1")
    owner, (standby,) = await owner_and_others(servers)

    with pytest.raises(
        NameDoesNotExist, match="this cluster has no node 'n7'; its nodes are: n1, n2"
    ):
        await orders(servers).drain("n7")
    await orders(servers).drain(standby.name)
    with pytest.raises(IllegalState, match="no other node could own the realm: start one before"):
        await orders(servers).drain(owner.name)
    await orders(servers).admit(standby.name)
    owner.kill()
    with pytest.raises(IllegalState, match=f"{owner.name} is gone: start it first"):
        await orders(servers).drain(owner.name)
    await until(lambda: standby.serves)
    await end(standby)


@simulated
async def test_a_node_that_leaves_does_not_wait_for_an_engine_that_says_nothing() -> None:
    servers, valve = EngineServers(), Valve()
    owner = NodeMachine(servers, 1, valve)
    await until(lambda: owner.serves)
    valve.open.clear()
    began_s = the_loop().time()

    await owner.node.leave()
    await until(owner.task.done)

    assert the_loop().time() - began_s < 5.0
    owner.task.result()
    owner.aside.cancel()
    standby = NodeMachine(servers, 2)
    await until(lambda: standby.serves)
    await end(standby)


@simulated
async def test_a_node_that_stands_by_leaves_without_an_engine_too() -> None:
    servers, valve = EngineServers(), Valve()
    owner, _ = await owner_and_others(servers)
    waiting = NodeMachine(servers, 9, valve)
    await until(lambda: waiting.reported_owners[-1:] == [owner.name])
    valve.open.clear()
    await pass_time(1.0)

    await waiting.node.leave()
    took_s = await until(waiting.task.done)

    assert took_s < 5.0
    waiting.task.result()
    waiting.aside.cancel()
    await end(owner)


@simulated
async def test_a_node_with_other_settings_takes_nothing_and_the_cluster_tells_which_differ() -> (
    None
):
    servers = EngineServers()
    owner = NodeMachine(servers, 1, settings={"access.mode": "mandatory"})
    await until(lambda: owner.serves)
    standby = NodeMachine(servers, 2, settings={"access.mode": "off"})
    await until(lambda: standby.reported_owners == [owner.name])

    for by_force in (False, True):
        with pytest.raises(IllegalState, match=r"access.mode is 'off' at n2, and was 'mandatory'"):
            await orders(servers).move(standby.name, by_force=by_force)
    with pytest.raises(IllegalState, match="no other node could own the realm"):
        await orders(servers).drain(owner.name)

    seen = await observe(MemoryInspector(servers), the_loop(), LEASE_S)
    assert seen is not None
    assert ["access.mode" in member.unfit for member in seen.members] == [False, True]
    owner.kill()
    await pass_time(30)
    assert not standby.serves
    await end(standby)
