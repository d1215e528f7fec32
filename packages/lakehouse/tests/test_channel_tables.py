"""Snapshots of channels on virtual time: what they have, which files they share, how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from packages.lakehouse.tests.reading import (
    ANN,
    EPOCH,
    content,
    data_files,
    entries,
    ids,
    load,
    parquet_table,
    stored_ids,
)
from packages.server.tests.runtime.living import SINGLE, body, living, publish, sealed
from penstock_core.access.rights import Principal
from penstock_core.columns.schema.ipc import schema_from
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Damaged, LimitReached, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import Blobs
from penstock_lakehouse.channel_tables import ChannelTables, tables_of
from penstock_lakehouse.file_store import FileStore
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.subscriptions.realm_limits import TableLimits
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated
from penstock_testing.stores import open_store

pytestmark = [pytest.mark.spec("B1", "B5"), pytest.mark.slow]

SPINDLES = Definition(type="persistent", retain_consumed=True)
ORDERS = ChannelId(1)
FIXED = ["event_id", "published", "tag", "data", "ttl", "priority", "persistent", "headers"]


@asynccontextmanager
async def realm_with(
    definition: Definition = SPINDLES, blobs: Blobs | None = None, **limits: int
) -> AsyncIterator[tuple[RunningRealm, ChannelTables]]:
    """A realm with the channel ``orders``, whose number is 1."""
    bounds = Limits(tables=TableLimits(**limits))
    async with living(MemoryJournal(), blobs or MemoryBlobs(), limits=bounds) as realm:
        await realm.create_channel("orders", definition)
        yield realm, tables_of(realm)


@asynccontextmanager
async def tables_with_damage(directory: Path) -> AsyncIterator[ChannelTables]:
    """The tables of a realm with 30 events in three sealed files, of which the second is
    damaged."""
    store = open_store(str(directory), RealDisk())
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SPINDLES)
        for number in range(3):
            await publish(realm, ORDERS, body([b"%d" % number] * 10))
        await sealed(realm, "orders")
        _, damaged, _ = sorted((directory / "segments").rglob("*.arrow"))
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        yield tables_of(realm)
    await realm.release()


async def purge(realm: RunningRealm, first: int, last: int) -> None:
    await realm.subscriptions.purge(ORDERS, first, last, selector="")


@simulated
async def test_a_snapshot_has_sealed_and_unsealed_events_and_no_removed_ones() -> None:
    async with realm_with() as (realm, tables):
        for _ in range(3):
            await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        await publish(realm, ORDERS, body([b"x"] * 20))
        await purge(realm, 25, 26)
        await purge(realm, 61, 61)

        loaded = await load(tables)

        assert await ids(tables, loaded) == stored_ids(realm)
        assert len(await data_files(tables, loaded)) == 4
        assert loaded.metadata["snapshots"][-1]["summary"]["total-records"] == "77"


@simulated
async def test_a_load_makes_files_of_new_events_only() -> None:
    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        await publish(realm, ORDERS, body([b"x"] * 5))
        first = await load(tables)
        await publish(realm, ORDERS, body([b"x"] * 5))
        second = await load(tables)
        assert (await data_files(tables, second)) > (await data_files(tables, first))
        assert await ids(tables, second) == list(range(30))

        again = await load(tables)
        assert again.metadata["current-snapshot-id"] == second.metadata["current-snapshot-id"]
        newest = second
        for _ in range(40):
            await publish(realm, ORDERS, body([b"x"]))
            newest = await load(tables)
        assert len(await data_files(tables, newest)) <= 18
        assert await ids(tables, newest) == list(range(70))


@simulated
async def test_a_file_is_made_again_when_a_fifth_of_its_events_are_removed() -> None:
    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        first = await load(tables)
        await purge(realm, 0, 3)
        second = await load(tables)
        assert await data_files(tables, second) == await data_files(tables, first)
        assert [file["content"] for file in await entries(tables, second)] == [0, 1]

        await purge(realm, 4, 4)
        third = await load(tables)
        assert [file["content"] for file in await entries(tables, third)] == [0]
        assert await ids(tables, third) == list(range(5, 20))
        assert await ids(tables, first) == list(range(20)), "its files are held"


@simulated
async def test_a_growing_file_is_read_batch_by_batch() -> None:
    async with realm_with(SINGLE) as (realm, tables):
        for number in range(4):
            await publish(realm, ORDERS, body([b"x"] * 10))
            await sealed(realm, "orders")
            assert await ids(tables, await load(tables)) == list(range(10 * (number + 1)))
        await purge(realm, 0, 34)
        await realm.maintain("orders")
        assert await ids(tables, await load(tables)) == stored_ids(realm)


@simulated
async def test_columns_come_and_go_with_what_is_published() -> None:
    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 5, price=1))
        await sealed(realm, "orders")
        await load(tables)
        await publish(realm, ORDERS, body([b"x"] * 5, price=0.5, sku="a"))
        loaded = await load(tables)

        fields = {field["name"]: field for field in loaded.metadata["schemas"][-1]["fields"]}
        assert fields["price"]["type"] == "double"
        assert {"price::int", "price::float", "sku"} <= fields.keys()
        assert await ids(tables, loaded) == list(range(10))
        ids_before = {
            field["name"]: field["id"] for field in loaded.metadata["schemas"][0]["fields"]
        }
        assert all(fields[name]["id"] == number for name, number in ids_before.items())


@simulated
async def test_the_files_of_a_load_end_with_its_time() -> None:
    async with realm_with(hold_s=60) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 10))
        loaded = await load(tables)
        await purge(realm, 0, 9)
        newer = await load(tables)
        await pass_time(59)
        assert await ids(tables, loaded) == list(range(10))
        assert await ids(tables, newer) == []

        await pass_time(5)
        assert tables.grant_of(loaded.key) is None
        assert tables.file_bytes == 0, "purged events leave the disk with the last snapshot"


@pytest.mark.spec("B2")
@simulated
async def test_loads_within_the_fresh_time_share_a_snapshot() -> None:
    async with realm_with(fresh_ms=1_000) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"]))
        first = await load(tables)
        await publish(realm, ORDERS, body([b"x"]))
        assert await ids(tables, await load(tables)) == [0]
        await pass_time(1.5)
        assert await ids(tables, await load(tables)) == [0, 1]
        assert first.key != ""


@simulated
async def test_a_user_with_many_snapshots_loses_the_oldest_and_nobody_else_does() -> None:
    bob = Principal("bob", "pc")
    async with realm_with(snapshots_per_user_max=3) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"]))
        of_bob = await load(tables, reader=bob)
        loads = []
        for _ in range(5):
            await publish(realm, ORDERS, body([b"x"]))
            loads.append(await load(tables))

        ended = [tables.grant_of(loaded.key) is None for loaded in loads]
        assert ended == [True, True, False, False, False]
        assert await ids(tables, of_bob) == [0]


@simulated
async def test_metadata_lists_the_newest_snapshots_however_many_are_held() -> None:
    async with realm_with() as (realm, tables):
        loads = []
        for number in range(30):
            await publish(realm, ORDERS, body([b"x"], **{f"p{number}": number}))
            loads.append(await load(tables))

        listed = [snapshot["snapshot-id"] for snapshot in loads[-1].metadata["snapshots"]]
        assert listed == [loaded.metadata["current-snapshot-id"] for loaded in loads[-20:]]
        assert len(loads[-1].metadata["schemas"]) == 20
        assert await ids(tables, loads[0]) == [0], "it is held, and can be read"


@simulated
async def test_the_files_of_all_tables_have_a_limit_of_bytes() -> None:
    async with realm_with(cache_bytes_max=60_000) as (realm, tables):
        await publish(realm, ORDERS, body([b"x" * 30_000]))
        loaded = await load(tables)
        await publish(realm, ORDERS, body([b"y" * 30_000]))
        with pytest.raises(LimitReached, match=r"tables.cache_bytes.*are in use by snapshots"):
            await load(tables)
        assert await ids(tables, loaded) == [0], "the earlier load is not affected"
        assert stored_ids(realm) == [0, 1], "nor is the realm"

        await pass_time(700)
        await purge(realm, 0, 0)
        assert await ids(tables, await load(tables)) == [1]


@simulated
async def test_a_channel_with_too_many_events_in_memory_is_refused() -> None:
    async with realm_with(memory_events_max=10) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 11))
        with pytest.raises(LimitReached, match=r"orders has 11 events in memory"):
            await load(tables)
        await sealed(realm, "orders")
        assert len(await ids(tables, await load(tables))) == 11


@simulated
async def test_a_key_opens_the_files_of_its_table_only() -> None:
    async with realm_with() as (realm, tables):
        await realm.create_channel("other", SPINDLES)
        await publish(realm, ORDERS, body([b"x"]))
        await publish(realm, ChannelId(2), body([b"secret"]))
        mine = await load(tables)
        theirs = await load(tables, 2, Principal("bob", "pc"), "realm/2")
        [secret] = await data_files(tables, theirs)

        with pytest.raises(NameDoesNotExist, match="no snapshot of the table has the file"):
            await content(tables, mine, secret)
        for name in ("", "../x", f"{secret}/../x", "penstock-tables"):
            with pytest.raises(NameDoesNotExist):
                await content(tables, mine, name)
        assert len(await content(tables, theirs, secret)) > 100


@simulated
async def test_a_deleted_channel_leaves_no_file_behind() -> None:
    async with realm_with(hold_s=60) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 10))
        await sealed(realm, "orders")
        loaded = await load(tables)
        await realm.delete_channel("orders", "channel")
        assert await ids(tables, loaded) == list(range(10))
        with pytest.raises(NameDoesNotExist):
            await load(tables)

        await pass_time(70)
        assert tables.file_bytes == 0
        assert not tables.count


@simulated
async def test_unreadable_events_are_set_aside_and_the_next_load_has_the_others(
    tmp_path: Path,
) -> None:
    async with tables_with_damage(tmp_path) as tables:
        with pytest.raises(Damaged, match="orders has unreadable events"):
            await load(tables)
        assert await ids(tables, await load(tables)) == [*range(10), *range(20, 30)]


@simulated
async def test_loads_at_the_same_time_make_each_file_once() -> None:
    async with realm_with() as (realm, tables):
        for _ in range(4):
            await publish(realm, ORDERS, body([b"x"] * 10))
        await sealed(realm, "orders")
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(load(tables, reader=Principal(f"user{n}", "pc")))
                for n in range(5)
            ]
        loads = [task.result() for task in tasks]
        names = [await data_files(tables, loaded) for loaded in loads]
        assert names[1:] == names[:-1]
        assert len({loaded.key for loaded in loads}) == 5
        assert await ids(tables, loads[0]) == list(range(40))


@pytest.mark.spec("B7")
@simulated
async def test_files_for_readers_on_the_machine_have_no_removed_events() -> None:
    async with realm_with(hold_s=60) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20, price=1))
        await sealed(realm, "orders")
        await publish(realm, ORDERS, body([b"x"] * 20, price=1))
        before = await load(tables)
        await purge(realm, 3, 3)
        await purge(realm, 30, 30)
        marked = await load(tables)
        assert [file["content"] for file in await entries(tables, marked)] == [0, 0, 1, 1]

        located = await tables.locate(ORDERS, EPOCH, ANN)

        assert (len(located.files), located.end_id) == (2, 40)
        assert schema_from(located.columns).names == [*FIXED, "price"]
        clean = await load(tables)
        assert [file["content"] for file in await entries(tables, clean)] == [0, 0]
        assert sorted(file.size for file in located.files) == sorted(
            file["file_size_in_bytes"] for file in await entries(tables, clean)
        )
        assert await ids(tables, clean) == stored_ids(realm)
        assert await ids(tables, before) == list(range(40)), "its files are held"
        assert await ids(tables, marked) == stored_ids(realm)

        await pass_time(70)
        assert tables.file_bytes < 2 * sum(file.size for file in located.files)


@simulated
async def test_a_snapshot_whose_last_grant_ends_during_a_load_is_made_again() -> None:
    async with realm_with(hold_s=60) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 3))
        first = await load(tables)
        await pass_time(60)
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(load(tables))
            await asyncio.sleep(0)  # the load has chosen the snapshot and waits for its turn
            await tables.expire()
        second = loading.result()

        assert second.metadata["current-snapshot-id"] != first.metadata["current-snapshot-id"]
        assert await ids(tables, second) == stored_ids(realm)


@simulated
async def test_a_user_with_one_snapshot_at_a_time_leaves_none_behind() -> None:
    async with realm_with(hold_s=60, snapshots_per_user_max=1) as (realm, tables):
        for _ in range(3):
            await publish(realm, ORDERS, body([b"x"]))
            await load(tables)
        await pass_time(61)
        await tables.expire()
        await realm.delete_channel("orders")
        await tables.expire()

        assert tables.file_bytes == 0


def test_no_two_stores_name_files_alike() -> None:
    """A path that a program has kept must not lead to other rows after a restart."""
    stores = [FileStore(None, 1 << 20, asyncio.to_thread) for _ in range(2)]

    names = [store.next_suffix() for store in stores for _ in range(3)]

    assert len(set(names)) == 6


@simulated
async def test_a_file_is_made_again_if_a_new_property_renames_one_of_its_columns() -> None:
    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"], **{"a": {"x": 1}, "a.b": 7}))
        before = await load(tables)
        await publish(realm, ORDERS, body([b"x"], a={"b": 2}))

        after = await load(tables)

        (first,) = await data_files(tables, before)
        assert "a.b" in (await parquet_table(tables, before, first)).column_names
        values = [
            (await parquet_table(tables, after, path)).to_pylist()
            for path in await data_files(tables, after)
        ]
        assert [
            row["properties.a.b"] for rows in values for row in rows if row["event_id"] == 0
        ] == [7]
