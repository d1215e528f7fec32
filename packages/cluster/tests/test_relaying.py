"""A node that stands by relays connections to the owner, with the client's own address."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from packages.cluster.tests.machines import (
    LEASE_S,
    RELAYS_MAX,
    NodeMachine,
    Valve,
    end,
    owner_and_others,
    until,
)
from packages.cluster.tests.relaying import CLIENT, SECRET, connect, relaying
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_cluster.nodes.roles import owners_in
from penstock_core.vocabulary.errors import CannotConnect
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame
from penstock_core.wire.relay_preface import SIGNATURE, VALID_S, Place, RelayOrigin, relay_preface
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from penstock_testing.network import MACHINE, Program, SimTransport
from tests.loops import the_loop


def framed(*messages: wire.Message) -> bytes:
    return b"".join(bytes(part) for message in messages for part in frame(wire.encode(message)))


HELLO = PREFACE + framed(wire.Hello("an old client", "session", "ann"))


def hosts_at(machine: NodeMachine) -> list[str]:
    assert machine.listener is not None
    return [
        connection.principal.host
        for connection in machine.listener.connections
        if connection.principal
    ]


# --- who is relayed -----------------------------------------------------------------------


@simulated
async def test_an_older_client_is_served_through_any_node_under_its_own_address() -> None:
    owner, (standby,) = await relaying()

    peer = await connect(standby.native, HELLO)
    await until(lambda: bool(peer.messages))

    assert isinstance(peer.messages[0], wire.Welcome)
    assert hosts_at(owner) == [CLIENT]
    assert owner.listener is not None
    assert owner.listener.gate is not None
    assert owner.listener.gate.open_by_node() == {standby.name: 1}
    peer.transport.close()
    await until(lambda: not len(standby.relays) and not hosts_at(owner))
    assert owner.listener.gate.open_by_node() == {}
    await end(owner, standby)


@simulated
async def test_a_client_on_the_machine_of_a_node_has_the_address_of_that_machine() -> None:
    """As it would if it came directly: to the owner's own machine it does not belong."""
    owner, (standby,) = await relaying()

    peer = await connect(standby.native, HELLO, "127.0.0.1")
    await until(lambda: bool(peer.messages))

    assert hosts_at(owner) == [the_loop().network.hosts[standby.machine]]
    await end(owner, standby)


@simulated
async def test_a_client_that_is_relayed_goes_to_the_owner_itself_if_it_reaches_it() -> None:
    owner, (standby,) = await relaying()

    session = await aio.connect(standby.url)

    address = session.connection.terms.current_address
    assert address is not None
    assert address.port == owner.native
    await until(lambda: not len(standby.relays))
    channel = await session.channels.create("orders", type="persistent")
    assert await channel.publish(b"a") == 0
    await session.close()
    await end(owner, standby)


@simulated
async def test_a_client_that_does_not_reach_the_owner_stays_relayed() -> None:
    owner, (standby,) = await relaying()
    network, places = the_loop().network, list[int]()
    real = network.create_connection

    async def guarded(
        make: Callable[[], Program], host: str, port: int
    ) -> tuple[SimTransport, Program]:
        if port == owner.native and MACHINE.get() == "":
            places.append(port)
            raise ConnectionRefusedError(111, "Connection refused")
        return await real(make, host, port)

    network.create_connection = guarded  # type: ignore[method-assign]  # a wall before the owner
    session = await aio.connect(standby.url)
    channel = await session.channels.create("orders", type="persistent")

    assert await channel.publish(b"a") == 0
    assert len(standby.relays) == 1
    assert places == [owner.native]
    owner.kill()
    assert await channel.publish(b"b") == 1
    await session.close()
    await end(standby)


async def ask(port: int, path: str, method: str = "GET", body: bytes = b"") -> str:
    peer = await connect(
        port,
        f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body,
    )
    await until(lambda: peer.has_ended)
    return peer.heard.decode()


@simulated
async def test_http_is_served_through_any_node() -> None:
    owner, (standby,) = await relaying()

    made = await ask(
        standby.http,
        "/api/v1/channels",
        "POST",
        body=b'{"name": "orders", "attributes": {"type": "persistent"}}',
    )

    assert made.startswith("HTTP/1.1 201")
    assert '"orders"' in await ask(standby.http, "/api/v1/channels")
    assert (await ask(standby.http, "/")).startswith("HTTP/1.1 200")
    await end(owner, standby)


