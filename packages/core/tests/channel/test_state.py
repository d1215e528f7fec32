"""The time at which a channel needs a sweep."""

from __future__ import annotations

from packages.core.tests.plays import durable_play, play_of
from penstock_core.messages.settlements import Ack
from penstock_testing.play import publish, span


def test_a_channel_without_limits_needs_no_sweep() -> None:
    play = play_of(events=3)
    play.wait(10_000_000)

    assert not play.channel.needs_sweep(play.now_us)


def test_a_channel_with_a_ttl_needs_one_when_its_oldest_is_due() -> None:
    play = play_of(ttl=10, events=1)
    play.wait(9)
    assert not play.channel.needs_sweep(play.now_us)
    play.wait(1)

    assert play.channel.needs_sweep(play.now_us)


def test_a_channel_whose_events_have_all_expired_needs_none() -> None:
    play = play_of(ttl=10, events=1)
    play.wait(10)
    play.sweep()

    assert not play.channel.needs_sweep(play.now_us)


def test_an_ack_may_leave_something_to_remove() -> None:
    play = durable_play("shared", 5)
    play.do(publish(1))
    decided = play.channel.decide(Ack(1, (span(0),)), play.now_us)
    for fact in decided.facts:
        play.channel.apply(fact)

    assert play.channel.needs_sweep(play.now_us)
    play.sweep()
    assert not play.channel.needs_sweep(play.now_us)
