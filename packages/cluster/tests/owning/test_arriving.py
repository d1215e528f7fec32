"""The record of a realm that is being moved into a cluster."""

from __future__ import annotations

import msgspec
import pytest

from penstock_cluster.owning.arriving import (
    ARRIVING_KEY,
    ArrivingRealm,
    import_in,
    refuse_partial_realm,
)
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.storage.memory import MemoryRegistry
from penstock_testing.loop import simulated


@simulated
async def test_nobody_serves_a_realm_before_it_is_whole() -> None:
    registry = MemoryRegistry()
    await refuse_partial_realm(registry)
    arriving = ArrivingRealm(realm="r", nonce="n", epoch=2, at_us=5)
    version = await registry.cas(ARRIVING_KEY, 0, msgspec.json.encode(arriving))

    with pytest.raises(IllegalState, match="the realm r is being imported into this cluster"):
        await refuse_partial_realm(registry)
    assert import_in(await registry.get(ARRIVING_KEY)) == arriving

    await registry.delete(ARRIVING_KEY, version)
    await refuse_partial_realm(registry)