@simulated
async def test_the_owner_counts_what_each_node_relays() -> None:
    owner, (standby, third) = await relaying(3)
    peers = [
        await connect(machine.native, HELLO.replace(b"session", b"sessio%d" % n))
        for n, machine in enumerate((standby, third, third))
    ]
    await until(lambda: all(peer.messages for peer in peers))

    metrics = await ask(owner.http, "/metrics")

    assert f'penstock_relayed_connections{{node="{standby.name}"}} 1.0' in metrics
    assert f'penstock_relayed_connections{{node="{third.name}"}} 2.0' in metrics
    await end(owner, standby, third)


def series(answer: str) -> dict[str, float]:
    """The samples in an answer of ``/metrics``, with their labels."""
    assert answer.startswith("HTTP/1.1 200"), answer
    lines = [line for line in answer.partition("\r\n\r\n")[2].splitlines() if line]
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }


@simulated
async def test_the_metrics_of_a_node_are_those_of_its_own_process() -> None:
    owner, (standby, third) = await relaying(3)
    assert owner.realm is not None
    session = await aio.connect(owner.url)
    await session.channels.create("orders", type="persistent")
    peer = await connect(third.native, HELLO)
    await until(lambda: bool(peer.messages))
    await pass_time(LEASE_S)  # everybody has renewed

    metrics = {
        node_machine: series(await ask(node_machine.http, "/metrics"))
        for node_machine in (owner, standby, third)
    }

    assert {
        node_machine
        for node_machine, node_values in metrics.items()
        if "penstock_channels" in node_values
    } == {owner}
    for machine, values in metrics.items():
        assert f'penstock_node_info{{name="{machine.name}",version=""}}' in values
        assert values["penstock_node_serves"] == float(machine is owner)
        assert values["penstock_node_epoch"] == 1
        assert values["penstock_relays"] == float(machine is third)
        if machine is not owner:
            assert values["process_open_fds"] == machine.native
    await session.close()
    await end(owner, standby, third)


@simulated
async def test_takeovers_are_counted_by_the_nodes_that_have_taken_over() -> None:
    owner, (standby,) = await relaying()
    before = [series(await ask(machine.http, "/metrics")) for machine in (owner, standby)]
    owner.node.hand_over(0)
    await until(lambda: standby.serves)
    await until(lambda: owner.reported_owners[-1:] == [standby.name])
    await pass_time(LEASE_S)

    after = [series(await ask(machine.http, "/metrics")) for machine in (owner, standby)]

    released = 'penstock_takeovers_total{why="released"}'
    assert [values[released] for values in before] == [0, 0]
    assert [values[released] for values in after] == [0, 1]
    assert [values['penstock_takeovers_total{why="first"}'] for values in after] == [1, 0]
    assert [values["penstock_node_epoch"] for values in after] == [2, 2]
    assert "penstock_realm_up" not in after[0]
    await end(owner, standby)


@simulated
async def test_a_node_says_itself_how_it_is() -> None:
    owner, (standby,) = await relaying()

    for path in ("/health", "/ready"):
        answer = await ask(standby.http, path)
        assert answer.startswith("HTTP/1.1 200")
        assert '"status":"standing-by"' in answer
        assert f'"owner":"{owner.name}"' in answer
    await end(owner, standby)


# --- who is not ---------------------------------------------------------------------------


@simulated
async def test_there_are_relays_up_to_a_limit_and_others_are_told_where_to_go() -> None:
    owner, (standby,) = await relaying()
    peers = []
    for number in range(RELAYS_MAX):
        hello = PREFACE + framed(wire.Hello("an old client", f"session {number}"))
        peers.append(await connect(standby.native, hello))
    await until(lambda: all(peer.messages for peer in peers))

    one_more = await connect(standby.native, HELLO)

    await until(lambda: bool(one_more.messages))
    (redirect,) = one_more.messages
    assert isinstance(redirect, wire.Redirect)
    assert redirect.address == f"{HOST}:{owner.native}"
    peers[0].transport.close()
    await until(lambda: len(standby.relays) < RELAYS_MAX)
    again = await connect(standby.native, HELLO)
    await until(lambda: bool(again.messages))
    assert isinstance(again.messages[0], wire.Welcome)
    await end(owner, standby)


