"""Without the engine sessions are told why, go on by themselves, or end with the reason."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packages.cluster.tests.machines import NodeMachine, Valve, end, owner_and_others, until
from packages.cluster.tests.serving import HOST
from packages.cluster.tests.standby_clients import ask, call, performatives, say_hello
from penstock import aio
from penstock_amqp.wire import sasl
from penstock_amqp.wire.performatives import encode_open
from penstock_cluster.nodes.roles import watch_engine
from penstock_core.vocabulary.errors import NoQuorum, PenstockError
from penstock_core.vocabulary.node_figures import TenureCounts
from penstock_core.vocabulary.ports import EngineHealth
from penstock_core.wire.native import messages as wire
from penstock_server.runtime.access.incidents import Incidents
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


@pytest.mark.spec("N2", "N4")
@simulated
async def test_a_session_that_asks_all_nodes_is_told_once_and_when_it_goes_on() -> None:
    valve = Valve()
    owner, (standby,) = await owner_and_others(EngineServers(), call=valve)
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    channel = await session.channels.create("orders", type="persistent")
    interruptions: list[PenstockError | None] = []
    session.on_interruption(interruptions.append)

    valve.open.clear()
    publishing = the_loop().create_task(channel.publish(b"a"))
    await until(lambda: not session.is_connected)
    await pass_time(20)
    assert [error and error.code for error in interruptions] == ["no-quorum"], (
        "the other node knows nothing"
    )
    assert "no majority of its servers" in str(session.interruption)
    assert not publishing.done()
    valve.open.set()

    assert await publishing == 0
    assert [error and error.code for error in interruptions] == ["no-quorum", None]
    assert session.interruption is None
    assert [event.data async for event in channel.browse()] == [b"a"]
    await session.close()
    await end(owner, standby)


@pytest.mark.spec("N2")
@simulated
async def test_a_node_that_stands_by_and_knows_nobody_who_serves_says_so_in_every_protocol() -> (
    None
):
    valve = Valve()
    owner, (standby,) = await owner_and_others(EngineServers(), call=valve)

    valve.open.clear()
    await pass_time(20)
    native = await say_hello(standby)
    status, headers, document = await ask(standby.http, "GET /api/v1/channels")
    heard = await call(standby.amqp, sasl.PROTOCOL + encode_open("a client"))

    assert isinstance(native, wire.Goodbye)
    assert (native.code, type(native)) == ("no-quorum", wire.Goodbye)
    assert (status, headers["retry-after"]) == ("HTTP/1.1 503 Service Unavailable", "1")
    error = document["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["retryable"]) == ("no-quorum", True)
    condition, text, *_ = performatives(heard)[1].value[0].value
    assert (condition, text.partition(":")[0]) == ("amqp:connection:forced", "no-quorum")
    answer = await ask(standby.http, "GET /health")
    assert (answer[0], answer[2]["status"]) == ("HTTP/1.1 503 Service Unavailable", "no-quorum")
    valve.open.set()

    await until(lambda: owner.serves or standby.serves)
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    await session.close()
    await end(owner, standby)


@pytest.mark.spec("N2")
@simulated
async def test_a_session_that_waits_no_longer_ends_with_the_reason() -> None:
    valve = Valve()
    owner = NodeMachine(EngineServers(), 1, call=valve)
    await until(lambda: owner.serves)
    session = await aio.connect(owner.url, reconnect_timeout=5)
    channel = await session.channels.create("orders", type="persistent")
    reported: list[PenstockError] = []
    session.on_error(reported.append)

    valve.open.clear()
    publishing = the_loop().create_task(channel.publish(b"a"))
    await until(lambda: not session.is_connected)
    waiting = the_loop().create_task(channel.info())

    for task in (publishing, waiting, the_loop().create_task(channel.publish(b"b"))):
        with pytest.raises(NoQuorum, match="no majority of its servers"):
            await task
    assert [error.code for error in reported] == ["no-quorum"]
    with pytest.raises(NoQuorum):
        await channel.publish(b"c")
    valve.open.set()
    await session.close()
    await end(owner)


@simulated
async def test_the_leader_of_the_engine_its_room_and_its_damage_are_noted() -> None:
    valve, damage = Valve(), ["s1: a hole"]

    class Watched(MemoryEngine):
        async def health(self) -> EngineHealth:
            health = replace(await super().health(), leader="s2", damage=tuple(damage))
            return replace(health, room=5, rooms={"s1": 9, "s2": 5})

    counts = TenureCounts({})
    watching = the_loop().create_task(watch_engine(Watched(call=valve), counts, Incidents()))
    await pass_time(1)
    assert (counts.leader, counts.damages) == ("s2", {"s1: a hole"})
    assert (counts.room, counts.rooms) == (5, {"s1": 9, "s2": 5})
    damage.append("s3: a hole")
    await pass_time(25)
    assert len(counts.damages) == 2, "each is counted once"

    valve.open.clear()
    await pass_time(25)

    assert counts.leader == "", "nobody is known to lead"
    assert (counts.room, counts.rooms) == (None, {}), "an old report is not shown"
    watching.cancel()
