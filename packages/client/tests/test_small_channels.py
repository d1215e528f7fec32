"""A channel with a lower capacity than the events of one publish: connected subscribers get all of
them."""

from __future__ import annotations

from typing import Any

import pytest

import penstock

SENT, AT_ONCE = 5_000, 2_500


@pytest.mark.spec("T3", "J2")
@pytest.mark.parametrize("type", ["persistent", "reliable", "off_heap", "paged"])
@pytest.mark.parametrize("engine", ["default", "jms"])
def test_a_subscriber_gets_every_event_of_a_pipelined_producer(type: Any, engine: Any) -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        small = session.channels.create("small", type=type, engine=engine, capacity=10)
        with small.subscribe(start="earliest", timeout=10) as subscription:
            got: list[bytes] = []
            for first in range(0, SENT, AT_ONCE):  # as many as it has credit for
                with small.producer() as producer:
                    for number in range(first, first + AT_ONCE):
                        producer.send(b"%d" % number)
                while len(got) < first + AT_ONCE:
                    batch = subscription.next_batch()
                    assert batch is not None, f"{len(got)} came"
                    got += [event.data for event in batch]

        assert got == [b"%d" % number for number in range(SENT)]
        counters = small.info().counters
        assert counters.published == small.info().events + counters.evicted + counters.dropped


@pytest.mark.spec("T3", "D7")
def test_a_durable_that_acknowledges_by_itself_gets_every_event_as_well() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        small = session.channels.create("small", capacity=10)
        durable = small.durables.create("d", type="exclusive")
        with durable.subscribe(timeout=10) as subscription:
            small.publish_many([penstock.Event(b"%d" % number) for number in range(500)])
            got: list[bytes] = []
            while len(got) < 500 and (batch := subscription.next_batch()) is not None:
                got += [event.data for event in batch]
                batch.ack()

        assert got == [b"%d" % number for number in range(500)]
        assert durable.info().outstanding == 0
        assert small.info().events == 0
