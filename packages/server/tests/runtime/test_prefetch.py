"""Prefetched events are the same as those that a delivery would read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import EAGER, Reader, body, living, publish, sealed
from penstock_core.columns.events.batch import ids_of
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery.prefetch import ReadAhead
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

STORED = Definition(type="persistent", retain_consumed=True)
WINDOW = 10
LATE = SealingLimits()


class Client(Reader):
    """An outlet with a window that takes the bytes of events, as a connection does."""

    def deliver(self, rows: OutgoingBatch, redeliveries: Any) -> None:
        assert rows.body
        super().deliver(rows, redeliveries)

    @property
    def got(self) -> list[list[int]]:
        return [ids_of(batch).tolist() for batch in self.batches]


class Noting(ReadAhead):
    """A prefetch that records the deliveries that were prefetched."""

    def __init__(self, realm: RunningRealm, **limits: int) -> None:
        super().__init__(**limits)
        self.used: list[Span] = []
        realm.dispatch.ahead = self

    def take(self, channel_id: int, spans: Spans) -> Sequence[OutgoingBatch] | None:
        rows = super().take(channel_id, spans)
        if rows is not None:
            self.used.extend(spans)
        return rows


async def windows(realm: RunningRealm, client: Client, count: int, name: str = "d") -> Any:
    """Attach, and acknowledge ``count`` windows one after the other."""
    seat = await realm.subscriptions.attach(ChannelId(1), name, client, window=WINDOW, pull=False)
    await pass_time(0.01)
    for _ in range(count):
        await acknowledged(realm, seat.number, client.batches[-1])
    return seat.number


async def acknowledged(realm: RunningRealm, seat: int, batch: Any, *, back: bool = False) -> None:
    ids = ids_of(batch).tolist()
    realm.subscriptions.settle(
        seat, (Span(ids[0], ids[-1] + 1),), lambda _, error: None, roll_back=back, previous=False
    )
    await pass_time(0.01)


async def backlog(realm: RunningRealm, definition: Definition = STORED, events: int = 60) -> None:
    await realm.create_channel("orders", definition)
    subscriptions = realm.subscriptions
    await subscriptions.create_durable(
        ChannelId(1), "d", "shared", start=FromEarliest(), selector="", persistent=None
    )
    for first in range(0, events, 15):
        await publish(realm, ChannelId(1), body([b"%d" % n for n in range(first, first + 15)], n=1))


def ten(first: int) -> list[int]:
    return list(range(first, first + WINDOW))


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.spec("D5")
@simulated
async def test_the_third_window_is_prefetched_during_the_second(in_files: bool) -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=EAGER if in_files else LATE) as realm:
        ahead = Noting(realm)
        await backlog(realm)
        if in_files:
            await sealed(realm, "orders")
        client = Client()
        await windows(realm, client, 5)
        assert client.got == [ten(first) for first in range(0, 60, WINDOW)]
        datas = [data for batch in client.batches for data in batch.column("data").to_pylist()]
        assert datas == [b"%d" % n for n in range(60)]
    # Of files only what is in open ones: here each publish has one.
    assert [span.first for span in ahead.used] == ([20, 50] if in_files else [20, 30, 40, 50])


@pytest.mark.spec("D5")
@simulated
async def test_rolled_back_events_come_before_prefetched_ones() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        ahead = Noting(realm)
        await backlog(realm)
        client = Client()
        seat = await windows(realm, client, 2)
        await acknowledged(realm, seat, client.batches[-1], back=True)
        assert client.got[-2:] == [ten(20), ten(20)]
        assert ahead.used == [Span(20, 30)]


@pytest.mark.spec("T9")
@simulated
async def test_purged_events_are_not_delivered_from_the_prefetch() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        await backlog(realm)
        client = Client()
        seat = await windows(realm, client, 2)
        await realm.subscriptions.purge(ChannelId(1), 35, 39, selector="")
        await acknowledged(realm, seat, client.batches[-1])
        assert [*chain.from_iterable(client.got[3:])] == [*range(30, 35), *range(40, 45)]


@simulated
async def test_a_deleted_channel_has_no_prefetched_events() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        await backlog(realm)
        await windows(realm, Client(), 2)
        ahead = realm.dispatch.ahead
        assert (len(ahead), ahead.predicted) == (1, {})
        await realm.delete_channel("orders")
        assert len(ahead) == 0


@simulated
async def test_the_last_few_of_a_backlog_are_not_guessed() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        ahead = Noting(realm)
        await backlog(realm, events=45)
        client = Client()
        await windows(realm, client, 4)
        assert client.got[-1] == list(range(40, 45))
        assert ahead.used == [Span(20, 30), Span(30, 40)]


@pytest.mark.parametrize("kind", ["paged", "off_heap"])
@simulated
async def test_paged_events_are_not_prefetched(kind: str) -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        ahead = Noting(realm)
        await backlog(realm, replace(STORED, type=kind))
        client = Client()
        await windows(realm, client, 4)
        assert client.got == [ten(first) for first in range(0, 50, WINDOW)]
    assert ahead.used == []


@simulated
async def test_events_of_large_batches_in_memory_are_not_prefetched() -> None:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=LATE) as realm:
        ahead = Noting(realm, batch_bytes_max=100)
        await backlog(realm)
        client = Client()
        await windows(realm, client, 5)

        assert client.got == [ten(first) for first in range(0, 60, WINDOW)]
    assert ahead.used == []


def test_prefetched_events_and_channels_are_limited() -> None:
    ahead = ReadAhead(channels_max=2, bytes_max=1_000)
    small, large = made(10), made(1_001)
    for first in (0, 10):
        for number in (1, 2, 3):
            ahead.delivered(number, (Span(first, first + 10),), [small])
    assert len(ahead) == 2
    ahead.delivered(3, (Span(20, 30),), [large])
    assert len(ahead) == 1
    ahead.delivered(
        2, (Span(20, 30),), [OutgoingBatch((Span(20, 30),))]
    )  # a selector chose some of them
    assert len(ahead) == 0


class Sized(OutgoingBatch):
    """Rows whose body was made, of a given size."""

    def __init__(self, spans: Spans, made_bytes: int) -> None:
        super().__init__(spans)
        self._made_bytes = made_bytes

    @property
    def made_bytes(self) -> int:
        return self._made_bytes


def made(size: int) -> OutgoingBatch:
    return Sized((Span(0, 10),), size)
