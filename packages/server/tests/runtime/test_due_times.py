"""A sweep looks at channels where something has happened or time makes something due, and at no
others."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import Lives, named
from packages.server.tests.runtime.living import body, living
from packages.server.tests.runtime.living import publish as publish_to
from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.definitions import Edit
from penstock_core.messages.retention import Sweep
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.bootstrap import rules
from penstock_server.runtime.store.due_times import SweepTimes
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated
from penstock_testing.play import Play, publish
from tests.counting import counted_calls

pytestmark = pytest.mark.spec("T1")


def channel(ttl: int = 0) -> Play:
    return Play(ChannelMachine("orders", Definition(type="persistent", ttl=ttl), rules()))


def test_a_channel_is_looked_at_when_its_time_has_come() -> None:
    play = channel(ttl=1_000)
    times = SweepTimes({1: play.channel})
    play.do(publish(1))
    began_us = play.now_us
    times.touch([1])

    assert list(times.due(began_us)) == []
    assert list(times.due(began_us + 900_000)) == []
    assert list(times.due(began_us + 10_000_000)) == [1]
    assert list(times.due(began_us + 10_000_000)) == [1], "it was not swept yet"
    play.now_us = began_us + 10_000_000
    play.do(Sweep())
    assert list(times.due(began_us + 10_000_000)) == []
    assert list(times.due(began_us + 1_000_000_000)) == []


def test_a_shorter_time_counts_and_the_longer_one_does_not_any_more() -> None:
    play = channel(ttl=1_000_000)
    times = SweepTimes({1: play.channel})
    play.do(publish(1))
    began_us = play.now_us
    times.touch([1])
    assert list(times.due(began_us)) == []

    play.do(Edit(Definition(type="persistent", ttl=1_000)))
    times.touch([1])

    assert list(times.due(began_us)) == []
    assert list(times.due(began_us + 10_000_000)) == [1]


def test_channels_where_nothing_happens_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    plays = {number: channel(ttl=1_000) for number in range(100)}
    times = SweepTimes({number: play.channel for number, play in plays.items()})
    times.touch(plays)
    assert list(times.due(0)) == []
    looked: list[object] = []
    needs_sweep = ChannelMachine.needs_sweep

    def counted(machine: ChannelMachine, now_us: int) -> bool:
        looked.append(machine)
        return needs_sweep(machine, now_us)

    monkeypatch.setattr(ChannelMachine, "needs_sweep", counted)
    plays[7].do(publish(1))
    looked.clear()
    times.touch([7])

    assert list(times.due(plays[7].now_us)) == []
    assert looked == [plays[7].channel]


def test_a_channel_that_is_gone_is_not_due() -> None:
    play = channel(ttl=1_000)
    channels = {1: play.channel}
    times = SweepTimes(channels)
    play.do(publish(1))
    times.touch([1])
    assert list(times.due(play.now_us)) == []

    del channels[1]

    assert list(times.due(play.now_us + 10_000_000)) == []


@simulated
async def test_events_expire_after_a_restart_though_nobody_asks_for_them() -> None:
    lives = Lives()
    async with lives.life():
        await lives.create("orders", ttl=5_000)
        await lives.put("orders", *named("a", "b"))

    async with lives.life():
        state = lives.realm.directory.channels[lives.number("orders")].state
        assert len(state.stored) == 2
        await pass_time(10)

        assert len(state.stored) == 0


@pytest.mark.spec("D18")
def test_a_channel_is_looked_at_when_what_was_given_back_may_come_again() -> None:
    play = channel()
    times = SweepTimes({1: play.channel})
    play.channel.state.wake_by(5_000_000)
    times.touch([1])

    assert list(times.due(4_000_000)) == []
    assert list(times.due(5_000_000)) == [1]


@pytest.mark.spec("N6")
def test_a_channel_is_looked_at_when_nobody_waits_any_longer_for_absent_sessions() -> None:
    play = channel()
    state = play.channel.state
    state.awaits_seats = True
    times = SweepTimes({1: play.channel})
    times.touch([1])
    assert list(times.due(0)) == [1], "the waiting begins with a sweep"

    state.awaited_from_us, state.awaited_until_us = 1_000, 2_000
    assert list(times.due(1_000)) == []
    assert list(times.due(2_000)) == [1]


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
async def test_a_realm_in_which_nothing_happens_costs_as_little_with_many_channels() -> None:
    few, many = await calls_while_idle(5), await calls_while_idle(200)

    assert few > 100
    assert many - few < 200  # each of them looked at once were 195
