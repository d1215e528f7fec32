"""A node keeps running when the register refuses, or has records that the node cannot read."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from packages.cluster.tests.machines import until
from packages.cluster.tests.nodes import URL, Machine, end, three
from penstock import aio
from penstock_cluster.owning.operator_orders import ORDERS_KEY
from penstock_cluster.owning.register_records import MEMBERS, SHARDS
from penstock_core.vocabulary.errors import StorageFailed
from penstock_testing.engine import EngineRegistry, EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated

NESTED = b'{"a":' * 100_000


@pytest.mark.parametrize("record", [b"{", b"\xff", b"[]", NESTED])
@simulated
async def test_a_record_that_is_not_one_of_a_node_is_passed_over_and_told_once(
    record: bytes,
) -> None:
    servers, owner, others = await three()
    with capture_logs() as logs:
        await servers.records.cas(f"{MEMBERS}n9", 0, record)
        await pass_time(30)
    session = await aio.connect(URL)

    assert (await session.channels.create("orders")).name == "orders"
    reasons = [line["reason"] for line in logs if line["event"] == "register.not_read"]
    assert reasons == ["node/n9 is not the record of a node"] * 3
    await session.close()
    await end(owner, *others)


@pytest.mark.parametrize("key", [ORDERS_KEY, f"{SHARDS}0"])
@simulated
async def test_nodes_outlive_a_register_they_cannot_read_and_serve_once_they_can(key: str) -> None:
    servers, owner, others = await three()
    before = await servers.records.get(key)
    version = 0 if before is None else before.version
    version = await servers.records.cas(key, version, b"not JSON")
    await pass_time(30)

    assert not any(machine.task.done() for machine in (owner, *others))
    if before is None:
        await servers.records.delete(key, version)
    else:
        await servers.records.cas(key, version, before.value)
    await until(lambda: any(machine.owns for machine in (owner, *others)))
    await end(owner, *others)


class Refusing(EngineRegistry):
    """Refuses every write while it is full."""

    is_full = False

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        if type(self).is_full:
            raise StorageFailed("PostgreSQL refuses: no space left on device")
        return await super().cas(key, expected, value)


class RefusingEngine(MemoryEngine):
    registries = Refusing


@simulated
async def test_a_node_whose_register_refuses_for_a_while_goes_on_afterwards() -> None:
    servers = EngineServers()
    machine = Machine(servers, 1, engine=RefusingEngine(servers))
    await until(lambda: machine.owns)
    Refusing.is_full = True
    try:
        await pass_time(30)
        assert not machine.owns
    finally:
        Refusing.is_full = False

    await until(lambda: machine.owns)
    assert not machine.task.done()
    await end(machine)
