"""The promises of MQTT hold while owners of a cluster end one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_mqtt.durable_feed import DurableFeed
from penstock_mqtt.session_store import SessionStore, StoredEntries
from tests.sim.mqtt_failovers import devices_of_a_cluster
from tests.sim.mutants import first_noticed

LIVES_MAX = 10
"""Number of seeds within which a mistake is noticed."""


@pytest.mark.slow
@pytest.mark.spec("M13", "M2", "M6", "M7", "M8", "N3", "N4")
@pytest.mark.parametrize("seed", [4, 18])
def test_devices_get_what_they_were_promised_whoever_owns_the_realm(seed: int) -> None:
    world = devices_of_a_cluster(seed)

    assert world.failures.keys() == {"killed", "handed over", "moved by force", "relays cut"}


# --- mistakes ----------------------------------------------------------------------------


def sessions_stay_behind(patch: pytest.MonkeyPatch) -> None:
    """Let the next owner begin without sessions."""

    async def nothing(store: SessionStore) -> StoredEntries:
        await store.open_channel()
        return StoredEntries({}, {}, {})

    patch.setattr(SessionStore, "load", nothing)


def seats_that_are_left_give_on(patch: pytest.MonkeyPatch) -> None:
    """Deliver to the next connection the events of a seat whose connection has ended."""
    patch.setattr(DurableFeed, "deliver", lambda feed, rows, _: feed.give(rows))


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [sessions_stay_behind, seats_that_are_left_give_on])
def test_a_mistake_of_owners_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)

    noticed = first_noticed(devices_of_a_cluster, range(LIVES_MAX))

    assert noticed is not None
    assert noticed.complaint.startswith("AssertionError")
