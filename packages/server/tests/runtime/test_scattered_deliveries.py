"""Scattered events, in files and in memory, are sent as one delivery."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.living import Reader, body, living, publish, sealed
from penstock_core.columns.events.batch import ids_of
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery.delivery import Redeliveries
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

EVENTS = 30
STORED = Definition(type="persistent", retain_consumed=True)


class Client(Reader):
    """An outlet that keeps redeliveries, too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[Redeliveries] = []

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        super().deliver(rows, redeliveries)
        self.counts.append(redeliveries)

    @property
    def frames(self) -> list[list[int]]:
        return [ids_of(batch).tolist() for batch in self.batches]


@pytest.mark.spec("D5")
@simulated
async def test_scattered_rolled_back_events_are_delivered_together_with_new_ones() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("orders", STORED)
        subscriptions = realm.subscriptions
        await subscriptions.create_durable(
            ChannelId(1), "d", "shared", start=FromEarliest(), selector="", persistent=None
        )
        for first in range(0, EVENTS, 10):
            await publish(
                realm, ChannelId(1), body([b"%d" % n for n in range(first, first + 10)], n=1)
            )
        await sealed(realm, "orders")
        client = Client()
        seat = await subscriptions.attach(ChannelId(1), "d", client, window=EVENTS, pull=False)
        await pass_time(0.1)
        scattered = (Span(2, 3), Span(5, 7), Span(14, 15), Span(28, 29))
        kept = [n for n in range(EVENTS) if not any(a <= n < end for a, end in scattered)]
        client.batches.clear()
        client.counts.clear()

        spans = tuple(Span(n, n + 1) for n in kept)
        ignore = lambda answer, error: None  # noqa: E731
        subscriptions.settle(seat.number, spans, ignore, roll_back=False, previous=False)
        subscriptions.settle(seat.number, scattered, ignore, roll_back=True, previous=False)
        await publish(realm, ChannelId(1), body([b"30", b"31"], n=1))
        await pass_time(0.1)

        assert client.frames == [[2, 5, 6, 14, 28, 30, 31]]
        assert client.counts[0] == ((1, scattered),)
        assert client.batches[0].column("data").to_pylist()[:5] == [
            b"2", b"5", b"6", b"14", b"28"
        ]  # fmt: skip
