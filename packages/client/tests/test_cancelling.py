"""Cancelled fetches, iterations, handlers, openings and closings lose no event: unreceived events
are delivered by the next call, or return to the durable."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

import penstock
from packages.client.tests.durable_lives import (
    CLIENTS,
    CUMULATIVE,
    KINDS,
    WAIT_S,
    counts,
    do,
    eventually,
    ids,
    published,
    received,
    run,
    says,
)
from penstock import aio

pytestmark = pytest.mark.slow

IN_ORDER = list(range(20))


def asyncio_only(realm: penstock.Realm, live: Callable[[Any], Awaitable[None]]) -> None:
    run(realm, "asyncio", live)


async def durable_of(
    session: aio.Session, kind: penstock.DurableType, **attributes: Any
) -> aio.Durable:
    channel = await session.channels.create("orders", **attributes)
    return await channel.durables.create("d", type=kind)


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Any]) -> None:
    """Start something, let the loop turn some times, and cancel it."""
    task = asyncio.get_running_loop().create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


# --- fetching -------------------------------------------------------------------------------


@pytest.mark.spec("D5")
@pytest.mark.parametrize("kind", KINDS)
def test_events_of_a_cancelled_fetch_are_returned_by_the_next(
    realm: penstock.Realm, kind: penstock.DurableType
) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        durable = await channel.durables.create("d", type=kind)
        for n in range(10):
            fetching = asyncio.get_running_loop().create_task(durable.fetch(5, WAIT_S))
            for _ in range(n * 4):
                await asyncio.sleep(0)
            sending = asyncio.get_running_loop().create_task(published(channel, 2))
            for _ in range(n * 4):
                await asyncio.sleep(0)
            fetching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                raise AssertionError(f"five of two: {await fetching}")
            await sending
            first = await durable.fetch(1, WAIT_S)
            if kind == "shared_queued":  # one window after the other
                await first[0].ack()
                await durable.flush()
            second = await durable.fetch(3, 0.05)
            assert ids([*first, *second]) == [2 * n, 2 * n + 1]
            assert set(counts([*first, *second]).values()) == {0}
            for event in [*first, *second]:
                await event.ack()
            await durable.flush()
        assert (await durable.info()).outstanding == 0

    asyncio_only(realm, live)


@pytest.mark.spec("D5")
def test_a_fetch_is_never_given_more_than_it_asked_for(realm: penstock.Realm) -> None:
    async def live(session: aio.Session) -> None:
        channel = await session.channels.create("orders")
        durable = await channel.durables.create("d")
        await cancelled_after(20, durable.fetch(5, WAIT_S))
        await cancelled_after(0, durable.fetch(5, WAIT_S))
        await published(channel, 7)

        assert ids(await durable.fetch(2, WAIT_S)) == [0, 1]
        assert ids(await durable.fetch(50, 0.05)) == [2, 3, 4, 5, 6]

    asyncio_only(realm, live)


# --- iterating ------------------------------------------------------------------------------


@pytest.mark.spec("D5")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_with_auto_ack_what_the_loop_was_not_done_with_comes_first(
    realm: penstock.Realm, kind: penstock.DurableType, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type=kind)
        seat = durable.subscribe(auto_ack=True)
        await do(seat.open)
        await published(channel, 6)

        assert await some_of(client, seat, 3) == [0, 1, 2]
        assert await some_of(client, seat, 4) == [2, 3, 4, 5]
        assert await some_of(client, seat, 1, batches=True) == [5]
        assert await some_of(client, seat, 1) == [5]
        await do(seat.close)
        remaining = await do(durable.fetch, 1, WAIT_S)
        assert counts(remaining) == {5: 0 if kind in CUMULATIVE else 1}

    run(realm, client, live)


def some(subscription: Any, count: int, *, batches: bool) -> list[int]:
    got: list[int] = []
    for one in subscription.batches() if batches else subscription:
        got += one.event_ids.tolist() if batches else [one.event_id]
        if len(got) >= count:
            break
    return got


async def some_of(
    client: str, subscription: Any, count: int, *, batches: bool = False
) -> list[int]:
    """Iterate up to ``count`` events, and stop."""
    if client == "blocking":
        return await asyncio.to_thread(some, subscription, count, batches=batches)
    got: list[int] = []
    async for one in subscription.batches() if batches else subscription:
        got += one.event_ids.tolist() if batches else [one.event_id]
        if len(got) >= count:
            break
    return got


@pytest.mark.spec("E6", "D5")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("reads", ["channel", *KINDS])
def test_who_stops_iterating_goes_on_where_they_stopped(
    realm: penstock.Realm, reads: str, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        if reads == "channel":
            subscription = channel.subscribe(start="earliest")
        else:
            durable = await do(channel.durables.create, "d", type=reads)
            window = {} if reads in CUMULATIVE else {"window": 100}
            subscription = durable.subscribe(**window)
        await published(channel, 20)
        await do(subscription.open)

        assert await some_of(client, subscription, 3) == [0, 1, 2]
        assert await some_of(client, subscription, 5) == [3, 4, 5, 6, 7]
        batch = await do(subscription.next_batch, WAIT_S)
        assert batch is not None
        assert batch.event_ids[0] == 8
        await published(channel, 5)
        rest = (
            [*ids(list(batch)), *ids(await received(subscription, 25 - 8 - len(batch)))]
            if (reads != "shared_queued")
            else ids(list(batch))
        )
        assert rest == list(range(8, 8 + len(rest)))

    run(realm, client, live)


@pytest.mark.spec("D5")
@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_that_is_cancelled_loses_nothing(
    realm: penstock.Realm, kind: penstock.DurableType
) -> None:
    async def live(session: aio.Session) -> None:
        durable = await durable_of(session, kind)
        got: list[int] = []
        subscription = durable.subscribe(auto_ack=True)

        async def take() -> None:
            async for event in subscription:
                assert event.event_id is not None
                await asyncio.sleep(0)
                got.append(event.event_id)  # else it comes again

        channel = await session.channels.get("orders")
        await subscription.open()
        for _ in range(20):
            taking = asyncio.get_running_loop().create_task(take())
            await published(channel, 5)
            await asyncio.sleep(0)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking
        taking = asyncio.get_running_loop().create_task(take())
        await eventually(lambda: _has(got, 100))
        taking.cancel()

        assert got == list(range(100))

    asyncio_only(realm, live)


async def _has(got: list[int], count: int) -> bool:
    return len(got) >= count


# --- opening --------------------------------------------------------------------------------


@pytest.mark.spec("D14")
@pytest.mark.parametrize("engine", ["default", "jms"])
def test_an_opening_that_is_cancelled_leaves_no_seat_and_no_subscriber(
    realm: penstock.Realm, engine: str
) -> None:
    async def live(session: aio.Session) -> None:
        durable = await durable_of(session, "exclusive", engine=engine)
        channel = await session.channels.get("orders")
        for turns in range(0, 40, 2):
            for opened in (durable.subscribe(), channel.subscribe()):
                await cancelled_after(turns, opened.open())
                await opened.close()  # had it come about in time
            await eventually(lambda: says(durable.info, "clients", ()))
            await cancelled_after(turns, channel.durables.get("d"))
            await cancelled_after(turns, durable.fetch(1, WAIT_S))
            await durable.close()
        await eventually(lambda: says(durable.info, "clients", ()))
        await eventually(lambda: says(channel.info, "subscribers", 0))
        await published(channel, 2)
        assert ids(await durable.fetch(5, 0.1)) == [0, 1]

    asyncio_only(realm, live)


# --- closing --------------------------------------------------------------------------------


@pytest.mark.spec("D13")
@pytest.mark.parametrize("kind", KINDS)
def test_a_closing_that_is_cancelled_gives_everything_back_all_the_same(
    realm: penstock.Realm, kind: penstock.DurableType
) -> None:
    async def live(session: aio.Session) -> None:
        durable = await durable_of(session, kind)
        channel = await session.channels.get("orders")
        await published(channel, 5)
        for turns in (0, 1, 2, 3, 5, 8):
            started = asyncio.Event()

            async def handle(_: Any, started: asyncio.Event = started) -> None:
                started.set()
                await asyncio.Event().wait()

            seat = await durable.subscribe(handle).open()
            await started.wait()
            await cancelled_after(turns, seat.close())
            await seat.close()
            await eventually(lambda: says(durable.info, "clients", ()))
        info = await durable.info()
        assert (info.outstanding, info.in_flight) == (5, 0)
        assert ids(await durable.fetch(5, WAIT_S)) == list(range(5))

    asyncio_only(realm, live)


@pytest.mark.spec("D13", "D5")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_may_close_its_own_subscription(
    realm: penstock.Realm, kind: penstock.DurableType, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type=kind)
        await published(channel, 5)
        seen: list[int] = []

        def close(event: Any) -> None:
            seen.append(event.event_id)
            event.ack()
            if len(seen) == 2:
                seat.close()

        async def close_there(event: Any) -> None:
            seen.append(event.event_id)
            await event.ack()
            if len(seen) == 2:
                await seat.close()

        seat = durable.subscribe(close if client == "blocking" else close_there)
        await do(seat.open)
        await eventually(lambda: says(durable.info, "outstanding", 3))
        await eventually(lambda: says(durable.info, "clients", ()))

        assert seen == [0, 1]
        remaining = await do(durable.fetch, 3, WAIT_S)
        assert counts(remaining) == dict.fromkeys([2, 3, 4], 0 if kind in CUMULATIVE else 1)

    run(realm, client, live)


@pytest.mark.spec("D13", "D5")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_loop_may_close_what_it_reads_and_ends(realm: penstock.Realm, client: str) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d")
        reports: list[object] = []
        session.on_error(reports.append)
        await published(channel, 5)
        seat = durable.subscribe(auto_ack=True)
        await do(seat.open)
        seen: list[int] = []

        def loop() -> None:
            for event in seat:
                seen.append(event.event_id)
                if len(seen) == 2:
                    seat.close()

        async def loop_there() -> None:
            async for event in seat:
                seen.append(event.event_id)
                if len(seen) == 2:
                    await seat.close()

        await do(loop if client == "blocking" else loop_there)

        assert seen == [0, 1]
        assert counts(await do(durable.fetch, 4, WAIT_S)) == dict.fromkeys([1, 2, 3, 4], 1)
        assert reports == []

    run(realm, client, live)


@pytest.mark.spec("D13")
@pytest.mark.parametrize("kind", KINDS)
def test_an_event_a_handler_was_busy_with_as_it_was_closed_comes_again(
    realm: penstock.Realm, kind: penstock.DurableType
) -> None:
    async def live(session: aio.Session) -> None:
        durable = await durable_of(session, kind)
        channel = await session.channels.get("orders")
        started = asyncio.Event()
        ended: list[str] = []

        async def handle(event: Any) -> None:
            if event.event_id == 1:
                started.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append("cancelled")

        seat = await durable.subscribe(handle, auto_ack=True).open()
        await published(channel, 4)
        await started.wait()
        await seat.close()

        assert ended == ["cancelled"]
        remaining = await durable.fetch(3, WAIT_S)
        assert counts(remaining) == dict.fromkeys([1, 2, 3], 0 if kind in CUMULATIVE else 1)

    asyncio_only(realm, live)