def preface(to: NodeMachine, secret: bytes = SECRET) -> bytes:
    origin = RelayOrigin(Place("10.0.0.1", 1), Place("10.0.0.2", 2), "n9")
    return relay_preface(
        origin,
        secret,
        process=to.node.claims.me.nonce,
        now_s=the_loop().now_us() // 1_000_000,
    )


@simulated
async def test_an_owner_drops_who_claims_another_address_without_the_secret() -> None:
    owner, (standby,) = await relaying()
    unsigned = SIGNATURE + b"\x21\x11\x00\x0c" + bytes(12)

    for forged in (preface(owner, b"t" * 32), unsigned, preface(standby), SIGNATURE + b"\xff" * 4):
        for port in (owner.native, owner.http):
            peer = await connect(port, forged + HELLO)
            await until(lambda: peer.has_ended)  # noqa: B023  waited for at once
            assert peer.heard == b""

    assert hosts_at(owner) == []
    good = await connect(owner.native, preface(owner) + HELLO)
    await until(lambda: bool(good.messages))
    assert hosts_at(owner) == ["10.0.0.1"]
    await end(owner, standby)


@simulated
async def test_a_preface_is_good_for_one_connection() -> None:
    """An attacker who reads the traffic between nodes may send it again."""
    owner, (standby,) = await relaying()
    valid_preface = preface(owner)
    first = await connect(owner.native, valid_preface + HELLO)
    await until(lambda: bool(first.messages))

    for port in (owner.native, owner.http):
        again = await connect(port, valid_preface + HELLO)
        await until(lambda: again.has_ended)  # noqa: B023  waited for at once
        assert again.heard == b""

    assert not first.has_ended
    assert owner.listener is not None
    gate = owner.listener.gate
    assert gate is not None
    await pass_time(3 * VALID_S)
    await connect(owner.native, preface(owner) + HELLO)
    await until(lambda: len(gate.used) == 1)  # what is too old is refused for that
    await end(owner, standby)


@pytest.mark.parametrize("secret_name", ["", "another"])
@simulated
async def test_nothing_is_relayed_to_an_owner_that_would_refuse_it(secret_name: str) -> None:
    """It is of a version before relays, or has another secret: clients are told where it is."""
    owner, (standby,) = await relaying()
    claims = owner.node.claims
    claims.me = replace(claims.me, secret_name=secret_name)
    seen = standby.node.claims.members
    await until(lambda: seen[owner.name].secret_name == secret_name)

    with capture_logs() as logs:
        peers = [await connect(standby.native, HELLO) for _ in range(2)]
        await until(lambda: all(peer.messages for peer in peers))

    assert all(isinstance(peer.messages[0], wire.Redirect) for peer in peers)
    assert (await ask(standby.http, "/ready")).startswith("HTTP/1.1 503")
    assert [line["owner"] for line in logs if line["event"] == "relay.no_owner"] == [owner.name]
    await end(owner, standby)


@simulated
async def test_who_is_relayed_to_an_owner_that_refuses_it_is_told_where_to_go() -> None:
    """Its clock differs too much, or it has been started again since it was heard of."""
    owner, (standby,) = await relaying()
    assert owner.listener is not None
    assert owner.listener.gate is not None
    owner.listener.gate.process = "another start"

    with capture_logs() as logs:
        peer = await connect(standby.native, HELLO)
        await until(lambda: peer.has_ended)
        answer = await ask(standby.http, "/api/v1/channels")

    (redirect,) = peer.messages
    assert isinstance(redirect, wire.Redirect)
    assert redirect.address == f"{HOST}:{owner.native}"
    assert answer == "", "nobody can tell whether the owner has done it"
    relay_events = [line["event"] for line in logs if line["event"].startswith("relay.")]
    assert relay_events == ["relay.refused", "relay.no_owner"], (
        "the second one a minute later at most"
    )
    await until(lambda: not len(standby.relays))
    await end(owner, standby)


