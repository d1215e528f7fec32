"""While a cluster can store nothing, AMQP clients are told why, those that are there and those that
come."""

from __future__ import annotations

import pytest

import penstock
from packages.amqp.tests.dialogue import Dialogue, begin, opening
from packages.amqp.tests.frames import BEGIN, CLOSE, OPEN
from penstock_core.vocabulary.errors import NoQuorum

REASON = ("amqp:connection:forced", "no-quorum: for the test")


@pytest.mark.spec("N2")
def test_whoever_is_there_and_whoever_comes_hears_why(realm: penstock.Realm) -> None:
    url, listener = realm.listen_amqp(), realm.listener

    async def suspend() -> None:
        listener.suspend(NoQuorum("for the test"))

    async def resume() -> None:
        listener.resume()

    with Dialogue(url) as connected:
        connected.say(opening())
        assert connected.hear(OPEN).code == OPEN
        realm.loop.call(suspend())

        assert connected.hear(CLOSE).error == REASON
        with Dialogue(url) as comes:
            comes.say(opening())
            assert comes.hear(OPEN).code == OPEN
            assert comes.hear(CLOSE).error == REASON
    realm.loop.call(resume())
    with Dialogue(url) as again:
        again.say(opening(), begin())
        again.hear(OPEN)
        assert again.hear(BEGIN).code == BEGIN
