"""Loops over a subscription: several at once, one after the other, and what they leave; and
settlements made in different ways, which take effect in the order they were made."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import penstock
from packages.client.tests.durable_lives import (
    CLIENTS,
    KINDS,
    WAIT_S,
    do,
    eventually,
    ids,
    published,
    run,
    says,
)
from penstock import aio
from penstock_core.vocabulary.errors import DurableUnbound, IllegalState

QUIET_S = 0.3
"""A loop ends when nothing comes for so long."""
EACH_KIND = [
    kind if kind in ("shared", "serial") else pytest.param(kind, marks=pytest.mark.slow)
    for kind in KINDS
]
"""Waiting for the end of a loop takes its time; what a loop leaves depends little on the kind."""


async def looped(subscription: Any, stop_after: int, got: list[int], *, ack: bool = False) -> None:
    """Take events in a separate loop of either client, and break out of it."""

    def loop() -> None:
        for count, event in enumerate(subscription, 1):
            got.append(event.event_id)
            if ack:
                event.ack()
            if count == stop_after:
                break

    async def loop_there() -> None:
        count = 0
        async for event in subscription:
            count += 1
            got.append(event.event_id)
            if ack:
                await event.ack()
            if count == stop_after:
                break

    await do(loop_there if hasattr(subscription, "__aiter__") else loop)


@pytest.mark.slow
@pytest.mark.spec("D5")
@pytest.mark.parametrize("auto_ack", [False, True])
def test_two_tasks_may_share_a_subscription(realm: penstock.Realm, auto_ack: bool) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        durable = await channel.durables.create("d")
        await published(channel, 60)
        got: list[int | None] = []

        async def take(subscription: aio.DurableSubscription) -> None:
            async for event in subscription:
                await asyncio.sleep(0)
                got.append(event.event_id)
                if not auto_ack:
                    await event.ack()

        subscription = durable.subscribe(auto_ack=auto_ack, timeout=QUIET_S)
        async with subscription, asyncio.TaskGroup() as tasks:
            tasks.create_task(take(subscription))
            tasks.create_task(take(subscription))

        assert sorted(got, key=str) == sorted(range(60), key=str)
        assert (await durable.info()).outstanding == 0

    run(realm, "asyncio", live)


@pytest.mark.slow
@pytest.mark.spec("E6")
def test_two_tasks_may_share_a_plain_subscription(realm: penstock.Realm) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        await published(channel, 60)
        got: list[int | None] = []

        async def take(subscription: aio.Subscription) -> None:
            async for event in subscription:
                await asyncio.sleep(0)
                got.append(event.event_id)

        async with channel.subscribe(start="earliest", timeout=QUIET_S) as subscription:
            await published(channel, 5)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(take(subscription))
                tasks.create_task(take(subscription))

        assert sorted(got, key=str) == sorted(range(65), key=str)

    run(realm, "asyncio", live)


@pytest.mark.spec("D5", "E6")
@pytest.mark.parametrize("source", ["durable", "plain"])
def test_a_loop_does_not_get_what_another_one_is_at(realm: penstock.Realm, source: str) -> None:
    with realm.connect() as session:
        channel = session.channels.create("orders")
        durable = channel.durables.create("d")
        channel.publish_many([penstock.Event() for _ in range(3)])
        subscription: Any = (
            durable.subscribe(timeout=WAIT_S)
            if source == "durable"
            else channel.subscribe(start="earliest", timeout=WAIT_S)
        )
        with subscription:
            one, second = iter(subscription), iter(subscription)
            assert next(one).event_id == 0
            channel.publish_many([penstock.Event() for _ in range(2)])
            assert [next(second).event_id, next(one).event_id] == [3, 1]
            del one  # broken off
            assert [next(second).event_id, next(second).event_id] == [4, 2]


@pytest.mark.slow
@pytest.mark.spec("D5", "D13")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", EACH_KIND)
def test_what_a_loop_has_opened_is_opened_by_the_next_one_again(
    realm: penstock.Realm, kind: str, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type=kind)
        await published(channel, 7)
        subscription = durable.subscribe(timeout=QUIET_S)
        got: list[int] = []
        for _ in range(4):
            await looped(subscription, 2, got, ack=True)

        assert got == list(range(7))
        await eventually(lambda: says(durable.info, "clients", ()))
        assert (await do(durable.info)).outstanding == 0

    run(realm, client, live)


@pytest.mark.slow
@pytest.mark.spec("D13", "D14")
@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_seat_is_left_before_it_is_taken_again(
    realm: penstock.Realm, kind: penstock.DurableType
) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        durable = await channel.durables.create("d", type=kind)
        reports: list[object] = []
        session.on_error(reports.append)
        await published(channel, 40)
        subscription = durable.subscribe(timeout=QUIET_S)
        got: list[int | None] = []

        async def take(has_some: asyncio.Event) -> None:
            async for event in subscription:
                got.append(event.event_id)
                await event.ack()
                has_some.set()
                await asyncio.sleep(0)

        for turns in range(1, 25):
            has_some = asyncio.Event()
            taking = asyncio.get_running_loop().create_task(take(has_some))
            await has_some.wait()
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking
            for _ in range(turns % 7):
                await asyncio.sleep(0)
            if len(got) > 30:
                break
        await take(asyncio.Event())
        await subscription.close()

        assert got == list(range(40))
        assert reports == []

    run(realm, "asyncio", live)


@pytest.mark.slow
@pytest.mark.spec("E6")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_plain_subscription_goes_on_where_a_loop_has_left_it(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        await published(channel, 7)
        subscription = channel.subscribe(start="earliest", timeout=QUIET_S)
        got: list[int] = []
        for _ in range(4):
            await looped(subscription, 2, got)
        assert got == list(range(7))

        await published(channel, 2)
        await looped(subscription, 2, got)
        assert got == list(range(9))

    run(realm, client, live)


@pytest.mark.spec("D13")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("auto_ack", [False, True])
@pytest.mark.parametrize("source", ["durable", "plain"])
def test_a_loop_over_batches_ends_when_its_subscription_is_closed_in_it(
    realm: penstock.Realm, client: str, auto_ack: bool, source: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d")
        await published(channel, 3)
        subscription = (
            durable.subscribe(auto_ack=auto_ack)
            if source == "durable"
            else channel.subscribe(start="earliest")
        )
        seen: list[int] = []

        def loop() -> None:
            for batch in subscription.batches():
                seen.extend(batch.event_ids.tolist())
                subscription.close()

        async def loop_there() -> None:
            async for batch in subscription.batches():
                seen.extend(batch.event_ids.tolist())
                await subscription.close()

        await do(loop if client == "blocking" else loop_there)

        assert seen == [0, 1, 2]
        info = await do(durable.info)
        assert (info.outstanding, info.clients) == (3, ())

    run(realm, client, live)


@pytest.mark.spec("D14")
@pytest.mark.parametrize("client", CLIENTS)
def test_what_an_administrator_has_taken_back_is_not_handed_out(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d")
        await published(channel, 5)
        seen: list[int] = []
        subscription = durable.subscribe()

        def loop() -> None:
            for event in subscription:
                seen.append(event.event_id)
                if len(seen) == 2:
                    durable.unbind()

        async def loop_there() -> None:
            async for event in subscription:
                seen.append(event.event_id)
                if len(seen) == 2:
                    await durable.unbind()

        with pytest.raises(DurableUnbound):
            await do(loop if client == "blocking" else loop_there)
        assert seen == [0, 1]
        await looped(subscription, 1, seen)  # it takes a seat again
        assert seen == [0, 1, 0]
        assert (await do(durable.info)).outstanding == 5

    run(realm, client, live)


@pytest.mark.spec("D14")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_handler_does_not_get_what_an_administrator_has_taken_back(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d")
        reports: list[object] = []
        session.on_error(reports.append)
        await published(channel, 5)
        seen: list[int] = []

        def handle(event: Any) -> None:
            seen.append(event.event_id)
            if len(seen) == 2:
                durable.unbind()

        async def handle_there(event: Any) -> None:
            seen.append(event.event_id)
            if len(seen) == 2:
                await durable.unbind()

        subscription = durable.subscribe(handle if client == "blocking" else handle_there)
        await do(subscription.open)
        await eventually(lambda: _any(reports))
        assert isinstance(reports[0], DurableUnbound)
        assert seen == [0, 1]
        await do(subscription.close)
        assert (await do(durable.info)).outstanding == 5

    run(realm, client, live)


async def _any(reports: list[object]) -> bool:
    return bool(reports)


# --- in the order they were made --------------------------------------------------------------


@pytest.mark.spec("D5", "D15")
@pytest.mark.parametrize("client", CLIENTS)
def test_what_was_acknowledged_is_not_given_back_with_the_rest(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d")
        await published(channel, 5)
        subscription = durable.subscribe(window=5)
        await do(subscription.open)
        batch = await do(subscription.next_batch, WAIT_S)
        await do(batch[0].ack)
        await do(batch[1].ack)
        await do(batch.rollback)
        await do(subscription.flush)  # nothing was refused
        assert ids(await do(subscription.next_batch, WAIT_S)) == [2, 3, 4]
        await do(subscription.close)
        assert (await do(durable.info)).outstanding == 3

    run(realm, client, live)


@pytest.mark.spec("D11")
@pytest.mark.parametrize("client", CLIENTS)
def test_acknowledging_by_id_does_not_overtake_a_rollback(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type="serial", strict_order=True)
        await published(channel, 4)
        subscription = durable.subscribe(window=4)
        await do(subscription.open)
        batch = await do(subscription.next_batch, WAIT_S)
        await do(batch[0].rollback)
        with pytest.raises(IllegalState, match="recalled"):
            await do(subscription.ack, [1])
        assert ids(await do(subscription.next_batch, WAIT_S)) == [0, 1, 2, 3]
        await do(subscription.close)

    run(realm, client, live)


@pytest.mark.spec("D11")
def test_events_of_a_cancelled_fetch_do_not_overtake_a_rollback(
    realm: penstock.Realm,
) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        durable = await channel.durables.create("d", type="serial", strict_order=True)
        await published(channel, 4)
        fetching = asyncio.get_running_loop().create_task(durable.fetch(6, WAIT_S))
        await eventually(lambda: says(durable.info, "in_flight", 4))
        fetching.cancel()
        first, _ = await durable.fetch(2, WAIT_S)
        await first.rollback()
        assert ids(await durable.fetch(4, WAIT_S)) == [0, 1, 2, 3]
        await durable.close()

    run(realm, "asyncio", live)
