"""The places of subscriptions that may resume: one subscription each, the newest."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.resume_places import ResumePlaces

pytestmark = pytest.mark.spec("J5")

CHANNEL, OTHER = ChannelId(1), ChannelId(2)


def test_a_place_belongs_to_the_newest_subscription() -> None:
    places = ResumePlaces()

    assert places.take(CHANNEL, "mine", 10) is None
    assert places.take(OTHER, "mine", 11) is None
    assert places.take(CHANNEL, "mine", 12) == 10

    assert 10 not in places
    assert 11 in places
    assert 12 in places
    assert 13 not in places


def test_an_expired_place_is_forgotten_and_can_be_taken_again() -> None:
    places = ResumePlaces()
    places.take(CHANNEL, "mine", 10)
    places.take(OTHER, "mine", 11)

    places.forget({}, are_open={11})

    assert 10 not in places
    assert 11 in places
    assert places.take(CHANNEL, "mine", 12) is None
    assert places.take(OTHER, "mine", 13) == 11
