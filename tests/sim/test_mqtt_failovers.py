"""What MQTT promises, over owners of a cluster that end one after the other."""

from __future__ import annotations

import pytest

from tests.sim.mqtt_failovers import devices_of_a_cluster


@pytest.mark.slow
@pytest.mark.spec("M13", "M2", "M6", "M7", "M8", "N3", "N4")
@pytest.mark.parametrize("seed", [2, 6])
def test_devices_get_what_they_were_promised_whoever_owns_the_realm(seed: int) -> None:
    world = devices_of_a_cluster(seed)

    assert world.happened.keys() == {"killed", "handed over", "moved by force", "relays cut"}
