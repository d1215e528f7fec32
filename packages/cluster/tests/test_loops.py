"""Background loops of a node survive unexpected errors: these are reported as incidents, and the
loops continue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packages.cluster.tests.machines import NodeMachine, open_realm, owner_and_others, until
from packages.cluster.tests.machines import end as end_all
from packages.cluster.tests.nodes import URL, Machine, end, three
from packages.server.tests.runtime.living import Owning
from penstock import aio
from penstock_cluster.nodes.local_names import ClusterWideNames
from penstock_cluster.nodes.register_poller import poll_forever
from penstock_cluster.nodes.roles import suspend_without_quorum, watch_engine
from penstock_cluster.owning.local_names import LOCAL_NAMES_KEY
from penstock_cluster.owning.register_records import MEMBERS, SHARDS, ClaimRecord, MemberRecord
from penstock_cluster.serving.history import HistoryServer
from penstock_core.realm.directory import Directory
from penstock_core.tasks import start_task
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Damaged, Deposed
from penstock_core.vocabulary.node_figures import WHYS, TenureCounts
from penstock_core.vocabulary.ports import Change, EngineHealth
from penstock_core.wire.native import messages as wire
from penstock_server.bootstrap import rules
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.runtime.access.incidents import RETRY_FIRST_S, Incidents
from penstock_server.settings import AccessSettings, Settings
from penstock_server.storage.memory import MemoryRegistry
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated
from tests.loops import the_loop


class Faulty:
    """A function that runs calls to the engine; while ``fails`` is set, they raise an unexpected
    error."""

    fails = False

    async def __call__(self, call: Callable[[], Any]) -> Any:
        if self.fails:
            raise LookupError("nobody foresaw this")
        return call()


def tasks_of(incidents: Incidents) -> list[str]:
    return sorted(incident.task for incident in incidents.open())


# --- the register -------------------------------------------------------------------------


@simulated
async def test_a_node_outlives_a_register_that_fails_in_a_way_nobody_foresaw() -> None:
    servers, fault = EngineServers(), Faulty()
    machine = Machine(servers, 1, call=fault)
    await until(lambda: machine.owns)

    fault.fails = True
    await pass_time(30)
    assert not machine.task.done()
    assert not machine.owns
    assert "register" in tasks_of(machine.node.incidents)

    fault.fails = False
    await until(lambda: machine.owns)
    await until(lambda: machine.node.incidents.open() == [])
    await end(machine)


@pytest.mark.parametrize("address", ["no address", "host:70000", f"{'h' * 70}:9000", "host:"])
@simulated
async def test_an_owner_whose_record_has_no_address_is_waited_for_and_replaced(
    address: str,
) -> None:
    servers, owner, others = await three()
    claim = await servers.records.get(f"{SHARDS}0")
    assert claim is not None
    owner.kill()
    stray = MemberRecord("n9", "start 9", address=address, serves={"native": "penstock://[x"})
    claimed = ClaimRecord("n9", "start 9", epoch=7, format=1, confirmed=0)
    await servers.records.cas(f"{MEMBERS}n9", 0, msgspec.json.encode(stray))
    await servers.records.cas(f"{SHARDS}0", claim.version, msgspec.json.encode(claimed))

    await until(lambda: any(standby.owns for standby in others))

    assert not any(standby.task.done() for standby in others)
    session = await aio.connect(URL)
    assert (await session.channels.create("orders")).name == "orders"
    await session.close()
    await end(*others)


class BlindEngine(MemoryEngine):
    """Cannot tell what blobs there are, while it is set to."""

    fails = True

    async def blobs(self, shard: int) -> Any:
        if type(self).fails:
            raise LookupError("nobody foresaw this")
        return await super().blobs(shard)


@simulated
async def test_a_node_that_cannot_find_out_whether_it_is_fit_claims_nothing_and_tries_again() -> (
    None
):
    servers = EngineServers()
    BlindEngine.fails = True
    machine = Machine(servers, 1, engine=BlindEngine(servers))
    await pass_time(30)
    assert not machine.task.done()
    assert not machine.owns
    assert tasks_of(machine.node.incidents) == ["fitness"]

    BlindEngine.fails = False
    await until(lambda: machine.owns)
    await end(machine)


# --- beside it ----------------------------------------------------------------------------


@simulated
async def test_a_node_goes_on_standing_by_when_it_could_not_tell_who_serves() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    owners: list[str] = standby.reported_owners

    class Failing(list[str]):
        def append(self, owner: str) -> None:
            raise LookupError("nobody foresaw this")

    assert not standby.aside.done()
    standby.aside.cancel()
    standing = NodeMachine(owner.servers, 3)
    standing.aside.cancel()
    standing.aside = standing.on_machine(
        standing.roles.stand_by(standing.node, standing.standby, Failing().append)
    )
    await until(lambda: "standing by" in tasks_of(standing.node.incidents))
    await pass_time(10)

    assert not standing.aside.done()
    assert owners == [owner.name]
    await end_all(owner, standby, standing)


def cannot_tell() -> wire.Owners:
    raise LookupError("nobody foresaw this")


@simulated
async def test_clients_are_told_of_owners_again_after_a_failure() -> None:
    owner, (standby,) = await owner_and_others(EngineServers())
    assert owner.listener is not None
    assert owner.realm is not None
    well, listener = owner.listener.owners, owner.listener
    listener.owners = cannot_tell
    await pass_time(10)
    assert owner.serves
    assert "owners" in tasks_of(owner.realm.incidents)

    listener.owners = well
    await pass_time(10)

    assert owner.listener is listener, "it has served all the while"
    assert owner.realm.incidents.open() == []
    await end_all(owner, standby)


class Uncertain(Owning):
    """A lease that cannot say whether it holds, while it is set to."""

    fails = True

    def holds(self) -> bool:
        if self.fails:
            raise LookupError("nobody foresaw this")
        return False


@simulated
async def test_sessions_end_without_a_quorum_also_after_a_failure_to_find_out() -> None:
    engine, lease = MemoryEngine(), Uncertain(1)
    realm = await open_realm(await engine.journal(0, 1), await engine.blobs(0), Owning(1))
    listener = NativeListener(realm, "1", NativeLimits())
    watching = the_loop().create_task(suspend_without_quorum(lease, listener))
    await pass_time(1)
    assert (listener.suspended, tasks_of(realm.incidents)) == (None, ["quorum"])

    lease.fails = False
    await pass_time(1)

    assert listener.suspended is not None
    watching.cancel()
    await realm.release()


@simulated
async def test_the_engine_is_watched_again_after_a_failure() -> None:
    class Watched(MemoryEngine):
        fails = True

        async def health(self) -> EngineHealth:
            if self.fails:
                raise LookupError("nobody foresaw this")
            return msgspec.structs.replace(await super().health(), leader="s2")

    engine, counts, incidents = Watched(), TenureCounts(dict.fromkeys(WHYS, 0)), Incidents()
    watching = the_loop().create_task(watch_engine(engine, counts, incidents))
    await pass_time(25)
    assert (counts.leader, tasks_of(incidents)) == ("", ["engine"])

    engine.fails = False
    await pass_time(25)

    assert (counts.leader, tasks_of(incidents)) == ("s2", [])
    watching.cancel()


# --- parts of the register ----------------------------------------------------------------


class FaultyRegistry(MemoryRegistry):
    """Fails as nobody foresaw, while it is set to."""

    fails = False

    def _check(self) -> None:
        if self.fails:
            raise LookupError("nobody foresaw this")

    async def list(self, prefix: str = "") -> Any:
        self._check()
        return await super().list(prefix)

    async def watch(self, prefix: str = "") -> AsyncIterator[Change]:
        self._check()
        async for change in super().watch(prefix):
            yield change
            self._check()


@simulated
async def test_a_part_of_the_register_is_followed_again_after_a_failure() -> None:
    registry, incidents, seen = FaultyRegistry(), Incidents(), []

    async def list_names() -> None:
        seen.append(await registry.list("names/"))

    following = partial(poll_forever, registry, "names/", list_names, incidents, "names")
    task = the_loop().create_task(following(every_s=1_000.0))
    await pass_time(1)
    registry.fails = True
    await registry.cas("names/a", 0, b"{}")
    await pass_time(1)
    assert tasks_of(incidents) == ["names", "names: changes"]

    registry.fails = False
    await pass_time(2 * RETRY_FIRST_S)
    await registry.cas("names/b", 0, b"{}")
    await pass_time(1)

    assert seen[-1] == ["names/a", "names/b"]
    assert tasks_of(incidents) == []
    task.cancel()


@simulated
async def test_a_later_owner_ends_what_an_earlier_one_follows() -> None:
    async def raise_deposed() -> None:
        raise Deposed("another epoch rules")

    with pytest.raises(ExceptionGroup) as failure:
        await poll_forever(
            MemoryRegistry(), "names/", raise_deposed, incidents=Incidents(), task="names"
        )

    assert failure.group_contains(Deposed)


@pytest.mark.parametrize("record", [b"{", b"\xff", b"[" * 100_000])
@simulated
async def test_a_realm_is_served_while_the_names_of_local_stores_cannot_be_read(
    record: bytes,
) -> None:
    registry, incidents = MemoryRegistry(), Incidents()
    version = await registry.cas(LOCAL_NAMES_KEY, 0, record)
    names = ClusterWideNames(registry, 1, Directory(rules()), addresses=dict[str, str])
    await names.begin()
    ruling = the_loop().create_task(names.run(incidents))
    await pass_time(3)

    assert tasks_of(incidents) == ["local names"]
    with pytest.raises(Damaged, match="is not a valid record of local names"):
        async with names.making("orders", Definition()):
            pytest.fail("a node may have a store of this name")
    await registry.delete(LOCAL_NAMES_KEY, version)
    await pass_time(3)
    assert tasks_of(incidents) == []
    async with names.making("orders", Definition()):
        pass
    ruling.cancel()


@simulated
async def test_history_is_shown_again_after_a_failure(tmp_path: Path) -> None:
    registry, incidents = FaultyRegistry(), Incidents()
    settings = Settings(access=AccessSettings(mode="mandatory"))
    server = HistoryServer(
        tmp_path,
        settings,
        str,
        registry=registry,
        has_quorum=lambda: True,
        certificate=None,
        incidents=incidents,
    )
    registry.fails = True
    running = start_task(server.run(), name="history")
    await pass_time(30)
    assert tasks_of(incidents) == ["history"]
    assert not running.done()

    registry.fails = False
    await registry.cas("access/users", 0, b"{}")
    await pass_time(30)
    assert not running.done()
    assert server.rights.records != {}
    running.cancel()
    await asyncio.wait([running])
