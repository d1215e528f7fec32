"""Seats at durables over the end of an owner: they wait for the sessions that had them."""

from __future__ import annotations

from contextvars import copy_context

import pytest

from packages.cluster.tests.machines import NodeMachine, Valve, end, owner_and_others, until
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock_core.vocabulary.errors import DurableInUse
from penstock_testing.engine import EngineServers
from penstock_testing.loop import pass_time, simulated
from penstock_testing.network import MACHINE
from tests.loops import the_loop

REATTACH_S = 10


async def holder_and_rival(
    url: str,
) -> tuple[aio.Session, aio.DurableSubscription, aio.Durable]:
    """A session of two programs on a channel with an exclusive durable: the seat of the one, and
    the durable as the other sees it."""
    session = await aio.connect(url)
    orders = await session.channels.create("orders", type="persistent")
    await orders.durables.create("alone", type="exclusive")
    seat = (await orders.durables.get("alone")).subscribe()
    await seat.open()
    await orders.publish(b"a")
    rival = await aio.connect(url)
    return session, seat, await (await rival.channels.get("orders")).durables.get("alone")


async def take_seat(durable: aio.Durable) -> aio.DurableSubscription | None:
    try:
        return await durable.subscribe().open()
    except DurableInUse:
        return None


@pytest.mark.spec("N6")
@pytest.mark.parametrize("how", ["is killed", "hands over"])
@simulated
async def test_the_holder_keeps_an_exclusive_seat_however_its_owner(how: str) -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    urls = f"{owner.url},{HOST}:{standby.native}"
    session, seat, rivals = await holder_and_rival(urls)

    if how == "is killed":
        owner.kill()
    else:
        owner.node.hand_over(0)
    assert await take_seat(rivals) is None, "it waits for the holder"
    batch = await seat.next_batch(timeout=60)

    assert batch is not None
    assert batch.event_ids.tolist() == [0]
    await pass_time(2 * REATTACH_S)
    assert await take_seat(rivals) is None
    await session.close()
    assert await take_seat(rivals) is not None
    await end(standby)


@pytest.mark.spec("N6")
@simulated
async def test_a_holder_that_is_gone_together_with_the_owner_is_waited_for_and_then_not() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    urls = f"{owner.url},{HOST}:{standby.native}"
    context = copy_context()
    context.run(MACHINE.set, "holder")
    begun = the_loop().create_task(holder_and_rival(urls), context=context)
    await begun
    rival = await aio.connect(urls)
    rivals = await (await rival.channels.get("orders")).durables.get("alone")

    owner.kill()
    the_loop().network.kill("holder")
    the_loop().kill("holder")
    await until(lambda: standby.serves)
    began_s = the_loop().time()
    while (seat := await take_seat(rivals)) is None:
        await pass_time(0.1)
    waited_s = the_loop().time() - began_s

    assert REATTACH_S - 1 < waited_s < REATTACH_S + 3
    batch = await seat.next_batch()
    assert batch is not None
    assert batch.event_ids.tolist() == [0]
    await rival.close()
    await end(standby)


@pytest.mark.spec("N6")
@simulated
async def test_owners_that_change_every_few_seconds_do_not_wait_for_ever() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    urls = f"{owner.url},{HOST}:{standby.native}"
    context = copy_context()
    context.run(MACHINE.set, "holder")
    await the_loop().create_task(holder_and_rival(urls), context=context)
    rival = await aio.connect(urls)
    rivals = await (await rival.channels.get("orders")).durables.get("alone")

    the_loop().network.kill("holder")
    the_loop().kill("holder")
    owner.node.hand_over(0)
    began_s = the_loop().time()
    seat = None
    while seat is None:
        now, then = (standby, owner) if standby.serves else (owner, standby)
        await until(lambda now=now: now.serves)  # type: ignore[misc]
        handed_s = the_loop().time()
        while the_loop().time() < handed_s + 3 and seat is None:
            seat = await take_seat(rivals)
            await pass_time(0.1)
        if seat is None:
            now.node.hand_over(0)
            await until(lambda then=then: then.serves)  # type: ignore[misc]
    waited_s = the_loop().time() - began_s

    assert REATTACH_S - 1 < waited_s < 2 * REATTACH_S
    batch = await seat.next_batch()
    assert batch is not None
    assert batch.event_ids.tolist() == [0]
    await rival.close()
    await end(owner)
    await end(standby)


@pytest.mark.spec("N6", "D14")
@simulated
async def test_an_administrator_frees_a_seat_that_waits() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    urls = f"{owner.url},{HOST}:{standby.native}"
    context = copy_context()
    context.run(MACHINE.set, "holder")
    await the_loop().create_task(holder_and_rival(urls), context=context)
    rival = await aio.connect(urls)
    rivals = await (await rival.channels.get("orders")).durables.get("alone")

    owner.kill()
    the_loop().network.kill("holder")
    the_loop().kill("holder")
    assert await take_seat(rivals) is None
    await rivals.unbind()

    assert await take_seat(rivals) is not None
    await rival.close()
    await end(standby)


@pytest.mark.spec("N2", "N6")
@simulated
async def test_a_seat_waits_for_its_holder_as_well_while_there_is_no_quorum() -> None:
    valve = Valve()
    owner = NodeMachine(EngineServers(), 1, call=valve)
    await until(lambda: owner.serves)
    session, seat, rivals = await holder_and_rival(owner.url)
    listener = owner.listener

    valve.open.clear()
    await until(lambda: not session.is_connected)
    await pass_time(3 * REATTACH_S)
    valve.open.set()
    assert await take_seat(rivals) is None, "the time without a quorum does not count"
    batch = await seat.next_batch(timeout=60)

    assert batch is not None
    assert owner.listener is listener, "nobody has taken over"
    await pass_time(2 * REATTACH_S)
    assert await take_seat(rivals) is None
    await session.close()
    await end(owner)
