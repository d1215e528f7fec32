"""A node that does not see the files of its realm serves nothing, and harms nothing."""

from __future__ import annotations

import msgspec
import pytest
from structlog.testing import capture_logs

from packages.cluster.tests.machines import until
from packages.cluster.tests.nodes import URL, Machine, end
from penstock import aio
from penstock_cluster.nodes.blob_identity import (
    IDENTITIES,
    IDENTITY_BLOBS,
    BlobIdentity,
    BlobPlaces,
    GuardedBlobs,
)
from penstock_cluster.owning.register_records import MEMBERS, MemberRecord
from penstock_core.vocabulary.errors import StorageFailed
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.engine import EngineBlobs, EngineServers, MemoryEngine
from penstock_testing.loop import pass_time, simulated

IDENTITY_KEY = f"{IDENTITIES}0"


class EngineWithPlace(MemoryEngine):
    """An engine whose blobs lie in a folder, as one node sees it."""

    def __init__(self, servers: EngineServers, place: MemoryBlobs | None = None) -> None:
        """Without a ``place`` the folder is the one that all nodes share."""
        super().__init__(servers)
        self.place = place

    async def blobs(self, shard: int) -> EngineBlobs:
        engine = self

        class Folder(EngineBlobs):
            @property
            def _blobs(self) -> MemoryBlobs:  # what is mounted at this moment
                return engine.servers.blobs(shard) if engine.place is None else engine.place

            @_blobs.setter
            def _blobs(self, _: MemoryBlobs) -> None:
                pass

        return Folder(self.servers.blobs(shard), self.requests)


def empty() -> MemoryBlobs:
    """A folder that is not mounted."""
    return MemoryBlobs(grows=False)


async def shown(servers: EngineServers, node: str) -> MemberRecord:
    record = await servers.records.get(MEMBERS + node)
    assert record is not None
    return msgspec.json.decode(record.value, type=MemberRecord)


async def forget_identity(servers: EngineServers) -> None:
    """The realm is as version 0.1.0 has left it."""
    record = await servers.records.get(IDENTITY_KEY)
    assert record is not None
    await servers.records.delete(IDENTITY_KEY, record.version)
    for info in await servers.blobs(0).list(IDENTITY_BLOBS):
        await servers.blobs(0).delete(info.name)


async def served(servers: EngineServers, machine: Machine) -> list[bytes]:
    """Publish through a node that is alone until its journal is cut, and end it; gives what was
    stored."""
    await until(lambda: machine.owns)
    session = await aio.connect(URL)
    channel = await session.channels.create("orders", type="persistent")
    realm = machine.server.realm
    assert realm is not None
    for data in (b"first", b"second"):  # the journal is cut behind the older of two snapshots
        await channel.publish(data)
        await realm.snapshot()
    assert realm.journal_info.floor
    await session.close()
    await machine.node.leave()
    await machine.task
    return [b"first", b"second"]


async def read(servers: EngineServers, machine: Machine) -> list[bytes]:
    await until(lambda: machine.owns)
    session = await aio.connect(URL)
    channel = await session.channels.create("orders", type="persistent", if_missing=True)
    events = [event.data async for event in channel.browse()]
    await session.close()
    return events


@simulated
async def test_the_first_owner_gives_the_place_of_blobs_an_identity() -> None:
    servers = EngineServers()
    first = Machine(servers, 1)
    await until(lambda: first.owns)
    await pass_time(1)

    record = await servers.records.get(IDENTITY_KEY)
    assert record is not None
    identity = msgspec.json.decode(record.value, type=BlobIdentity)
    assert identity.is_written
    assert [blob.name for blob in await servers.blobs(0).list(IDENTITY_BLOBS)] == [identity.blob]
    await end(first)


@pytest.mark.spec("N3")
@simulated
async def test_a_node_that_does_not_see_the_files_claims_nothing_and_says_why_until_it_does() -> (
    None
):
    servers = EngineServers()
    stored = await served(servers, Machine(servers, 1))
    before = servers.log(0).last
    unmounted = EngineWithPlace(servers, empty())
    with capture_logs() as logged:
        blind = Machine(servers, 3, engine=unmounted)
        await pass_time(60)

    assert [line["event"] for line in logged] == ["node.unfit"]
    assert not blind.server.opened
    assert servers.log(0).last == before, "the journal is untouched"
    assert "Mount the folder" in (await shown(servers, "n3")).unfit

    unmounted.place = None
    assert await read(servers, blind) == stored
    assert (await shown(servers, "n3")).unfit == ""
    await end(blind)


@simulated
async def test_a_node_without_the_files_is_passed_over_when_the_owner_hands_over() -> None:
    servers = EngineServers()
    owner = Machine(servers, 1)
    await until(lambda: owner.owns)
    await pass_time(1)
    blind = Machine(servers, 3, engine=EngineWithPlace(servers, empty()))
    second = Machine(servers, 2)
    await pass_time(10)

    owner.kill()
    took_s = await until(lambda: second.owns)

    assert took_s < 6.0, "the other one does not wait for the node that cannot serve"
    assert not blind.server.opened
    await end(blind, second)


@pytest.mark.spec("N3")
@simulated
async def test_a_realm_of_the_first_version_gets_an_identity_from_a_node_that_has_its_files() -> (
    None
):
    servers = EngineServers()
    stored = await served(servers, Machine(servers, 1))
    await forget_identity(servers)
    place = empty()
    blind = Machine(servers, 3, engine=EngineWithPlace(servers, place))
    await until(lambda: blind.server.opened == [0] and bool(blind.node.claims.me.unfit))

    assert "the newest readable snapshot is of block 0" in blind.node.claims.me.unfit
    assert await servers.records.get(IDENTITY_KEY) is None
    assert list(await place.list()) == []

    right = Machine(servers, 2)
    assert await read(servers, right) == stored
    assert await servers.records.get(IDENTITY_KEY) is not None
    await end(blind, right)


@simulated
async def test_a_new_realm_is_not_begun_among_the_files_of_another() -> None:
    other_servers = EngineServers()
    await served(other_servers, Machine(other_servers, 1))
    servers = EngineServers()
    second = Machine(servers, 2, engine=EngineWithPlace(servers, other_servers.blobs(0)))
    await pass_time(30)

    assert not second.server.opened
    assert "the files of another realm" in second.node.claims.me.unfit
    await end(second)


@simulated
async def test_an_identity_that_an_owner_began_to_write_is_finished_by_the_next() -> None:
    servers = EngineServers()
    begun = BlobIdentity("begun")
    await servers.records.cas(IDENTITY_KEY, 0, msgspec.json.encode(begun))
    machine = Machine(servers, 1)
    await until(lambda: machine.owns)
    await pass_time(1)

    record = await servers.records.get(IDENTITY_KEY)
    assert record is not None
    assert msgspec.json.decode(record.value) == {"token": "begun", "is_written": True}
    assert [blob.name for blob in await servers.blobs(0).list(IDENTITY_BLOBS)] == [begun.blob]
    await end(machine)


@simulated
async def test_a_snapshot_that_an_owner_wrote_to_an_unmounted_folder_does_not_count() -> None:
    servers = EngineServers()
    engine = EngineWithPlace(servers)
    places = BlobPlaces(engine, servers.records)
    await places.mark(0, "realm")
    blobs = GuardedBlobs(await engine.blobs(0), places, 0)
    await blobs.put("snapshots/1.snap", [b"here"])

    engine.place = empty()
    with pytest.raises(StorageFailed, match="may be in another place"):
        await blobs.put("snapshots/2.snap", [b"elsewhere"])
