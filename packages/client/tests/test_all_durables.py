"""One life of a durable, for every type, on every channel type and both engines, with the blocking
client and the asyncio one: each number of SEM D17 exact at each step."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import penstock
from packages.client.tests.durable_lives import (
    CLIENTS,
    CUMULATIVE,
    KINDS,
    WAIT_S,
    connected,
    counts,
    do,
    eventually,
    ids,
    published,
    received,
    run,
    says,
)

pytestmark = pytest.mark.slow

TYPES = ("persistent", "reliable", "mixed", "paged", "off_heap", "simple")
SURVIVING = ("persistent", "mixed", "paged", "reliable", "off_heap")

LIVES = [
    pytest.param(*life, marks=() if life[1] in TYPES[:2] else pytest.mark.slow)
    for life in product(KINDS, TYPES, ("default", "jms"), CLIENTS)
]
PAIRS = list(product(KINDS, CLIENTS))


async def reached(seen: list[Any], count: int) -> bool:
    return len(seen) >= count


async def read(subscription: Any) -> list[int]:
    """All a browse gives."""
    if hasattr(subscription, "__aiter__"):
        return [event.event_id async for event in subscription]
    return list(await do(lambda: [event.event_id for event in subscription]))


async def numbers(durable: Any) -> tuple[int, int, int, int]:
    """Clients, outstanding, pending and redelivered."""
    info = await do(durable.info)
    return len(info.clients), info.outstanding, info.in_flight, info.redelivered


class Life:
    """The life of a durable, step by step, with checks of its description."""

    def __init__(self, channel: Any, durable: Any, kind: str) -> None:
        self.channel = channel
        self.durable = durable
        self.kind = kind
        self.at_once = kind not in CUMULATIVE
        self.seat = durable.subscribe()
        self.remaining_ids = [0, 1, 3, 4, 5] if self.at_once else [3, 4, 5]
        """Outstanding once 2 is acknowledged."""

    async def says(self, clients: int, outstanding: int, pending: int, redelivered: int) -> None:
        assert await numbers(self.durable) == (clients, outstanding, pending, redelivered)

    async def begins(self) -> None:
        info = await do(self.durable.info)
        assert (info.name, info.channel, info.type) == ("d", "orders", self.kind)
        assert (info.oldest_outstanding_ms, info.last_read_ms) == (None, None)
        await self.says(0, 0, 0, redelivered=0)
        await published(self.channel, 6)
        await self.says(0, 6, 0, redelivered=0)
        assert (await do(self.durable.info)).oldest_outstanding_ms is not None

    async def receives(self) -> list[Any]:
        await do(self.seat.open)
        events = await received(self.seat, 6)
        assert counts(events) == dict.fromkeys(range(6), 0)
        await self.says(1, 6, 6, redelivered=0)
        assert (await do(self.durable.info)).last_read_ms is not None
        return events

    async def settles(self, events: list[Any]) -> None:
        await do(self.seat.ack, [2])
        await do(self.seat.ack, [2])  # SEM D15: no effect
        events_left = len(self.remaining_ids)
        await self.says(1, events_left, events_left, redelivered=0)
        await do(events[4].rollback)
        await do(self.seat.flush)
        if self.at_once:
            assert counts(await received(self.seat, 1)) == {4: 1}
            await self.says(1, 5, 5, redelivered=1)
        else:
            await self.says(1, 3, 2, redelivered=0)

    async def is_browsed(self) -> None:
        assert await read(self.durable.browse()) == self.remaining_ids
        assert (await do(self.channel.info)).events == len(self.remaining_ids)

    async def is_left(self) -> None:
        """SEM D13."""
        await do(self.seat.close)
        events_left = len(self.remaining_ids)
        await self.says(0, events_left, 0, redelivered=events_left if self.at_once else 0)

    async def is_fetched_from(self) -> None:
        fetched = await do(self.durable.fetch, 2, WAIT_S)
        fetched += await do(self.durable.fetch, 10, 0.05)
        assert ids(fetched) == self.remaining_ids
        expected = dict.fromkeys(self.remaining_ids, 1 if self.at_once else 0)
        if self.at_once:
            expected[4] = 2
        assert counts(fetched) == expected
        await do(fetched[-1].ack, previous=True)
        await do(self.durable.flush)

    async def is_done(self) -> None:
        await self.says(1, 0, 0, redelivered=0)
        assert (await do(self.durable.info)).oldest_outstanding_ms is None
        info = await do(self.channel.info)
        assert (info.events, info.counters.consumed) == (0, 6)
        await do(self.durable.close)
        await self.says(0, 0, 0, redelivered=0)


@pytest.mark.spec("D5", "D13", "D15", "D16", "D17", "D6")
@pytest.mark.parametrize(("kind", "type", "engine", "client"), LIVES)
def test_a_life_of_a_durable(
    realm: penstock.Realm, kind: str, type: str, engine: str, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders", type=type, engine=engine)
        durable = await do(channel.durables.create, "d", type=kind)
        assert (await do(durable.info)).persistent is (type in SURVIVING)
        life = Life(channel, durable, kind)
        await life.begins()
        await life.settles(await life.receives())
        await life.is_browsed()
        await life.is_left()
        await life.is_fetched_from()
        await life.is_done()

    run(realm, client, live)


@pytest.mark.spec("D13")
@pytest.mark.parametrize(("kind", "client"), PAIRS)
def test_a_session_that_is_closed_with_events_in_its_hands_gives_them_back(
    realm: penstock.Realm, kind: str, client: str
) -> None:
    """The application has received some events, the others wait in the client. Settlements made
    before the close are kept."""

    async def live(session: Any) -> None:
        async with connected("asyncio", await do(realm.listen)) as owner_session:
            channel = await owner_session.channels.create("orders")
            durable = await channel.durables.create("d", type=kind)
            await published(channel, 8)
            mine = await do((await do(session.channels.get, "orders")).durables.get, "d")
            seat = mine.subscribe()
            await do(seat.open)
            batch = await do(seat.next_batch, WAIT_S)
            assert batch is not None
            await do(batch[0].ack)
            await do(session.close)
            await eventually(lambda: says(durable.info, "clients", ()))

            events = await durable.fetch(7, WAIT_S)
            assert ids(events) == list(range(1, 8))
            expected = 0 if kind in CUMULATIVE else 1
            assert set(counts(events).values()) == {expected}

    run(realm, client, live)


@pytest.mark.spec("D15")
@pytest.mark.parametrize(("kind", "client"), PAIRS)
def test_only_the_receiver_of_an_event_may_settle_it(
    realm: penstock.Realm, kind: str, client: str
) -> None:
    async def live(session: Any) -> None:
        async with connected(client, await do(realm.listen)) as other_session:
            channel = await do(session.channels.create, "orders")
            durable = await do(channel.durables.create, "d", type=kind)
            await published(channel, 3)
            seat = durable.subscribe()
            await do(seat.open)
            await received(seat, 3)
            theirs = await do((await do(other_session.channels.get, "orders")).durables.get, "d")
            thief = theirs.subscribe()
            if kind == "exclusive":
                with pytest.raises(penstock.DurableInUse):
                    await do(thief.open)
            else:
                await do(thief.open)
                for steal in (thief.ack, thief.rollback):
                    with pytest.raises(
                        penstock.IllegalState, match="only the subscription that holds it"
                    ):
                        await do(steal, [1])
            assert (await numbers(durable))[1:] == (3, 3, 0)
            await do(seat.ack, [0, 1, 2])
            assert (await numbers(durable))[1:] == (0, 0, 0)

    run(realm, client, live)


@pytest.mark.spec("D5", "D14")
@pytest.mark.parametrize(("kind", "client"), PAIRS)
def test_two_subscriptions_of_one_session_are_two_clients(
    realm: penstock.Realm, kind: str, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type=kind)
        one, two = durable.subscribe(), durable.subscribe()
        await do(one.open)
        if kind == "exclusive":
            with pytest.raises(penstock.DurableInUse):
                await do(two.open)
            await do(one.close)
            await do(two.open)
            await published(channel, 2)
            assert ids(await received(two, 2)) == [0, 1]
        else:
            await do(two.open)
            assert (await numbers(durable))[0] == 2
            await published(channel, 2)
            is_shared = kind == "shared"
            assert ids(await received(one, 1 if is_shared else 2)) == ([0] if is_shared else [0, 1])
            await do(one.close)
            again = await received(two, 2)
            assert set(ids(again)) == {0, 1}

    run(realm, client, live)


@pytest.mark.spec("D5")
@pytest.mark.parametrize(("kind", "client"), PAIRS)
def test_a_failing_handler_gives_the_event_back_and_is_reported(
    realm: penstock.Realm, kind: str, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durable = await do(channel.durables.create, "d", type=kind)
        reports: list[str] = []
        session.on_error(lambda error: reports.append(str(error)))
        seen: list[tuple[int, int]] = []

        def handle(event: Any) -> None:
            seen.append((event.event_id, event.redelivery_count))
            if event.event_id == 1 and seen.count((1, 0)) == 1 and not event.redelivered:
                raise ValueError("not today")

        handler = durable.subscribe(handle, auto_ack=True)
        await do(handler.open)
        await published(channel, 5)
        if kind in CUMULATIVE:  # it waits for the next subscribe, whatever is acknowledged since
            await eventually(lambda: reached(seen, 5))
            await do(handler.flush)
            assert seen == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
            await eventually(lambda: says(durable.info, "outstanding", 1))
            assert await numbers(durable) == (1, 1, 0, 0)
            assert await read(durable.browse()) == [1]
            await do(handler.close)
            handler = durable.subscribe(handle, auto_ack=True)
            await do(handler.open)
            await eventually(lambda: reached(seen, 6))
            assert seen[5:] == [(1, 0)]
        else:
            await eventually(lambda: reached(seen, 6))
            assert sorted(seen) == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]
        await eventually(lambda: says(durable.info, "outstanding", 0))
        await do(handler.close)
        assert reports == ["the handler of durable d failed on event 1: ValueError('not today')"]

    run(realm, client, live)


@pytest.mark.spec("D5")
@pytest.mark.parametrize("client", CLIENTS)
def test_many_subscriptions_of_one_session_each_get_everything(
    realm: penstock.Realm, client: str
) -> None:
    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders")
        durables = [await do(channel.durables.create, kind, type=kind) for kind in KINDS]
        seats = [durable.subscribe(auto_ack=True) for durable in durables]
        plain = [channel.subscribe() for _ in range(3)]
        for one in (*seats, *plain):
            await do(one.open)
        for _ in range(20):
            await published(channel, 5)

        for seat in seats:
            got: list[int] = []
            while len(got) < 100:
                batch = await do(seat.next_batch, WAIT_S)
                assert batch is not None
                got += ids(list(batch))
                await do(batch.ack)
            assert got == list(range(100))
        for subscription in plain:
            assert ids(await received(subscription, 100)) == list(range(100))
        await eventually(lambda: says(channel.info, "events", 0))

    run(realm, client, live)


@pytest.mark.spec("D6", "E6")
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("retain", [True, False])
def test_what_is_consumed_stays_where_the_channel_retains_it(
    realm: penstock.Realm, client: str, retain: bool
) -> None:
    """An event also stays on every channel for a connected subscriber that has not received it."""

    async def live(session: Any) -> None:
        channel = await do(session.channels.create, "orders", retain_consumed=retain)
        durable = await do(channel.durables.create, "d")
        slow = channel.subscribe()
        await do(slow.open)
        await published(channel, 5)
        for event in await do(durable.fetch, 5, WAIT_S):
            await do(event.ack)
        await do(durable.flush)
        assert ids(await received(slow, 5)) == list(range(5))
        await eventually(lambda: says(channel.info, "events", 5 if retain else 0))

        assert await read(channel.browse()) == (list(range(5)) if retain else [])
        replayed = channel.subscribe(start="earliest")
        await do(replayed.open)
        await published(channel, 1)
        expected = [*range(6)] if retain else [5]
        assert ids(await received(replayed, len(expected))) == expected
        assert (await do(durable.info)).outstanding == 1

    run(realm, client, live)
