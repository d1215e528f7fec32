"""Sessions know the nodes of their cluster, and leave an owner that is frozen as soon as another
node owns the realm."""

from __future__ import annotations

import asyncio
from statistics import median

import pytest

from packages.cluster.tests.machines import LEASE_S, NodeMachine, end, owner_and_others, until
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_core.api.realm import Ping
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, FrameReader, frame
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


class Client(asyncio.Protocol):
    """An end of a native connection that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[wire.FromServer] = []
        self.has_ended = False
        self._reader = FrameReader()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(PREFACE)

    def say(self, message: wire.Message) -> None:
        self._transport.write(b"".join(map(bytes, frame(wire.encode(message)))))

    def data_received(self, data: bytes) -> None:
        self._reader.receive(data)
        self.heard += [wire.decode_from_server(header) for header, _ in self._reader.frames()]

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended = True


async def client_at(machine: NodeMachine, *said: wire.Message) -> Client:
    client = Client()
    await the_loop().create_connection(lambda: client, HOST, machine.native)
    for message in said:
        client.say(message)
    await until(lambda: len(client.heard) == len(said))
    return client


async def know_each_other(*machines: NodeMachine) -> None:
    await until(lambda: all(len(machine.node.present()) == len(machines) for machine in machines))


def place(machine: NodeMachine) -> str:
    return f"{HOST}:{machine.native}"


# --- what is told -------------------------------------------------------------------------


@pytest.mark.spec("N1")
@simulated
async def test_a_client_that_asks_hears_of_all_nodes_and_of_each_change() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    await know_each_other(owner, standby)
    client = await client_at(owner, wire.Hello("a client", "session"), wire.Follow())
    nodes = tuple(sorted(map(place, (owner, standby))))

    welcome, owners = client.heard
    assert isinstance(welcome, wire.ClusterWelcome)
    assert (welcome.heartbeat_s, welcome.nodes) == (LEASE_S / 3, nodes)
    assert owners == wire.Owners(1, {0: place(owner)}, nodes)

    third = NodeMachine(servers, 3)
    await until(lambda: len(client.heard) == 3)
    assert client.heard[2] == wire.Owners(1, {0: place(owner)}, (*nodes, place(third)))
    await end(owner, standby, third)


@simulated
async def test_an_older_client_hears_nothing_that_it_does_not_know() -> None:
    servers = EngineServers()
    owner, (standby,) = await owner_and_others(servers)
    client = await client_at(owner, wire.Hello("an old client", "session"))

    third = NodeMachine(servers, 3)
    await until(lambda: third.reported_owners == [owner.name])
    await pass_time(2)

    assert [type(message) for message in client.heard] == [wire.ClusterWelcome]
    await end(owner, standby, third)


@simulated
async def test_who_follows_at_a_node_that_stands_by_hears_who_owns_and_who_does_then() -> None:
    owner, (standby, third) = await owner_and_others(EngineServers(), 3)
    await know_each_other(owner, standby, third)
    clients = [await client_at(machine, wire.Follow()) for machine in (standby, third)]
    nodes = tuple(sorted(map(place, (owner, standby, third))))
    assert [client.heard for client in clients] == [[wire.Owners(1, {0: place(owner)}, nodes)]] * 2

    owner.kill()
    await until(lambda: standby.serves or third.serves)
    served_by = standby if standby.serves else third
    nodes = tuple(sorted(map(place, (standby, third))))

    for client in clients:
        await until(lambda: client.heard[-1] == wire.Owners(2, {0: place(served_by)}, nodes))  # noqa: B023  waited for at once
    assert clients[served_by is third].has_ended, "an owner has others to tell it"
    await end(standby, third)


@simulated
async def test_who_follows_and_pings_stays_and_who_is_silent_is_dropped() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    alive, silent = [await client_at(standby, wire.Follow()) for _ in range(2)]

    for number in range(1, 13):
        await pass_time(5)
        alive.say(wire.Asked(number, Ping()))

    await until(lambda: silent.has_ended and len(alive.heard) == 13)
    assert not alive.has_ended
    assert alive.heard[1:] == [wire.Done(number) for number in range(1, 13)]
    await end(owner, standby)


@simulated
async def test_who_follows_at_the_owner_is_told_once() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    client = await client_at(owner, wire.Follow())

    await until(lambda: client.has_ended)
    (message,) = client.heard
    assert isinstance(message, wire.Owners)
    assert message.owners == {0: place(owner)}
    assert not owner.listener or not owner.listener.connections
    await end(owner, standby)


@simulated
async def test_a_realm_in_no_cluster_has_no_owners_to_follow() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    assert owner.listener is not None
    owner.listener.owners = None

    client = await client_at(owner, wire.Follow())

    await until(lambda: client.has_ended)
    assert client.heard == [wire.Owners(0, {})]
    await end(owner, standby)


# --- what sessions do with it -------------------------------------------------------------


@pytest.mark.spec("N1", "N4")
@simulated
async def test_a_session_that_was_given_one_address_finds_the_others_when_that_one_is_killed() -> (
    None
):
    owner, (standby,) = await owner_and_others(EngineServers())
    await know_each_other(owner, standby)
    session = await aio.connect(owner.url)
    channel = await session.channels.create("orders", type="persistent")

    owner.kill()

    assert await channel.publish(b"a") == 0
    assert standby.serves
    await session.close()
    await end(standby)


async def pause_at_a_freeze(after_s: float) -> tuple[float, float]:
    """Return the seconds without acknowledgements after the owner freezes, and the seconds until
    another node serves."""
    owner, (standby,) = await owner_and_others(EngineServers())
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    channel = await session.channels.create("orders", type="persistent")
    await pass_time(after_s)
    await channel.publish(b"a")

    the_loop().network.power_off(owner.machine)
    the_loop().kill(owner.machine)
    began_s = the_loop().time()
    publishing = the_loop().create_task(channel.publish(b"b"))
    served_s = await until(lambda: standby.serves)
    assert await publishing == 1
    pause_s = the_loop().time() - began_s

    await session.close()
    await end(standby)
    return pause_s, served_s


@pytest.mark.spec("N4")
@simulated
async def test_a_session_leaves_a_frozen_owner_as_soon_as_another_node_serves() -> None:
    pause_s, served_s = await pause_at_a_freeze(3.0)

    assert pause_s <= LEASE_S + 2
    assert pause_s < served_s + 0.5, "nobody waits for the silence to last"


@pytest.mark.slow
@pytest.mark.spec("N4")
@simulated
@pytest.mark.parametrize("seed", range(4))
async def test_whenever_an_owner_freezes_its_clients_pause_for_a_lease_and_two_seconds_at_most(
    seed: int,
) -> None:
    pauses = []
    for step in range(5):
        pause_s, _ = await pause_at_a_freeze(3 + step * 0.45)
        the_loop().network.down.clear()
        pauses.append(pause_s)

    assert max(pauses) <= LEASE_S + 2
    assert median(pauses) <= LEASE_S + 1


@simulated
async def test_a_session_on_one_node_leaves_nothing_behind_when_it_ends() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    await know_each_other(owner, standby)
    session = await aio.connect(owner.url)
    await until(lambda: bool(the_loop().network.connections()))

    await session.close()

    await until(lambda: not the_loop().network.connections())
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("penstock-")]
    await end(owner, standby)
