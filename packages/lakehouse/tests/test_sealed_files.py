"""Files of sealed events for archives on the realm's machine, on virtual time."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from packages.lakehouse.tests.reading import ANN, EPOCH, load
from packages.lakehouse.tests.test_channel_tables import (
    ORDERS,
    SPINDLES,
    purge,
    realm_with,
    tables_with_damage,
)
from packages.server.tests.runtime.living import SINGLE, body, living, publish, sealed
from penstock_core.access.rights import Principal
from penstock_core.api.tables import SealedTableFiles
from penstock_core.bounds import EVENT_ID_MAX
from penstock_core.columns.events.body import body_of_columns
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes, schema_from
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Damaged, LimitReached, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_lakehouse import channel_tables
from penstock_lakehouse.channel_tables import ChannelTables, tables_of
from penstock_server.runtime.store.bodies import Body
from penstock_server.storage.disk import RealDisk
from penstock_testing.loop import pass_time, simulated
from penstock_testing.stores import open_store

pytestmark = [pytest.mark.spec("B8"), pytest.mark.slow]

ALL = Span(0, EVENT_ID_MAX + 1)
BOB = Principal("bob", "pc")


async def locate(
    tables: ChannelTables,
    span: Span = ALL,
    *,
    rows_min: int = 1,
    reader: Principal = ANN,
    number: int = 1,
    epoch: str = EPOCH,
) -> SealedTableFiles:
    return await tables.locate_sealed(
        ChannelId(number), epoch, reader, span=span, rows_min=rows_min
    )


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


def spans(located: SealedTableFiles) -> list[tuple[int, int]]:
    return [(file.span.first, file.span.end) for file in located.files]


@simulated
async def test_each_file_has_all_stored_events_of_its_range() -> None:
    async with realm_with() as (realm, tables):
        for _ in range(3):
            await publish(realm, ORDERS, body([b"x"] * 20, price=1))
        await sealed(realm, "orders")
        await publish(realm, ORDERS, body([b"x"] * 20))
        await purge(realm, 3, 4)
        await purge(realm, 20, 39)

        located = await locate(tables)

        assert spans(located) == [(0, 20), (20, 60)], "the removed events belong to the next file"
        assert [file.rows for file in located.files] == [18, 20]
        assert "properties" in schema_from(located.columns).names


@simulated
async def test_files_outside_of_the_range_are_left_out() -> None:
    async with realm_with() as (realm, tables):
        for _ in range(4):
            await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")

        assert spans(await locate(tables, Span(20, 60))) == [(20, 40), (40, 60)]
        assert spans(await locate(tables, Span(5, 59))) == [(20, 40)]
        assert spans(await locate(tables, Span(20, 39))) == []
        assert spans(await locate(tables, rows_min=21)) == []
        for span in (Span(0, 0), Span(60, 20), Span(80, ALL.end), Span(EVENT_ID_MAX, ALL.end)):
            assert spans(await locate(tables, span)) == []
        await purge(realm, 20, 24)
        assert spans(await locate(tables, Span(23, 60))) == [(23, 40), (40, 60)]
        assert spans(await locate(tables, Span(26, 60))) == [(40, 60)]


@simulated
async def test_events_in_memory_keep_their_range_out() -> None:
    async with realm_with(Definition(type="mixed", retain_consumed=True)) as (realm, tables):
        for number in range(4):
            batch = body_of_columns([b"x"] * 20, persistents=[number != 1] * 20)
            rows = Body(batch_bytes(batch), batch, schema_bytes(batch.schema))
            await publish(realm, ORDERS, rows)
        # The events that are not persistent stay in memory, so that not all can be sealed.
        while not (located := await locate(tables)).files:
            await pass_time(0.01)

        assert sum(file.rows for file in located.files) == sum(
            file.span.size for file in located.files
        )
        assert all(end <= 20 or first >= 40 for first, end in spans(located))


@simulated
async def test_a_file_that_still_grows_is_left_out() -> None:
    async with realm_with(SINGLE) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        assert spans(await locate(tables)) == []


@simulated
async def test_an_answer_has_a_limited_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_tables, "SEALED_FILES_MAX", 2)
    async with realm_with() as (realm, tables):
        for _ in range(5):
            await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")

        assert spans(await locate(tables)) == [(0, 20), (20, 40)]
        one_answer = tables.file_bytes
        assert spans(await locate(tables, Span(40, ALL.end))) == [(40, 60), (60, 80)]
        assert tables.file_bytes == 2 * one_answer, "no other file was made"


@simulated
async def test_files_of_a_load_are_used_if_no_event_of_them_is_removed(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), RealDisk())
    async with living(store.journal, store.blobs) as realm:
        realm.scratch_folder = tmp_path / "tables"
        tables = tables_of(realm)
        await realm.create_channel("orders", SPINDLES)
        for _ in range(2):
            await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        clean = [file.path for file in (await tables.locate(ORDERS, EPOCH, ANN)).files]
        assert [file.path for file in (await locate(tables)).files] == clean
        await purge(realm, 3, 3)
        await load(tables)
        first, second = (await locate(tables)).files

        assert second.path == clean[1]
        assert first.path != clean[0]
        assert pq.read_table(first.path).num_rows == first.rows == 19
        assert len(read_bytes(first.path)) == first.size
        assert pq.read_table(clean[0]).num_rows == 20, "files are never changed"
    await realm.release()


@simulated
async def test_the_next_request_and_the_end_of_the_time_release_the_files() -> None:
    async with realm_with(hold_s=60) as (realm, tables):
        for _ in range(2):
            await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        first = await locate(tables, Span(0, 20))
        await locate(tables, Span(0, 20), reader=BOB)
        held = {file.name: file.users for file in tables._store._files.values()}
        assert [*held.values()] == [2]
        await locate(tables, Span(20, 40))
        assert sorted(file.users for file in tables._store._files.values()) == [1, 1]
        assert first.until_us > 0

        await pass_time(70)
        assert [file.users for file in tables._store._files.values()] == [0, 0]


@simulated
async def test_a_user_holds_files_of_a_limited_number_of_channels() -> None:
    async with realm_with(hold_s=60, snapshots_per_user_max=1) as (realm, tables):
        await realm.create_channel("others", SPINDLES)
        for number in (1, 2):
            await publish(realm, ChannelId(number), body([b"x"] * 20))
        await sealed(realm, "orders")
        await sealed(realm, "others")
        await locate(tables)
        await locate(tables, number=2, epoch="realm/2")
        assert sorted(file.users for file in tables._store._files.values()) == [0, 1]


@simulated
async def test_without_room_for_its_files_a_request_is_refused() -> None:
    async with realm_with(cache_bytes_max=100) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20))
        await sealed(realm, "orders")
        with pytest.raises(LimitReached, match=r"tables\.cache_bytes"):
            await locate(tables)
        assert tables.file_bytes == 0


@simulated
async def test_a_merge_channel_has_no_such_files() -> None:
    definition = Definition(type="persistent", engine="merge", keys={"n": 1})
    async with realm_with(definition) as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 20, n=1))
        assert spans(await locate(tables)) == []


@simulated
async def test_a_channel_that_does_not_exist_is_named() -> None:
    async with realm_with() as (realm, tables):
        await realm.delete_channel("orders", "channel")
        with pytest.raises(NameDoesNotExist):
            await locate(tables)


@simulated
async def test_unreadable_events_are_set_aside(tmp_path: Path) -> None:
    async with tables_with_damage(tmp_path) as tables:
        with pytest.raises(Damaged, match="orders has unreadable events"):
            await locate(tables)
        assert spans(await locate(tables)) == [(0, 10), (10, 30)]
