"""A node serves, or stands by and sends clients to the node that serves; it takes over, is deposed,
loses the engine and reaches it again."""

from __future__ import annotations

from typing import Any

import pytest

from packages.cluster.tests.machines import NodeMachine, Valve, end, owner_and_others, until
from packages.cluster.tests.serving import HOST
from packages.cluster.tests.standby_clients import ask, call, performatives, say_hello
from penstock import aio
from penstock_amqp.wire import sasl
from penstock_amqp.wire.performatives import encode_open
from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    NoQuorum,
    PenstockError,
)
from penstock_core.wire.native import messages as wire
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop

# --- standing by --------------------------------------------------------------------------


@pytest.mark.spec("N1")
@simulated
async def test_a_client_that_knows_one_node_is_sent_to_the_owner() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    session = await aio.connect(standby.url)
    channel = await session.channels.create("orders", type="persistent")

    assert await channel.publish(b"a") == 0
    assert owner.listener is not None
    assert len(owner.listener.connections) == 1
    await session.close()
    await end(owner, standby)


@simulated
async def test_an_older_client_hears_a_goodbye_that_it_understands() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    answer = await say_hello(standby)

    assert isinstance(answer, wire.Redirect)
    assert (answer.code, answer.address) == ("elsewhere", f"{HOST}:{owner.native}")
    assert answer.text == f"node {owner.name} serves this realm now, at penstock://{answer.address}"
    await end(owner, standby)


@simulated
async def test_a_node_that_has_not_reached_the_engine_yet_says_so() -> None:
    valve = Valve()
    valve.open.clear()
    machine = NodeMachine(EngineServers(), 1, call=valve)
    await pass_time(1)

    answer = await say_hello(machine)

    assert isinstance(answer, wire.Goodbye)
    assert not isinstance(answer, wire.Redirect)
    assert answer.code == "no-quorum"
    with pytest.raises(CannotConnect, match="no majority of its servers"):
        await aio.connect(machine.url, reconnect_timeout=0)
    await end(machine)


@simulated
async def test_a_client_that_comes_while_nobody_serves_waits_for_the_one_that_will() -> None:
    valve = Valve()
    valve.open.clear()
    machine = NodeMachine(EngineServers(), 1, call=valve)
    await pass_time(1)

    connecting = the_loop().create_task(aio.connect(machine.url))
    await pass_time(10)
    assert not connecting.done()
    valve.open.set()

    session = await connecting
    assert await session.channels.list() == []
    await session.close()
    await end(machine)


@simulated
async def test_over_http_a_node_that_stands_by_tells_its_health_and_who_serves() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    url = f"http://{HOST}:{owner.http}"
    health: dict[str, Any] = {"status": "standing-by", "owner": owner.name, "owner_url": url}
    health |= {"unfit": "", "incidents": []}

    assert (await ask(standby.http, "GET /health"))[::2] == ("HTTP/1.1 200 OK", health)
    assert (await ask(standby.http, "GET /ready"))[::2] == (
        "HTTP/1.1 503 Service Unavailable",
        health,
    )
    status, headers, document = await ask(standby.http, "POST /api/v1/channels")
    assert status == "HTTP/1.1 503 Service Unavailable"
    assert headers["retry-after"] == "1"
    assert document["error"] == {
        "code": "elsewhere",
        "message": f"node {owner.name} serves this realm now, at {url}",
        "retryable": True,
    }
    await end(owner, standby)


@simulated
async def test_over_http_a_page_of_the_console_is_found_at_the_owner() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    status, headers, _ = await ask(standby.http, "GET /channels?name=a")
    head = await ask(standby.http, "HEAD /channels")

    assert status == "HTTP/1.1 307 Temporary Redirect"
    assert headers["location"] == f"http://{HOST}:{owner.http}/channels?name=a"
    assert head[2] == {}
    assert (await ask(standby.http, "GET /metrics"))[0] == "HTTP/1.1 503 Service Unavailable"
    assert (await ask(standby.http, "GARBAGE"))[0] == "HTTP/1.1 400 Bad Request"
    await end(owner, standby)


SIGN_IN = b"\x00\x00\x00\x19\x02\x01\x00\x00\x00SA\xc0\x0c\x01\xa3\x09ANONYMOUS"
"""A client's choice of a mechanism, as it travels."""


@simulated
@pytest.mark.parametrize("first", [b"", SIGN_IN], ids=["plain", "signing in"])
async def test_over_amqp_a_node_that_stands_by_redirects_as_the_standard_says(
    first: bytes,
) -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    begin = (sasl.SASL_PROTOCOL + first) * bool(first)

    heard = await call(standby.amqp, begin + sasl.PROTOCOL + encode_open("a client"))

    opened, closed = performatives(heard)
    assert (opened.descriptor, opened.value) == (0x10, [standby.name])
    (error,) = closed.value
    assert error.value == [
        "amqp:connection:redirect",
        f"node {owner.name} serves this realm now, at amqp://{HOST}:{owner.amqp}",
        {"hostname": HOST, "network-host": HOST, "port": owner.amqp},
    ]
    await end(owner, standby)


