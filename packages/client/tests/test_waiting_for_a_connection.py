"""Calls that are made without a connection wait for the next one, and are executed once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.aio
from packages.client.tests.patience import eventually
from penstock.client.sync.sync import Channel, Session
from penstock_testing.relay import Relay
from tests.loops import on_a_loop

pytestmark = pytest.mark.slow

WAIT_S = 30.0
Call = Callable[[Session, Channel, Path], object]


@pytest.fixture
def session(relay: Relay) -> Iterator[Session]:
    with penstock.connect(relay.url) as session:
        yield session


@pytest.fixture
def stocked(session: Session) -> Channel:
    """Ten events on a channel that has a durable, and a queue with two."""
    orders = session.channels.create("orders")
    orders.durables.create("d")
    orders.durables.create("alone", type="exclusive")
    orders.publish_many([penstock.Event(b"%d" % n) for n in range(10)])
    session.queues.create("work").push_many([penstock.Event(b"w"), penstock.Event(b"x")])
    session.channels.create("dead")
    return orders


CALLS: dict[str, tuple[Call, object]] = {
    "info": (lambda s, o, _: o.info().events, 10),
    "list": (lambda s, o, _: s.channels.list(), ["dead", "orders"]),
    "create": (lambda s, o, _: s.channels.create("new").name, "new"),
    "delete": (lambda s, o, _: s.channels.delete("dead"), None),
    "edit": (lambda s, o, _: o.edit(ttl=1_000_000), None),
    "purge": (lambda s, o, _: o.purge(start=3, end=4), 2),
    "browse": (lambda s, o, _: [e.event_id for e in o.browse(start=8)], [8, 9]),
    "read": (lambda s, o, _: o.read(start=8).num_rows, 2),
    "subscribe": (lambda s, o, _: _first(o.subscribe(start=9)), 9),
    "create a durable": (lambda s, o, _: o.durables.create("e").name, "e"),
    "purge a durable": (lambda s, o, _: o.durables.get("d").purge(start=0, end=1), 2),
    "browse a durable": (lambda s, o, _: len(list(o.durables.get("d").browse())), 10),
    "unbind": (lambda s, o, _: o.durables.get("d").unbind(), 0),
    "attach": (lambda s, o, _: _first(o.durables.get("alone").subscribe()), 0),
    "fetch": (lambda s, o, _: len(o.durables.get("d").fetch(3, 1.0)), 3),
    "open a reader": (lambda s, o, _: _first(s.queues.get("work").reader()), 0),
    "pop": (lambda s, o, _: s.queues.get("work").pop(WAIT_S).data, b"w"),  # type: ignore[union-attr]  # there is one
    "peek": (lambda s, o, _: len(s.queues.get("work").peek()), 2),
    "join": (lambda s, o, _: s.joins.create("orders", "work").destination, "work"),
    "redrive": (lambda s, o, _: s.redrive("dead").destinations, {}),
    "cancel": (lambda s, o, _: o.scheduled.cancel(0), False),
    "export": (lambda s, o, folder: s.channels.export("orders", folder).events, 10),
}


def _first(subscription: Any) -> int:
    with subscription as opened:
        batch = opened.next_batch(WAIT_S)
        return int(batch.event_ids[0])


def unplug(relay: Relay, session: Session) -> None:
    """Cut the connection, and wait until the session has noticed."""
    relay.close_door()
    relay.cut()
    eventually(lambda: not session.is_connected)


@pytest.mark.spec("X3")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_made_without_a_connection_waits_for_the_next_and_is_done_once(
    relay: Relay, session: Session, stocked: Channel, name: str, tmp_path: Path
) -> None:
    call, expected = CALLS[name]
    unplug(relay, session)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, session, stocked, tmp_path / "export")
        relay.open_door()

        assert waiting.result(WAIT_S) == expected


@pytest.mark.spec("X3")
def test_a_call_outlives_a_connection_that_is_lost_before_it_is_made(
    relay: Relay, session: Session, stocked: Channel, direct_session: Session
) -> None:
    unplug(relay, session)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(stocked.purge, start=0, end=4)
        relay.hold_answers()
        request_bytes = relay.request_bytes
        relay.open_door()
        eventually(lambda: relay.request_bytes > request_bytes)
        relay.cut()  # the realm has been greeted, and its welcome did not come
        relay.release_answers()

        assert waiting.result(WAIT_S) == 5
    assert direct_session.channels.get("orders").info().counters.purged == 5


@pytest.mark.spec("X3")
@on_a_loop
async def test_a_call_cancelled_before_it_was_sent_is_never_done(
    relay: Relay, direct_session: Session
) -> None:
    async with penstock.aio.connect(relay.url) as session:
        relay.close_door()
        relay.cut()
        await asyncio.to_thread(eventually, lambda: not session.is_connected)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await session.channels.create("given-up")
        relay.open_door()
        await session.channels.create("later")

    assert await asyncio.to_thread(direct_session.channels.list) == ["later"]


@pytest.mark.parametrize("name", ["browse", "attach", "open a reader", "peek", "browse a durable"])
def test_an_opening_whose_answer_is_lost_is_asked_again(
    relay: Relay, session: Session, stocked: Channel, name: str
) -> None:
    durable, queue = stocked.durables.get("d"), session.queues.get("work")
    openings: dict[str, tuple[Callable[[], Any], object]] = {
        "browse": (lambda: [event.event_id for event in stocked.browse(start=8)], [8, 9]),
        "attach": (lambda: _first(durable.subscribe()), 0),
        "open a reader": (lambda: _first(queue.reader()), 0),
        "peek": (lambda: len(queue.peek()), 2),
        "browse a durable": (lambda: len(list(durable.browse())), 10),
    }
    opening, expected = openings[name]
    relay.hold_answers()
    with ThreadPoolExecutor(1) as pool:
        request_bytes = relay.request_bytes
        waiting = pool.submit(opening)
        eventually(lambda: relay.request_bytes > request_bytes)
        relay.cut()
        relay.release_answers()

        assert waiting.result(WAIT_S) == expected


@pytest.mark.spec("D13")
def test_an_acknowledgement_does_not_wait_its_event_is_the_realms_again(
    relay: Relay, session: Session, stocked: Channel
) -> None:
    with stocked.durables.get("d").subscribe(window=1) as subscription:
        batch = subscription.next_batch(WAIT_S)
        assert batch is not None
        unplug(relay, session)
        with pytest.raises(penstock.ConnectionLost, match="the session is not connected"):
            subscription.ack([0])
        relay.open_door()
        again = subscription.next_batch(WAIT_S)

        assert again is not None
        assert [(event.event_id, event.redelivery_count) for event in again] == [(0, 1)]


def test_who_waits_for_a_realm_that_does_not_come_back_is_told(
    relay: Relay, realm: penstock.Realm
) -> None:
    with penstock.connect(relay.url, reconnect_timeout=0.2) as session:
        orders = session.channels.create("orders")
        unplug(relay, session)
        with pytest.raises(penstock.CannotConnect, match="the connection was lost, and no realm"):
            orders.purge()
        with pytest.raises(penstock.CannotConnect):
            list(orders.browse())
