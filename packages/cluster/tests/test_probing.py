"""A probe distinguishes a machine without a listener from a machine that does not answer."""

from __future__ import annotations

from packages.cluster.tests.machines import end, owner_and_others
from penstock_cluster.nodes.probing import failure_at, is_refused
from penstock_testing.engine import EngineServers
from penstock_testing.loop import simulated
from tests.loops import the_loop


@simulated
async def test_a_machine_that_says_nothing_does_not_refuse() -> None:
    the_loop().network.power_off("elsewhere")

    assert not await is_refused("127.0.0.1:9999")
    assert isinstance(await failure_at("127.0.0.1", 9999, 3.0), TimeoutError)
    the_loop().network.power_on("elsewhere")
    assert await is_refused("127.0.0.1:9999")


@simulated
async def test_somebody_who_accepts_is_no_failure() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())

    assert await failure_at("127.0.0.1", owner.native) is None
    assert not await is_refused(f"127.0.0.1:{standby.native}")
    await end(owner, standby)