@simulated
async def test_amqp_is_redirected_at_the_native_port_too() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    heard = await call(standby.native, sasl.PROTOCOL + encode_open("a client"))

    assert performatives(heard)[1].value[0].value[0] == "amqp:connection:redirect"
    await end(owner, standby)


@simulated
async def test_over_amqp_nobody_is_redirected_while_nobody_serves() -> None:
    valve = Valve()
    valve.open.clear()
    machine = NodeMachine(EngineServers(), 1, call=valve)
    await pass_time(1)

    heard = await call(machine.amqp, sasl.PROTOCOL + encode_open("a client"))

    assert performatives(heard)[1].value[0].value[0] == "amqp:connection:forced"
    await end(machine)


@pytest.mark.slow
@simulated
async def test_whoever_says_nothing_to_a_node_that_stands_by_is_dropped() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    for port in (standby.native, standby.http, standby.amqp):
        assert await call(port, b"") == b""
    assert await call(standby.amqp, b"GET / HTTP/1.1\r\n\r\n") == b""

    await end(owner, standby)


# --- taking over --------------------------------------------------------------------------


@pytest.mark.spec("N3", "N4")
@simulated
async def test_a_session_goes_on_when_the_owner_is_killed_and_nothing_is_lost_or_doubled() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    channel = await session.channels.create("orders", type="persistent")
    ids = [await channel.publish(b"%d" % n) for n in range(5)]

    owner.kill()
    began_s = the_loop().time()
    interruptions: list[PenstockError | None] = []
    session.on_interruption(interruptions.append)
    ids += [await channel.publish(b"%d" % n) for n in range(5, 10)]
    took_s = the_loop().time() - began_s

    assert took_s < 3, "its address refuses connections: nobody waits for its lease"
    assert interruptions[-1] is None, "it is there again"
    assert isinstance(interruptions[0], ConnectionLost), "nobody could say why"
    assert ids == list(range(10))
    assert [event.data async for event in channel.browse()] == [b"%d" % n for n in range(10)]
    await session.close()
    await end(standby)


@pytest.mark.spec("N4")
@simulated
async def test_a_session_follows_when_the_owner_hands_over_and_stands_by_then() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    channel = await session.channels.create("orders", type="persistent")

    owner.node.hand_over(0)
    began_s = the_loop().time()
    await until(lambda: standby.serves)

    assert await channel.publish(b"a") == 0
    assert the_loop().time() - began_s < 3
    await until(lambda: owner.reported_owners[-1:] == [standby.name])
    assert isinstance(await say_hello(owner), wire.Redirect)
    await session.close()
    await end(owner, standby)


@simulated
async def test_an_owner_that_is_cut_off_is_deposed_and_stands_by_when_it_comes_back() -> None:
    servers, valve = EngineServers(), Valve()
    owner = NodeMachine(servers, 1, call=valve)
    await until(lambda: owner.serves)
    standby = NodeMachine(servers, 2)
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    channel = await session.channels.create("orders", type="persistent")

    valve.open.clear()
    publishing = the_loop().create_task(channel.publish(b"a"))
    await until(lambda: standby.serves)
    assert await publishing == 0
    valve.open.set()

    await until(lambda: owner.reported_owners[-1:] == [standby.name])
    assert await channel.publish(b"b") == 1
    assert [event.data async for event in channel.browse()] == [b"a", b"b"]
    await session.close()
    await end(owner, standby)


# --- without the engine -------------------------------------------------------------------


@pytest.mark.spec("N2")
@simulated
async def test_without_the_engine_sessions_end_and_are_taken_again_when_it_is_back() -> None:
    valve = Valve()
    owner = NodeMachine(EngineServers(), 1, call=valve)
    await until(lambda: owner.serves)
    session = await aio.connect(owner.url)
    channel = await session.channels.create("orders", type="persistent")
    interruptions: list[PenstockError | None] = []
    session.on_interruption(interruptions.append)

    valve.open.clear()
    publishing = the_loop().create_task(channel.publish(b"a"))
    listener = owner.listener
    assert listener is not None
    await until(lambda: not session.is_connected)
    assert isinstance(session.interruption, NoQuorum)
    assert "no majority of its servers" in str(session.interruption)
    await pass_time(9)
    with pytest.raises(CannotConnect, match="no majority of its servers"):
        await aio.connect(owner.url, reconnect_timeout=0)
    assert not publishing.done(), "nothing is refused: it may be stored"
    valve.open.set()

    assert await publishing == 0
    assert owner.listener is listener, "the realm is the same: nobody has taken over"
    assert [error and error.code for error in interruptions] == ["no-quorum", None], (
        "told once each"
    )
    assert session.interruption is None
    assert [event.data async for event in channel.browse()] == [b"a"]
    await session.close()
    await end(owner)
