"""A channel is opened without a turn of the writer while the writer is idle, and only once it is
stored."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from packages.server.tests.runtime.living import living
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameDoesNotExist, StorageFailed
from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

KEPT = Definition(type="persistent")


class HeldJournal(MemoryJournal):
    """A journal whose appends wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.room = asyncio.Event()
        self.room.set()
        self.fails = False

    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        await self.room.wait()
        if self.fails:
            raise StorageFailed("the disk is gone")
        return await super().append(expected, block, sync=sync)


@simulated
async def test_a_stored_channel_is_opened_without_waiting() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        number = (await realm.create_channel("orders", KEPT)).channel
        await pass_time(1)

        with pytest.raises(StopIteration) as opened:
            realm.open_channel("orders").send(None)

        assert opened.value.value.channel == number
        with pytest.raises(NameDoesNotExist):
            realm.open_channel("others").send(None)


@pytest.mark.parametrize("fails", [False, True])
@simulated
async def test_a_channel_is_opened_only_once_it_is_stored(fails: bool) -> None:
    journal = HeldJournal()
    loop = asyncio.get_running_loop()
    breaks = StorageFailed if fails else None
    async with living(journal, MemoryBlobs(), breaks=breaks) as realm:
        await realm.create_channel("orders", KEPT)
        await pass_time(1)
        journal.room.clear()
        creating = loop.create_task(realm.create_channel("others", KEPT))
        await pass_time(1)
        opening = loop.create_task(realm.open_channel("others"))
        await pass_time(1)
        assert not opening.done(), "the channel is in memory, and its fact is not stored"
        journal.fails = fails
        journal.room.set()
        await asyncio.wait([creating, opening])

        if fails:
            assert isinstance(creating.exception(), StorageFailed)
            assert isinstance(opening.exception(), StorageFailed)
            with pytest.raises(StorageFailed):
                await realm.open_channel("orders")
        else:
            assert opening.result() == creating.result()
