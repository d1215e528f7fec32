"""Transactions that are open when another node takes over: begun again, and stored once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from packages.cluster.tests.machines import NodeMachine, end, owner_and_others, until
from packages.cluster.tests.serving import HOST
from penstock import aio
from penstock.client.publishing.streamed import CHUNK_BYTES_MAX
from penstock_core.realm.transactions import OpenTransaction, TransactionTable
from penstock_core.vocabulary.errors import CapacityReached, NoSuchStage, NoSuchTransaction
from penstock_testing.engine import EngineServers
from penstock_testing.loop import simulated


async def cluster() -> tuple[NodeMachine, NodeMachine, aio.Session, aio.Channel]:
    """The owner, the other node, and a session with a channel."""
    owner, (standby,) = await owner_and_others(EngineServers())
    session = await aio.connect(f"{owner.url},{HOST}:{standby.native}")
    return owner, standby, session, await session.channels.create("orders", type="persistent")


async def datas(channel: aio.Channel) -> list[bytes]:
    return [event.data async for event in channel.browse()]


@pytest.mark.spec("X1", "N3")
@pytest.mark.parametrize("is_staged", [False, True], ids=["sent", "staged"])
@simulated
async def test_an_open_transaction_is_committed_by_the_next_owner(is_staged: bool) -> None:
    """Batches with several schemas are staged before the commit."""
    owner, standby, session, orders = await cluster()
    ledger = await session.channels.create("ledger", type="persistent")

    async with session.transaction() as unit:
        await unit.publish(orders, b"a")
        await unit.publish(ledger, b"b")
        owner.kill()
        properties = {"n": 1} if is_staged else {}
        await unit.publish_many(orders, [aio.Event(b"c", properties=properties)])

    assert unit.ids == {"orders": range(2), "ledger": range(1)}
    assert (await datas(orders), await datas(ledger)) == ([b"a", b"c"], [b"b"])
    assert await session.is_committed(unit.id)
    await session.close()
    await end(standby)


async def _left_by_an_exception(orders: aio.Channel) -> None:
    async with orders.transaction() as unit:
        await unit.publish(b"b")
        raise ZeroDivisionError


@pytest.mark.spec("X1", "X2", "N3")
@simulated
async def test_one_that_was_aborted_or_left_by_an_exception_leaves_nothing() -> None:
    owner, standby, session, orders = await cluster()
    unit = orders.transaction()
    await unit.publish(b"a")
    owner.kill()
    await unit.abort()
    with pytest.raises(ZeroDivisionError):
        await _left_by_an_exception(orders)

    await until(lambda: standby.serves)
    assert await datas(orders) == []
    with pytest.raises(NoSuchTransaction, match="another node took over"):
        await session.is_committed(unit.id)
    await session.close()
    await end(standby)


class Forgetful(TransactionTable):
    """Forgets the open transactions before it is asked for one, so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def begun(self, transaction: str) -> OpenTransaction:
        if self._times:
            self._times -= 1
            self.open.clear()
        return super().begun(transaction)


@pytest.mark.spec("X1", "N3")
@pytest.mark.parametrize(("times", "is_told"), [(9, False), (10, True)])
@simulated
async def test_it_is_begun_again_as_often_as_it_is_forgotten_and_then_told(
    times: int, is_told: bool
) -> None:
    owner, standby, session, orders = await cluster()
    assert owner.realm is not None
    owner.realm.shard.state.transactions = Forgetful(times)
    unit = orders.transaction()
    await unit.publish(b"a")
    if is_told:
        with pytest.raises(NoSuchTransaction):
            await unit.commit()
    assert await unit.commit() == range(1)

    assert await datas(orders) == [b"a"]
    await session.close()
    await end(owner, standby)


@pytest.mark.spec("T4", "N3")
@simulated
async def test_whoever_was_begun_below_capacity_is_so_after_a_takeover_if_there_is_room() -> None:
    owner, standby, session, _ = await cluster()
    honoured = {"honour_capacity": True}
    small = await session.channels.create(
        "small",
        type="persistent",
        capacity=2,
        storage=honoured,  # type: ignore[arg-type]  # a TypedDict elsewhere
    )
    more = await session.channels.create("more", type="persistent")

    async with session.transaction() as unit:
        await unit.publish_many(small, [aio.Event(data=b"%d" % n) for n in range(3)])
        owner.kill()
        await unit.publish(more, b"x")
        await small.publish(b"first")
        await small.publish(b"second")

    assert unit.ids["small"] == range(2, 5), "the stores it had named before are named again"
    with pytest.raises(CapacityReached):
        await small.publish(b"too much")
    await session.close()
    await end(standby)


HALF = b"x" * (CHUNK_BYTES_MAX // 2)
"""Two events with this property are sent together."""


def slowly(owner: NodeMachine, count: int) -> Iterable[aio.Event]:
    """Events whose source does not have them any more; in the middle the owner is killed."""
    for n in range(count):
        if n == count // 2:
            owner.kill()
        yield aio.Event(data=b"%d" % n, properties={"more": HALF})


@pytest.mark.spec("X1", "N3")
@simulated
async def test_a_publish_whose_events_are_gone_is_told_and_nothing_of_it_is_stored() -> None:
    owner, standby, session, orders = await cluster()

    with pytest.raises(NoSuchStage, match="another node took over"):
        await orders.publish_many(slowly(owner, 8))

    assert await datas(orders) == []
    await session.close()
    await end(standby)
