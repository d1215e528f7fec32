"""Nodes over one engine: they claim, fence, recover, serve, and hand over."""

from __future__ import annotations

import asyncio

import pytest

from packages.cluster.tests.machines import Valve, until
from packages.cluster.tests.nodes import URL, Machine, end, three
from penstock import aio
from penstock_cluster.owning.register_records import FORMAT_KEY
from penstock_core.vocabulary.errors import (
    Damaged,
    Deposed,
    IllegalState,
    NameDoesNotExist,
    NewerFormat,
)
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


def takeovers_by_reason(machine: Machine) -> dict[str, int]:
    """Return how often a process has taken over the realm, by reason."""
    return {why: count for why, count in machine.node.tenures.claims.items() if count}


@simulated
async def test_one_node_serves_and_the_others_stand_by() -> None:
    _, owner, others = await three()
    session = await aio.connect(URL)
    channel = await session.channels.create("orders", type="persistent")

    assert await channel.publish(b"a") == 0

    assert [standby.server.opened for standby in others] == [[], []]
    await session.close()
    await end(owner, *others)


@simulated
async def test_a_node_that_is_handed_a_shard_serves_what_was_acknowledged() -> None:
    _, owner, others = await three()
    session = await aio.connect(URL)
    channel = await session.channels.create("orders", type="persistent")
    await channel.publish(b"a")

    leaving = the_loop().create_task(owner.node.leave())
    took_s = await until(lambda: any(standby.owns for standby in others))

    assert took_s < 6.0, "nobody waits for a lease"
    (next_owner,) = [standby for standby in others if standby.owns]
    await until(lambda: takeovers_by_reason(next_owner) == {"released": 1})
    await leaving
    assert takeovers_by_reason(owner) == {"first": 1}
    assert owner.node.tenures.deposed == 0, "it has handed over"
    await asyncio.wait([owner.task])
    assert await channel.publish(b"b") == 1
    assert [event.data async for event in channel.browse()] == [b"a", b"b"]
    await session.close()
    await end(*others)


@pytest.mark.slow
@simulated
async def test_a_shard_moves_while_its_node_stays() -> None:
    _, owner, others = await three()

    owner.node.hand_over(0)
    await until(lambda: any(standby.owns for standby in others))
    await pass_time(30)

    assert not owner.owns
    assert not owner.task.done()
    await end(owner, *others)


@simulated
async def test_a_killed_owner_is_followed_before_its_lease_is_over() -> None:
    _, owner, others = await three()

    owner.kill()
    took_s = await until(lambda: any(standby.owns for standby in others))

    assert took_s < 6.0, "its address refuses connections"
    (next_owner,) = [standby for standby in others if standby.owns]
    await until(lambda: takeovers_by_reason(next_owner) == {"refused": 1})
    assert next_owner.node.tenures.deposed == 0
    await end(*others)


@simulated
async def test_an_owner_that_is_cut_off_says_nothing_and_ends_when_it_comes_back() -> None:
    servers, valve = EngineServers(), Valve()
    owner = Machine(servers, 1, call=valve)
    await until(lambda: owner.owns)
    second = Machine(servers, 2)
    session = await aio.connect(URL)
    await session.channels.create("orders", type="persistent")
    valve.open.clear()
    assert await session.channels.list() == ["orders"], "its lease holds still"

    silent_s = await until(lambda: not owner.owns)
    looking = the_loop().create_task(session.channels.list())
    took_s = silent_s + await until(lambda: second.owns)
    assert took_s >= 6.0, "it may be there still"
    await pass_time(5)
    assert not looking.done()
    valve.open.set()

    assert await looking == ["orders"], "the next owner says so"
    assert owner.node.claims.owned == {}
    assert takeovers_by_reason(second) == {"silent": 1}
    assert second.node.tenures.deposed == 0
    assert owner.node.tenures.deposed == 1
    await session.close()
    await end(owner, second)


@simulated
async def test_nothing_is_recovered_before_the_fence() -> None:
    servers = EngineServers()
    machine = Machine(servers, 1)
    seen: list[str] = []
    machine.server.before = lambda: seen.extend(frame.kind for frame in servers.log(0).frames)

    await until(lambda: bool(machine.server.opened))

    assert seen == ["epoch"]
    await end(machine)


@simulated
async def test_a_recovery_under_which_files_are_removed_begins_anew() -> None:
    machine = Machine(EngineServers(), 1)

    def fail_twice() -> None:
        if len(machine.server.opened) < 3:
            raise NameDoesNotExist("there is no blob snapshots/1.snap")

    machine.server.before = fail_twice
    await until(lambda: len(machine.server.opened) == 3)

    await pass_time(1)
    assert machine.owns
    await end(machine)


