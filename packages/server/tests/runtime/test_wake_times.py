"""When channels have to be looked at, whatever happens to them meanwhile."""

from __future__ import annotations

from packages.core.tests.plays import play_of
from penstock_core.channel.channel import ChannelMachine
from penstock_core.messages.durables import AddDurable
from penstock_core.messages.seats import TakeSeat
from penstock_core.messages.settlements import RollBack
from penstock_server.runtime.store.due_times import WakeTimes
from penstock_testing.play import Play, span


def channel_with_a_wait(delay_ms: int) -> Play:
    play = play_of(events=1)
    play.do(AddDurable("d", "shared"))
    play.do(TakeSeat("d", 1, "s1", window=1))
    play.do(RollBack(1, (span(0),), delay_ms=delay_ms))
    return play


def test_the_next_is_known_and_told_of_only_if_it_is_earlier() -> None:
    late, soon = channel_with_a_wait(500), channel_with_a_wait(100)
    channels: dict[int, ChannelMachine] = {1: late.channel, 2: soon.channel}
    times = WakeTimes()

    assert times.next(channels) is None
    assert times.note(1, late.channel.state.wakes_us)
    assert times.note(2, soon.channel.state.wakes_us)
    assert not times.note(2, soon.channel.state.wakes_us), "that is known"
    assert not times.note(1, late.channel.state.wakes_us)
    assert times.next(channels) == (soon.channel.state.wakes_us, 2)


def test_what_was_woken_is_forgotten_and_what_waits_again_is_noted() -> None:
    play = channel_with_a_wait(100)
    channels = {1: play.channel}
    times = WakeTimes()
    times.note(1, play.channel.state.wakes_us)
    play.wait(100)
    play.sweep()

    assert times.next(channels) is None
    play.offers()
    play.do(RollBack(1, (span(0),), delay_ms=300))
    assert times.note(1, play.channel.state.wakes_us)
    assert times.next(channels) == (play.now_us + 300_000, 1)


def test_a_later_time_takes_the_place_of_one_that_is_of_no_use() -> None:
    play = channel_with_a_wait(100)
    times = WakeTimes()
    times.note(1, play.channel.state.wakes_us)
    play.channel.state.wakes_us += 50_000

    assert times.next({1: play.channel}) == (play.channel.state.wakes_us, 1)
    assert times.next({}) is None, "the channel was deleted"
    assert times.next({1: play.channel}) is None


def test_channels_on_which_nothing_waits_are_not_noted() -> None:
    times = WakeTimes()

    assert not times.note(1, 0)
    assert times.next({1: play_of().channel}) is None
