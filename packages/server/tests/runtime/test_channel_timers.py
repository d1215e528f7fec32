"""A channel is woken when something is due on it, and no other channel is read then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from packages.core.tests.plays import play_of
from packages.server.tests.runtime.lives import Lives, named
from packages.server.tests.runtime.living import body, living
from packages.server.tests.runtime.living import publish as publish_to
from penstock_core.channel.retention import NEVER_US
from penstock_core.messages.definitions import Edit
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.retention import Sweep
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import RollBack
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.channel_timers import REPLACED_MAX, RETRY_US, ChannelTimers
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import START_US, VirtualTimeLoop, pass_time, simulated
from penstock_testing.play import Play, publish, span
from tests.counting import counted_calls

pytestmark = pytest.mark.spec("T1")


def clock_us() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop.now_us()


class Writer:
    """Sweeps channels that are woken, as the writer does in its groups."""

    def __init__(self, plays: dict[int, Play]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self._loop, self._plays = loop, plays
        self.can_sweep = True
        self.woken: list[tuple[int, float]] = []
        """The woken channels, each with the seconds after which it was woken."""
        channels = {number: play.channel for number, play in plays.items()}
        self.channels = channels
        self.timers = ChannelTimers(channels, self._wake, loop, Incidents(), sweep_interval_s=1.0)

    def touch(self, *numbers: int) -> None:
        """Touch these channels, as a group that has changed them does."""
        self.timers.touch(numbers, self._loop.now_us())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = self._loop.create_task(self.timers.run())
        await pass_time(0.01)
        yield
        task.cancel()

    def _wake(self, number: int) -> None:
        self.woken.append((number, round(self._loop.elapsed_s, 2)))
        play = self._plays[number]
        play.now_us = self._loop.now_us()
        if self.can_sweep:
            play.do(Sweep())
        self._loop.call_soon(self.touch, number)


def delayed(delay_ms: int) -> Play:
    """A channel on which an event was rolled back."""
    play = play_of(events=1)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(RollBack(1, (span(0),), delay_ms=delay_ms))
    return play


@simulated
async def test_events_that_expire_within_an_interval_are_removed_together() -> None:
    play = play_of(ttl=1_300, events=1)
    play.wait(400)
    play.do(publish(1))
    writer = Writer({1: play})

    async with writer.running():
        await pass_time(10)

    assert writer.woken == [(1, 2.0)]
    assert not play.channel.state.stored


@simulated
async def test_a_channel_that_cannot_be_swept_is_woken_again() -> None:
    writer = Writer({1: play_of(ttl=500, events=1)})
    writer.can_sweep = False

    async with writer.running():
        await pass_time(3)
        writer.can_sweep = True
        await pass_time(10)

    assert writer.woken == [(1, 1.0), (1, 2.0), (1, 3.0), (1, 4.0)]


@simulated
async def test_an_earlier_wake_up_replaces_the_later_one() -> None:
    play = play_of(ttl=1_000_000, events=1)
    writer = Writer({1: play})

    async with writer.running():
        await pass_time(1)
        play.do(Edit(Definition(type="persistent", ttl=2_000)))
        writer.touch(1)
        await pass_time(5_000)

    assert writer.woken == [(1, 2.0)]


@pytest.mark.spec("D18", "X4")
@simulated
async def test_a_delay_and_a_schedule_are_kept_exactly() -> None:
    schedule = play_of(kind="schedule", event_ttl=True)
    schedule.do(publish(1, ttls=((420, (span(0),)),)))
    writer = Writer({1: delayed(150), 2: delayed(320), 3: schedule})

    async with writer.running():
        await pass_time(10)

    assert writer.woken == [(1, 0.15), (2, 0.32), (3, 0.42)]


@pytest.mark.spec("D18")
@simulated
async def test_a_sweep_that_fails_at_its_time_is_retried_soon() -> None:
    writer = Writer({1: delayed(150)})
    writer.can_sweep = False

    async with writer.running():
        await pass_time(0.15 + 1.5 * RETRY_US / 1e6)

    assert writer.woken == [(1, 0.15), (1, 0.25)]


@pytest.mark.spec("D18")
@simulated
async def test_a_time_before_those_of_all_channels_wakes_the_task_early() -> None:
    plays = {1: delayed(900), 2: play_of()}
    writer = Writer(plays)

    async with writer.running():
        await pass_time(0.1)
        plays[2].channel.state.wake_by(START_US + 400_000)
        writer.touch(2)
        await pass_time(2)

    assert writer.woken == [(2, 0.4), (1, 0.9)]


@pytest.mark.spec("N6")
@simulated
async def test_the_end_of_the_wait_for_absent_sessions_wakes_a_channel() -> None:
    play = play_of()
    state = play.channel.state
    state.awaits_seats, state.awaited_from_us = True, START_US
    state.awaited_until_us = START_US + 4_000_000
    writer = Writer({1: play})

    async with writer.running():
        await pass_time(10)

    assert writer.woken == [(1, 4.0)]


@simulated
async def test_a_deleted_channel_is_not_woken() -> None:
    writer = Writer({1: play_of(ttl=1_000, events=1)})

    async with writer.running():
        del writer.channels[1]
        await pass_time(10)

    assert writer.woken == []
    assert writer.timers.next_us == NEVER_US


@simulated
async def test_idle_channels_are_not_read() -> None:
    plays = {number: play_of(ttl=100_000, events=1) for number in range(100)}
    writer = Writer(plays)

    async with writer.running():
        with counted_calls("next_due_us") as calls:
            writer.touch(7)
            await pass_time(50)

    assert calls.count == 1


async def pops_until_expiry(delays: int) -> int:
    """Return the wake-ups until an event expires, after ``delays`` delays of the same channel."""
    play, began_us = play_of(ttl=1_000_000), clock_us()
    play.now_us = began_us
    play.do(publish(1))
    writer = Writer({1: play})
    async with writer.running():
        for tenth in range(delays):
            play.channel.state.wake_by(began_us + tenth * 100_000 + 50_000)
            writer.touch(1)
            await pass_time(0.1)
        with counted_calls("heappop") as calls:
            await pass_time(1_000)
    assert len(writer.woken) == delays + 1
    return calls.count


@simulated
async def test_replaced_wake_up_times_are_removed() -> None:
    few, many = await pops_until_expiry(2), await pops_until_expiry(3 * REPLACED_MAX)

    assert many - few < 2 * REPLACED_MAX


@simulated
async def test_events_expire_after_a_restart_without_any_request() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", ttl=5_000)
        await lives.put("orders", *named("a", "b"))

    async with lives.life():
        state = lives.realm.directory.channels[lives.number("orders")].state
        assert len(state.stored) == 2
        await pass_time(10)

        assert len(state.stored) == 0


async def calls_while_idle(channels: int) -> int:
    async with living(MemoryJournal(), MemoryBlobs(), sealing=SealingLimits()) as realm:
        for number in range(channels):
            await realm.create_channel(f"orders-{number}", Definition(type="persistent"))
            await publish_to(realm, ChannelId(number + 1), body([b"x"]))
        await pass_time(30)
        with counted_calls() as calls:
            await pass_time(30)
    return calls.count


@simulated
async def test_an_idle_realm_costs_the_same_with_many_channels() -> None:
    few, many = await calls_while_idle(5), await calls_while_idle(200)

    assert few > 100
    assert many - few < 200  # each of them looked at once were 195
