"""A realm moves from one machine into a cluster and back, and is the same realm (SEM N3, E4)."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from packages.cluster.tests.relocation import CLUSTER, moved_in, moved_out, owned
from packages.server.tests.runtime.living import body, publish
from packages.server.tests.transfers.moving import events, halfway
from penstock.client.copies.backup import restore
from penstock.client.copies.backup_sinks import BackupFolder
from penstock.client.sync.sync import Session
from penstock_cluster.bootstrap import relocating
from penstock_cluster.bootstrap.cluster_backup import BackupBlobs, ClusterBackup, back_up_cluster
from penstock_cluster.bootstrap.relocating import source_realm
from penstock_cluster.owning.arriving import refuse_partial_realm
from penstock_cluster.owning.register_records import ClaimRecord
from penstock_core.vocabulary.errors import (
    Damaged,
    DataDirectoryInUse,
    Deposed,
    IllegalState,
    InvalidArgument,
    NewerFormat,
    StorageFailed,
)
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.comparing import Contents, contents_of, differences
from penstock_testing.engine import EngineBlobs, EngineServers, MemoryEngine, MemoryInspector
from tests.loops import on_a_loop
from tests.patience import until

pytestmark = pytest.mark.slow

TYPES: tuple[penstock.ChannelType, ...] = (
    "mixed",
    "off_heap",
    "paged",
    "persistent",
    "reliable",
    "simple",
    "transient",
)


def fill(here: Session) -> None:
    """A realm with something of everything."""
    for type_ in TYPES:
        channel = here.channels.create(type_, type=type_)
        channel.publish_many(events(30))
    here.channels.create("dead")
    orders = here.channels.create(
        "eu/orders", storage={"events_per_spindle": 40}, dead_event_store="dead", event_ttl=True
    )
    for more in ({}, {"late": 1.5}, {"late": "text"}):
        orders.publish_many(events(50, **more))
    until(lambda: orders.info().storage.sealed_files == 3)  # and so it stays
    halfway(orders)
    orders.publish(b"for later", deliver_at=4_000_000_000.0)
    single = here.channels.create("single", type="persistent", storage={"events_per_spindle": 0})
    single.publish_many(events(100))
    packed = here.channels.create(
        "packed", storage={"events_per_spindle": 40, "compression": "zstd"}
    )
    packed.publish_many(events(100))
    grown = here.channels.create(
        "packed/single", storage={"events_per_spindle": 0, "compression": "lz4"}
    )
    grown.publish_many(events(100))
    here.channels.create("paged/durable", type="paged").publish_many(events(70))
    halfway(here.channels.get("paged/durable"))
    rates = here.channels.create("rates", engine="merge", keys={"pair": 1})
    for value in (1.5, 2.5):
        rates.publish(b"", properties={"pair": "EUR", "value": value})
    keyed = here.channels.create("keyed", type="persistent", keys={"n": 1})
    keyed.publish_many(events(20) + events(5))
    work = here.queues.create("work", max_deliveries=3, dead_event_store="dead")
    here.joins.create("eu/orders", "work", selector="n < 5")
    orders.publish_many(events(10))
    with work.reader(transactional=True) as reader:
        reader.fetch(2, timeout=5.0)
        reader.commit()
    with orders.transaction() as tx:
        tx.publish(b"together")
    deleted = here.channels.create("gone", type="persistent")
    deleted.publish_many(events(3))
    here.channels.delete("gone")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original") / "one"
    with penstock.Realm(directory, access__mode="optional") as realm, realm.connect() as here:
        here.access.create_user("ann", "a long password")
        here.access.grant("ann@*", "access")
        fill(here)
    return directory


@pytest.fixture
def filled(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "one"))


async def contents(directory: Path) -> Contents:
    async with source_realm(directory) as realm:
        return await contents_of(realm.recovered, realm.stores.blobs, realm.access)


@on_a_loop
async def test_a_realm_that_went_into_a_cluster_and_back_is_the_same(
    filled: Path, tmp_path: Path
) -> None:
    servers = EngineServers()
    before = await contents(filled)
    moved = await moved_in(filled, servers)
    assert moved.plan.local == ("simple", "transient")
    async with owned(servers, 2) as realm:
        assert not realm.recovered.damage
        shown = await realm.describe_channel("paged/durable")
        assert (shown.definition.cluster_wide, shown.events) == (True, 45)
    await moved_out(servers, tmp_path / "two")
    assert differences(before, await contents(tmp_path / "two")) == []

    with penstock.Realm(tmp_path / "two") as back, back.connect() as here:
        channel = here.channels.get("paged/durable")
        assert channel.info().definition.cluster_wide is None
        assert channel.publish(b"next") == 70
        assert channel.read(start=60).num_rows == 11
        assert channel.durables.get("billing").info().outstanding == 46


@on_a_loop
async def test_what_happens_in_the_cluster_comes_back_too(filled: Path, tmp_path: Path) -> None:
    """Also what a reliable or a paged channel stores, which one machine would keep elsewhere."""

    servers = EngineServers()
    await moved_in(filled, servers)
    async with owned(servers, 2) as realm:
        for name in ("reliable", "off_heap", "paged", "mixed"):
            opened = await realm.open_channel(name)
            await publish(realm, opened.channel, body([b"of the cluster"]))
    await moved_out(servers, tmp_path / "two")
    stores = await contents(tmp_path / "two")

    with penstock.Realm(tmp_path / "two") as back, back.connect() as here:
        for name in ("reliable", "off_heap", "paged", "mixed"):
            assert stores[name]["events"] == here.channels.get(name).info().events
            assert [event.data for event in here.channels.get(name).browse()][-1:] == [
                b"of the cluster"
            ]


class BrokenOff(Exception):
    """The import ends here."""


def breaking_after(puts: int | None) -> type[EngineBlobs]:
    """Blobs that fail after so many files, or when all but the snapshot is there."""
    puts_left = puts

    class Breaking(EngineBlobs):
        async def put(self, name: str, chunks: Any) -> None:
            nonlocal puts_left
            if puts_left is not None:
                puts_left -= 1
            if name.startswith("snapshots/") if puts_left is None else puts_left < 0:
                raise BrokenOff(name)
            await super().put(name, chunks)

    return Breaking


@pytest.mark.parametrize("puts", [0, 3, 8, None])
@on_a_loop
async def test_an_import_that_was_broken_off_is_served_by_nobody_and_goes_on(
    filled: Path, tmp_path: Path, puts: int | None
) -> None:
    servers = EngineServers()

    class Engine(MemoryEngine):
        stores = breaking_after(puts)

    with pytest.raises(BrokenOff):
        await moved_in(filled, servers, Engine(servers))
    with pytest.raises(IllegalState, match="its import was interrupted"):
        async with owned(servers, 2):
            pass
    with pytest.raises(IllegalState, match="was not finished"):
        await moved_out(servers, tmp_path / "two")

    first_names = {info.name for info in await servers.blobs(0).list("segments/")}
    await moved_in(filled, servers)
    assert first_names <= {info.name for info in await servers.blobs(0).list("segments/")}
    async with owned(servers, 3) as realm:
        assert not realm.recovered.damage
    await moved_out(servers, tmp_path / "two")
    assert differences(await contents(filled), await contents(tmp_path / "two")) == []


@on_a_loop
async def test_an_unfinished_import_can_be_removed_and_another_realm_comes(
    filled: Path, tmp_path: Path
) -> None:
    with penstock.Realm(tmp_path / "other") as realm, realm.connect() as here:
        here.channels.create("other")

    servers = EngineServers()
    await moved_in(filled, servers, ahead=True)
    with pytest.raises(IllegalState, match="the import of another realm"):
        await moved_in(tmp_path / "other", servers)
    assert await relocating.abandon_import(MemoryEngine(servers), SystemClock(), CLUSTER)
    assert not await servers.blobs(0).list()
    assert not await relocating.abandon_import(MemoryEngine(servers), SystemClock(), CLUSTER)
    with pytest.raises(IllegalState, match="has a realm already"):
        await moved_in(tmp_path / "other", servers)


@on_a_loop
async def test_the_rest_of_a_running_realm_comes_after_its_files(
    filled: Path, tmp_path: Path
) -> None:
    """Backup, import ahead, a short stop, the rest."""
    with penstock.Realm(filled) as realm, realm.connect() as here:
        here.back_up(tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "copy")
        here.channels.get("eu/orders").publish_many(events(200))
        with (
            here.channels.get("eu/orders")
            .durables.get("billing")
            .subscribe(window=40, timeout=30.0) as held
        ):
            next(iter(held)).ack()

    servers = EngineServers()
    ahead = await moved_in(tmp_path / "copy", servers, ahead=True)
    assert ahead.copied > 0
    before = {info.name for info in await servers.blobs(0).list()}
    await moved_in(filled, servers)
    after = {info.name for info in await servers.blobs(0).list("segments/")}
    assert len(before & after) >= ahead.copied - 1, "what was there is not copied again"
    await moved_out(servers, tmp_path / "two")
    assert differences(await contents(filled), await contents(tmp_path / "two")) == []


@pytest.mark.parametrize(
    ("key", "value", "error", "reason"),
    [
        ("identity", b"another", IllegalState, "has a realm already, another"),
        (
            "shard/0",
            msgspec.json.encode(ClaimRecord("n1", "x", 4, format=1, confirmed=9)),
            IllegalState,
            "has a realm already",
        ),
        ("cluster/format", b"99", NewerFormat, "writes format 99"),
    ],
)
@on_a_loop
async def test_a_cluster_with_a_realm_refuses_another_with_the_reason(
    filled: Path, key: str, value: bytes, error: type[Exception], reason: str
) -> None:
    servers = EngineServers()
    await servers.records.cas(key, 0, value)
    with pytest.raises(error, match=reason):
        await moved_in(filled, servers)
    assert await servers.records.list() == [key], "nothing was changed"
    assert not servers.log(0).frames


def test_a_realm_that_runs_or_is_none_is_refused(filled: Path, tmp_path: Path) -> None:
    with penstock.Realm(filled), pytest.raises(DataDirectoryInUse, match="--ahead"):
        asyncio.run(moved_in(filled, EngineServers()))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match="not a Penstock data directory"):
        asyncio.run(moved_in(tmp_path / "empty", EngineServers()))


def test_a_damaged_realm_is_refused_before_anything_is_written(filled: Path) -> None:
    (journal,) = sorted((filled / "journal").iterdir())[-1:]
    content = bytearray(journal.read_bytes())
    offset = content.index(b"for later")
    content[offset] ^= 1
    journal.write_bytes(content)
    for snapshot in (filled / "snapshots").iterdir():
        snapshot.unlink()
    servers = EngineServers()

    with pytest.raises(Damaged, match="store repair"):
        asyncio.run(moved_in(filled, servers))
    assert asyncio.run(servers.records.list()) == []


def test_events_of_a_cluster_wide_store_may_not_go_where_one_node_keeps_them(
    tmp_path: Path,
) -> None:
    with penstock.Realm(tmp_path / "one") as realm, realm.connect() as here:
        here.channels.create("dead", type="simple")
        here.channels.create("orders", type="persistent", dead_event_store="dead")

    with pytest.raises(IllegalState, match="orders has the dead event store dead, a simple"):
        asyncio.run(moved_in(tmp_path / "one", EngineServers()))


@on_a_loop
async def test_an_import_that_is_overtaken_by_a_node_ends(filled: Path) -> None:
    servers = EngineServers()

    class Early(EngineBlobs):
        async def put(self, name: str, chunks: Any) -> None:
            await MemoryEngine(servers).journal(0, 2)  # a node has claimed the shard
            await super().put(name, chunks)

    class Engine(MemoryEngine):
        stores = Early

    with pytest.raises(Deposed):
        await moved_in(filled, servers, Engine(servers))
    assert not await servers.blobs(0).list("snapshots/")
    with pytest.raises(IllegalState, match="its import was interrupted"):
        await refuse_partial_realm(servers.records)


@on_a_loop
async def test_an_export_goes_into_an_empty_directory_only(filled: Path, tmp_path: Path) -> None:
    servers = EngineServers()
    with pytest.raises(IllegalState, match="has no realm"):
        await moved_out(servers, tmp_path / "two")
    await moved_in(filled, servers)
    with pytest.raises(InvalidArgument, match="is not empty"):
        await moved_out(servers, filled)
    assert not (tmp_path / "two").exists()


@on_a_loop
async def test_an_export_looks_again_when_its_files_are_removed_meanwhile(
    filled: Path, tmp_path: Path
) -> None:
    servers = EngineServers()
    await moved_in(filled, servers)
    names: list[str] = []

    class Removing(EngineBlobs):
        async def get(self, name: str, offset: int = 0, length: int | None = None) -> Any:
            if name.startswith("segments/single") and not names:
                names.append(name)
                async with owned(servers, 2) as realm:
                    await realm.delete_channel("single")
            return await super().get(name, offset, length)

    class Engine(MemoryEngine):
        stores = Removing

    records = await MemoryInspector(servers).records()
    await relocating.export_realm(
        Engine(servers), records, tmp_path / "two", clock=SystemClock(), cluster=CLUSTER
    )
    before, after = await contents(filled), await contents(tmp_path / "two")
    assert differences({**before, "single": None}, {**after, "single": None}) == []
    assert "single" not in after


async def backed_up(servers: EngineServers, folder: Path) -> ClusterBackup:
    records = await MemoryInspector(servers).records()
    return await back_up_cluster(
        MemoryEngine(servers), records, folder, clock=SystemClock(), cluster=CLUSTER
    )


@on_a_loop
async def test_a_backup_of_a_cluster_is_restored_on_one_machine_and_in_a_cluster(
    filled: Path, tmp_path: Path
) -> None:
    servers = EngineServers()
    await moved_in(filled, servers)
    first = await backed_up(servers, tmp_path / "backup")
    async with owned(servers, 2) as realm:
        opened = await realm.open_channel("eu/orders")
        await publish(realm, opened.channel, body([b"after the first backup"]))
    second = await backed_up(servers, tmp_path / "backup")
    assert second.files_written < first.files_written, "segments are not written again"

    restore(tmp_path / "backup", tmp_path / "alone")
    again = EngineServers()
    await moved_in(tmp_path / "alone", again)
    await moved_out(again, tmp_path / "two")
    await moved_out(servers, tmp_path / "three")
    now = await contents(tmp_path / "three")
    assert now["eu/orders"]["next_id"] == 162
    assert differences(now, await contents(tmp_path / "alone")) == []
    assert differences(now, await contents(tmp_path / "two")) == []


@on_a_loop
async def test_a_folder_keeps_backups_of_one_realm_and_a_cluster_is_no_single_file(
    filled: Path, tmp_path: Path
) -> None:
    with penstock.Realm(tmp_path / "other") as realm, realm.connect() as here:
        here.back_up(tmp_path / "backup")

    servers = EngineServers()
    with pytest.raises(IllegalState, match="has no realm"):
        await backed_up(servers, tmp_path / "none")
    await moved_in(filled, servers)
    with pytest.raises(InvalidArgument, match="a backup of another realm"):
        await backed_up(servers, tmp_path / "backup")
    with pytest.raises(InvalidArgument, match="a cluster is backed up into a folder"):
        await backed_up(servers, tmp_path / "backup.tar")


@on_a_loop
async def test_a_backup_of_a_cluster_says_that_the_disk_refused_a_file(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"in the place of a folder")

    with closing(BackupFolder(tmp_path)) as sink:
        blobs = BackupBlobs(MemoryBlobs(), sink, earlier=())
        with pytest.raises(StorageFailed, match=r"kept/segments/orders/1\.arrow.* cannot be used"):
            await blobs.put("segments/orders/1.arrow", [b"events"])
