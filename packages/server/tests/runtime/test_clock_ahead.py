"""A realm that starts with the right clock after a start whose clock was ahead."""

from __future__ import annotations

import asyncio

import pytest

from packages.server.tests.runtime.lives import ENDS, End, Lives, named
from packages.server.tests.runtime.living import Reader, body, events, living, publish
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromTime
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import SimLoop, pass_time, simulated

HOUR_US = 3_600_000_000


class Ahead:
    """A clock that is an hour ahead of the loop's."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return self._loop.now_us() + HOUR_US

    def steady_us(self) -> int:
        return self._loop.steady_us()


async def since(realm: RunningRealm, at_us: int) -> list[int]:
    reader = Reader()
    start = FromTime(at_us)
    await realm.subscriptions.subscribe(ChannelId(1), start, reader, credit=100, browse=True)
    await reader.at_end.wait()
    return reader.ids


@pytest.mark.spec("T1", "E6")
@simulated
async def test_ttls_and_starts_by_time_are_right_at_once() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs, clock=Ahead(loop)) as realm:
        await realm.create_channel("orders", Definition(type="persistent", ttl=30_000))
        await publish(realm, ChannelId(1), body([b"future"]))
    async with living(journal, blobs) as realm:
        await pass_time(10.0)
        at_us = loop.now_us()
        await publish(realm, ChannelId(1), body([b"now"]))

        assert await since(realm, at_us) == [1]
        await pass_time(20.5)
        assert list(await events(realm, ChannelId(1))) == [1]
        await pass_time(10.0)
        assert not await events(realm, ChannelId(1))


class Apart:
    """A clock that is ahead of the loop's by so much, which changes between two lives."""

    ahead_s = 0.0

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return self._loop.now_us() + int(self.ahead_s * 1_000_000)

    def steady_us(self) -> int:
        return self._loop.steady_us()


@pytest.mark.spec("D18")
@pytest.mark.parametrize("end", ENDS)
@simulated
async def test_a_delay_has_its_length_even_if_the_clock_is_set(end: End) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    clock = Apart(loop)
    lives = Lives(clock=clock)
    clock.ahead_s = 3_600
    async with lives.life(end):
        await lives.create("orders")
        await lives.durable("orders", "team")
        await lives.put("orders", *named("a", "b"))
        worker = await lives.attach("orders", "team")
        await worker.has(2)
        first_s = loop.time() + 5
        await worker.settle(0, back=True, delay_ms=5_000)
        await pass_time(2)
    clock.ahead_s = 0
    async with lives.life(end):
        second_s = loop.time() + 3
        worker = await lives.attach("orders", "team")
        await worker.has(1)
        await worker.settle(1, back=True, delay_ms=3_000)
        await pass_time(1)
    clock.ahead_s = -0.1
    async with lives.life(end):
        last_s = loop.time() + 5
        worker = await lives.attach("orders", "team")
        await pass_time(second_s - loop.time() - 0.01)
        assert worker.outlet.ids == []
        await worker.has(2)
        assert first_s <= second_s <= loop.time() <= last_s
        assert sorted(worker.outlet.ids) == [0, 1]
