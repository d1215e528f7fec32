"""What begins a group begins it, though an earlier one has left work behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from penstock.core.ids import Span
from penstock.core.messages import Definition, Storage
from penstock.storage.memory import MemoryBlobs, MemoryJournal
from penstock.testing.loop import pass_time, simulate
from tests.runtime.living import body, living


class SlowJournal(MemoryJournal):
    """Making room takes a moment, in which something else may be asked for."""

    meanwhile: Callable[[], None] | None = None

    async def reserve(self, size: int) -> None:
        await super().reserve(size)
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
            await pass_time(0.001)


def test_a_snapshot_asked_for_while_a_group_closes_early_comes_before_what_is_left() -> None:
    async def life() -> tuple[list[Span], int]:
        journal, blobs = SlowJournal(), MemoryBlobs()
        async with living(journal, blobs) as realm, asyncio.TaskGroup() as group:
            alone = Definition(type="persistent", storage=Storage(sync_each_write=True))
            first = (await realm.create_channel("alone", alone)).channel
            second = (await realm.create_channel("orders", Definition())).channel
            spans: asyncio.Queue[Span] = asyncio.Queue()
            snapshots: list[asyncio.Task[None]] = []
            journal.meanwhile = lambda: snapshots.append(group.create_task(realm.snapshot()))
            for number in (first, second, second):
                realm.publish(number, [body([b"x"])], "", 0, lambda span, _: spans.put_nowait(span))
            stored = [await spans.get() for _ in range(3)]
            await snapshots[0]
            return stored, len(await blobs.list("snapshots/"))

    assert simulate(life(), Random(1)) == ([Span(0, 1), Span(0, 1), Span(1, 2)], 1)
