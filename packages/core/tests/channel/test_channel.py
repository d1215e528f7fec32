"""The methods of a channel call the functions of its modules."""

from __future__ import annotations

from packages.core.tests.plays import play_of
from penstock_core.channel import offer, recovery
from penstock_core.messages.subscribers import AddSubscriber
from penstock_testing.play import publish


def test_a_channel_says_what_its_modules_say() -> None:
    channel = play_of(type="reliable", events=2).channel

    assert channel.snapshot() == recovery.snapshot(channel.state)
    assert channel.closing() == recovery.closing(channel.state)
    assert len(channel.closing()) == 1


def test_an_offer_is_made_once_something_has_happened() -> None:
    play = play_of(events=1)
    assert not play.channel.has_offers
    play.channel.attend(AddSubscriber(1, "s", 0, credit=1), play.now_us)

    assert play.channel.has_offers
    assert len(list(offer.offer(play.channel.state))) == 1
    assert play.do(publish(1)) == []
