"""The record of a realm that is being moved into a cluster."""

from __future__ import annotations

import msgspec
import pytest

from penstock_cluster.owning.arriving import (
    ARRIVING_KEY,
    ArrivingRealm,
    arriving_in,
    refuse_half_a_realm,
)
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.storage.memory import MemoryRegistry
from penstock_testing.loop import simulated


@simulated
async def test_nobody_serves_a_realm_before_it_is_whole() -> None:
    registry = MemoryRegistry()
    await refuse_half_a_realm(registry)
    arriving = ArrivingRealm(realm="r", nonce="n", epoch=2, at_us=5)
    version = await registry.cas(ARRIVING_KEY, 0, msgspec.json.encode(arriving))

    with pytest.raises(IllegalState, match="the realm r is being imported into this cluster"):
        await refuse_half_a_realm(registry)
    assert arriving_in(await registry.get(ARRIVING_KEY)) == arriving

    await registry.delete(ARRIVING_KEY, version)
    await refuse_half_a_realm(registry)
