"""Which deliveries are counted when the realm itself ends (SEM E9, D13)."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from packages.server.tests.runtime.lives import ENDS, End, Lives, named
from penstock_testing.loop import simulated


@pytest.mark.spec("E9", "D13", "D4")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", ["shared", "serial"])
@simulated
async def test_counts_given_outlive_any_end_and_what_was_in_hands_adds_nothing(
    kind: str, end: End
) -> None:
    lives = Lives()
    async with lives.life(end):
        await lives.create("orders")
        await lives.durable("orders", "team", kind)
        await lives.put("orders", *named(*"abcd"))
        first_client = await lives.attach("orders", "team", window=2)
        assert await first_client.has(2)
        await first_client.settle(0, back=True)  # counted: rolled back
        await first_client.has(3)
        await first_client.leave()  # counted: the client that held 0 and 1 went
        worker = await lives.attach("orders", "team", window=3)
        events = await worker.has(3)
        assert [(e.event_id, e.redelivery_count) for e in events] == [(0, 2), (1, 1), (2, 0)]
    for _ in range(2):
        async with lives.life(end):
            worker = await lives.attach("orders", "team", window=9)
            events = await worker.has(4)
            assert [event.redelivery_count for event in events] == [2, 1, 0, 0]
            assert [event.redelivered for event in events] == [True, True, False, False]


@pytest.mark.spec("E9", "D13", "Q3")
def test_an_orderly_end_takes_events_from_clients_as_their_leaving_would(tmp_path: Path) -> None:
    realm = penstock.Realm(tmp_path)
    session = realm.connect()
    orders, work = session.channels.create("orders"), session.queues.create("work")
    orders.publish_many([penstock.Event()] * 3)
    work.push_many([penstock.Event()] * 3)
    assert len(orders.durables.create("team").fetch(2, 1.0)) == 2
    assert len(work.reader(transactional=True).open().fetch(1, 1.0)) == 1
    realm.close()

    with penstock.Realm(tmp_path) as again, again.connect() as session:
        fetched = session.channels.get("orders").durables.get("team").fetch(3, 1.0)
        read = session.queues.get("work").reader(transactional=True).open().fetch(3, 1.0)
        assert [event.redelivery_count for event in fetched] == [1, 1, 0]
        assert [event.redelivery_count for event in read] == [1, 0, 0]
