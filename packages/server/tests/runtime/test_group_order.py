"""Requests put first begin the next group, even if an earlier group has left requests behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import pytest

from packages.server.tests.runtime.living import Reader, body, living
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.ports import Buffer
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.writer.requests import Reply
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated


class SlowJournal(MemoryJournal):
    """A journal that takes a moment to reserve room, during which other requests may arrive."""

    meanwhile: Callable[[], None] | None = None

    async def reserve(self, size: int) -> None:
        await super().reserve(size)
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
            await pass_time(0.001)


class WatchedJournal(MemoryJournal):
    """A journal that calls :attr:`on_append` before it writes."""

    on_append: Callable[[], None] = staticmethod(lambda: None)

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        self.on_append()
        return await super().append(expected, block, sync=sync)


@pytest.mark.spec("D8")
@pytest.mark.parametrize("sync", ["group", "none"])
@simulated
async def test_an_acknowledged_window_is_filled_before_the_append_with_older_events(
    sync: Literal["group", "none"],
) -> None:
    journal, reader = WatchedJournal(), Reader()
    async with living(journal, MemoryBlobs()) as realm:
        definition = Definition(type="persistent", storage=Storage(sync=sync))
        number = (await realm.create_channel("orders", definition)).channel
        subscriptions = realm.subscriptions
        start = FromEarliest()
        await subscriptions.create_durable(
            number, "d", "shared", start=start, selector="", persistent=True
        )
        done: asyncio.Queue[object] = asyncio.Queue()
        reply: Reply = lambda answer, _: done.put_nowait(answer)  # noqa: E731
        realm.publish(number, [body([b"0", b"1", b"2"])], "", sequence=0, reply=reply)
        await done.get()
        seat = await subscriptions.attach(number, "d", reader, window=2, pull=False)
        await pass_time(0.01)
        before: list[int] = []
        journal.on_append = lambda: before.extend(reader.ids)
        subscriptions.settle(seat.number, (Span(0, 2),), reply, roll_back=False, previous=False)
        realm.publish(number, [body([b"3", b"4"])], "", sequence=0, reply=reply)
        await done.get()
        await done.get()
        journal.on_append = lambda: None
        await pass_time(0.01)
        assert (before, reader.ids) == ([0, 1, 2], [0, 1, 2, 3])


@simulated
async def test_a_snapshot_request_comes_before_the_rest_of_a_group_that_closed_early() -> None:
    journal, blobs = SlowJournal(), MemoryBlobs()
    async with living(journal, blobs) as realm, asyncio.TaskGroup() as group:
        alone = Definition(type="persistent", storage=Storage(sync_each_write=True))
        first = (await realm.create_channel("alone", alone)).channel
        second = (await realm.create_channel("orders", Definition())).channel
        spans: asyncio.Queue[Span] = asyncio.Queue()
        snapshots: list[asyncio.Task[None]] = []
        journal.meanwhile = lambda: snapshots.append(group.create_task(realm.snapshot()))
        for number in (first, second, second):
            realm.publish(
                number, [body([b"x"])], "", sequence=0, reply=lambda span, _: spans.put_nowait(span)
            )
        stored = [await spans.get() for _ in range(3)]
        await snapshots[0]
        assert (stored, len(await blobs.list("snapshots/"))) == (
            [Span(0, 1), Span(0, 1), Span(1, 2)],
            2,
        )