@simulated
async def test_who_follows_the_owners_through_a_relay_goes_on_being_told() -> None:
    """Over TLS a node cannot see what a connection asks, and relays it."""
    owner, (standby,) = await relaying()
    follower = await connect(owner.native, preface(owner) + PREFACE + framed(wire.Follow()))
    await until(lambda: bool(follower.messages))

    await pass_time(15)  # longer than somebody has who says no Hello

    assert not follower.has_ended
    assert follower.messages == [owners_in(owner.node)]
    await end(owner, standby)


@simulated
async def test_a_node_that_stands_by_relays_nothing_that_was_relayed_to_it() -> None:
    owner, (standby,) = await relaying()

    for port in (standby.native, standby.http, standby.amqp):
        for data in (preface(standby) + HELLO, preface(owner) + HELLO):
            peer = await connect(port, data)
            await until(lambda: peer.has_ended)  # noqa: B023  waited for at once
            assert peer.heard == b""

    assert len(standby.relays) == 0
    await end(owner, standby)


# --- the owner changes --------------------------------------------------------------------


@pytest.mark.spec("N4")
@simulated
async def test_a_relay_is_cut_when_the_owner_is_gone() -> None:
    owner, (standby, third) = await relaying(3)
    peers = [
        await connect(machine.native, HELLO.replace(b"session", b"sessio%d" % n))
        for n, machine in enumerate((standby, third))
    ]
    await until(lambda: all(peer.messages for peer in peers))

    owner.kill()

    await until(lambda: all(peer.has_ended for peer in peers))
    await until(lambda: standby.serves or third.serves)
    beside = third if standby.serves else standby
    again = await connect(beside.native, HELLO)
    await until(lambda: bool(again.messages))
    assert isinstance(again.messages[0], wire.Welcome)
    await end(standby, third)


@pytest.mark.spec("N4")
@simulated
async def test_a_relay_to_a_frozen_owner_is_cut_when_another_node_owns_the_realm() -> None:
    owner, (standby, third) = await relaying(3)
    peers = [
        await connect(machine.native, HELLO.replace(b"session", b"sessio%d" % n))
        for n, machine in enumerate((standby, third))
    ]
    await until(lambda: all(peer.messages for peer in peers))

    the_loop().network.power_off(owner.machine)
    the_loop().kill(owner.machine)

    await until(lambda: standby.serves or third.serves)
    await pass_time(0.5)
    assert all(peer.has_ended for peer in peers)
    await end(standby, third)


@simulated
async def test_while_nobody_serves_nobody_is_relayed_and_the_node_is_not_well() -> None:
    owner, (standby,) = await relaying()
    peer = await connect(standby.native, HELLO)
    await until(lambda: bool(peer.messages))
    standby.node.claims.leave()  # it takes nothing over

    owner.kill()
    await until(lambda: peer.has_ended and standby.node.owner(0) is None)

    answer = await ask(standby.http, "/health")
    assert answer.startswith("HTTP/1.1 503")
    assert '"status":"standing-by"' in answer
    with pytest.raises(CannotConnect, match="no node of the cluster serves this realm"):
        await aio.connect(standby.url, reconnect_timeout=0)
    await end(standby)


@simulated
async def test_a_node_that_does_not_reach_the_engine_says_that_there_is_no_quorum() -> None:
    valve = Valve()
    owner, (standby,) = await owner_and_others(EngineServers(), 2, valve, secret=SECRET)

    valve.open.clear()
    await until(lambda: not standby.node.has_quorum() and standby.node.owner(0) is None)

    answer = await ask(standby.http, "/health")
    assert answer.startswith("HTTP/1.1 503")
    assert '"status":"no-quorum"' in answer
    await end(owner, standby)


@simulated
async def test_large_answers_come_through_whole_and_a_slow_reader_slows_the_relay() -> None:
    owner, (standby,) = await relaying()
    session = await aio.connect(owner.url)
    channel = await session.channels.create("orders", type="persistent")
    for _ in range(20):
        await channel.publish(bytes(100_000))

    peer = await connect(
        standby.http,
        f"GET /api/v1/channels/orders/events?limit=20 HTTP/1.1\r\nhost: {HOST}\r\n"
        "connection: close\r\n\r\n".encode(),
    )
    peer.transport.pause_reading()
    await pass_time(5)
    assert not peer.has_ended
    peer.transport.resume_reading()
    await until(lambda: peer.has_ended)

    head, _, body = peer.heard.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert len(body) > 20 * 100_000
    await session.close()
    await end(owner, standby)