@simulated
async def test_a_node_that_cannot_recover_a_shard_lets_others_try() -> None:
    servers, owner, others = await three()

    def broken() -> None:
        raise Damaged("no whole copy is left")

    def broken_before_others() -> None:
        if not all(follower.server.opened for follower in others):
            broken()

    for standby in others:
        standby.server.before = broken
    owner.server.before = broken_before_others
    owner.node.hand_over(0)
    await until(lambda: all(follower.server.opened for follower in others))

    await until(lambda: owner.owns)
    assert servers.log(0).frames
    await end(owner, *others)


@simulated
async def test_a_process_does_not_join_while_another_lives_under_its_name() -> None:
    servers = EngineServers()
    first = Machine(servers, 1, "same")
    await until(lambda: first.owns)

    second = Machine(servers, 2, "same")
    async with asyncio.timeout(6.0):
        await asyncio.wait([second.task])

    with pytest.raises(BaseExceptionGroup) as raised:
        second.task.result()
    assert raised.group_contains(IllegalState, match=r"process at 127.0.0.1:9101 renews")
    assert first.owns
    await end(first)


@simulated
async def test_a_process_whose_name_was_taken_while_it_was_cut_off_ends() -> None:
    servers, valve = EngineServers(), Valve()
    first = Machine(servers, 1, "same", call=valve)
    await until(lambda: first.owns)

    valve.open.clear()
    second = Machine(servers, 2, "same")
    await until(lambda: second.owns)
    valve.open.set()
    await asyncio.wait([first.task])

    with pytest.raises(BaseExceptionGroup) as raised:
        first.task.result()
    assert raised.group_contains(Deposed, match="give each node its own name")
    assert second.owns
    await end(second)


class Wall:
    """The clock of a machine, which an operator sets."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def now_us(self) -> int:
        return the_loop().now_us() + self.ahead_s * 1_000_000

    def steady_us(self) -> int:
        return the_loop().steady_us()


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-3_600, 3_600])
@simulated
async def test_an_owner_whose_clock_is_set_wrong_hands_over(ahead_s: int) -> None:
    servers = EngineServers()
    walls = {n: Wall() for n in (1, 2, 3)}
    machines = {n: Machine(servers, n, clock=wall) for n, wall in walls.items()}
    await until(lambda: any(machine.owns for machine in machines.values()))
    (owner,) = [n for n, machine in machines.items() if machine.owns]

    walls[owner].ahead_s = 30
    await pass_time(30)
    assert machines[owner].owns, "it goes on with what it has"
    walls[owner].ahead_s = ahead_s
    took_s = await until(lambda: any(machine.owns for n, machine in machines.items() if n != owner))

    assert took_s < 10.0
    walls[owner].ahead_s = 0
    await pass_time(30)
    (following,) = [n for n, machine in machines.items() if machine.owns]
    machines[following].node.hand_over(0)
    await until(lambda: machines[following].node.claims.owned == {})
    await until(lambda: any(machine.owns for machine in machines.values()))
    await end(*machines.values())


@simulated
async def test_a_node_refuses_to_start_in_a_cluster_that_writes_a_newer_format() -> None:
    servers = EngineServers()
    first = Machine(servers, 1, format=2)
    await until(lambda: first.owns)
    older = Machine(servers, 2)
    await asyncio.wait([older.task])

    with pytest.raises(NewerFormat, match=r"format 2, and this version of Penstock knows 1"):
        older.task.result()
    assert "node/n2" not in await (await MemoryEngine(servers).registry()).list()
    await end(first)


@simulated
async def test_a_newer_node_joins_a_cluster_and_writes_what_all_know() -> None:
    servers = EngineServers()
    older = Machine(servers, 1)
    await until(lambda: older.owns)
    newer = Machine(servers, 2, format=2)
    await pass_time(10)
    older.kill()
    await until(lambda: newer.owns)

    record = await (await MemoryEngine(servers).registry()).get(FORMAT_KEY)
    assert record is not None
    assert record.value == b"1"
    assert newer.node.claims.claims[0].format == 1
    await end(newer)


@simulated
async def test_a_format_that_is_no_number_is_damage() -> None:
    servers = EngineServers()
    await (await MemoryEngine(servers).registry()).cas(FORMAT_KEY, 0, b"one")
    machine = Machine(servers, 1)
    await asyncio.wait([machine.task])

    with pytest.raises(Damaged, match="it must be a number"):
        machine.task.result()
