"""Later loads of a table: right after any history, with as little work as possible, and without
holding up other work."""

from __future__ import annotations

import asyncio
import io
from contextlib import suppress
from random import Random
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packages.lakehouse.tests.reading import (
    ANN,
    EPOCH,
    data_files,
    ids,
    load,
    parquet_table,
    stored_ids,
)
from packages.lakehouse.tests.test_channel_tables import ORDERS, SPINDLES, purge, realm_with
from packages.server.tests.runtime.living import SINGLE, body, publish, sealed
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import LimitReached
from penstock_lakehouse import event_files
from penstock_lakehouse.captured_channel import SealedAtCapture
from penstock_lakehouse.channel_tables import ChannelTables
from penstock_lakehouse.data_files import Metrics
from penstock_lakehouse.event_files import EventFiles
from penstock_lakehouse.manifests import ManifestEntry, manifest, manifest_record
from penstock_server.runtime.realm import RunningRealm
from penstock_testing.loop import pass_time, simulated

METRICS = Metrics({1: 8}, {1: 1}, {1: 0}, lower={1: b"a"}, upper={1: b"z"})


async def one_step(chance: Random, realm: RunningRealm, tables: ChannelTables) -> None:
    """Change the channel, or let time end grants."""
    end = realm.shard.state.channels[ORDERS].state.next_id
    step = chance.randrange(10)
    if step < 4:
        new_property = {f"p{chance.randrange(3)}": chance.choice([1, 0.5])}
        await publish(realm, ORDERS, body([b"x"] * chance.randint(1, 8), **new_property))
    elif step < 6:
        await sealed(realm, "orders")
    elif step < 8 and end:
        first = chance.randrange(end)
        await purge(realm, first, min(end - 1, first + chance.randrange(10)))
    elif step == 8:
        await realm.maintain("orders")
    else:
        await pass_time(chance.choice([0.1, 61]))


async def located_rows(tables: ChannelTables, realm: RunningRealm) -> int:
    """Return the number of rows in the files of a load without removed events."""
    await tables.locate(ORDERS, EPOCH, ANN)
    loaded = await load(tables)
    return int(loaded.metadata["snapshots"][-1]["summary"]["total-records"])


@pytest.mark.spec("B1", "B2", "B7")
@pytest.mark.slow
@pytest.mark.parametrize("definition", [SPINDLES, SINGLE], ids=["spindles", "single"])
@pytest.mark.parametrize("cache_bytes", [1 << 30, 100_000])
@pytest.mark.parametrize("seed", range(4))
def test_each_load_has_what_is_stored_after_any_history(
    definition: Definition, cache_bytes: int, seed: int
) -> None:
    chance = Random(seed)

    @simulated
    async def run() -> None:
        async with realm_with(definition, cache_bytes_max=cache_bytes, hold_s=60) as (
            realm,
            tables,
        ):
            checked = 0
            for _ in range(40):
                await one_step(chance, realm, tables)
                # With little room a load may be refused midway; the next must be right all the same
                with suppress(LimitReached):
                    if chance.random() < 0.3:
                        assert await located_rows(tables, realm) == len(stored_ids(realm))
                    assert await ids(tables, await load(tables)) == stored_ids(realm)
                    checked += 1
            assert checked > 4

    run()


@pytest.mark.slow
@simulated
async def test_a_later_load_inspects_the_changed_sealed_files_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspected: list[str] = []
    prepare_sealed = EventFiles._prepare_sealed

    async def recorded(self: EventFiles, channel: Any, file: Any, *rest: Any, **more: Any) -> Any:
        inspected.append(file.name)
        return await prepare_sealed(self, channel, file, *rest, **more)

    monkeypatch.setattr(EventFiles, "_prepare_sealed", recorded)
    async with realm_with() as (realm, tables):
        for _ in range(10):
            await publish(realm, ORDERS, body([b"x"] * 10))
        await sealed(realm, "orders")
        names = [file.name for file in realm.shard.state.stores[ORDERS].files]
        first = await load(tables)
        assert inspected == names

        inspected.clear()
        await publish(realm, ORDERS, body([b"x"]))
        second = await load(tables)
        assert inspected == []
        assert await data_files(tables, second) > await data_files(tables, first)

        await purge(realm, 31, 31)
        await load(tables)
        assert inspected == [names[3]]


@pytest.mark.spec("B2")
@pytest.mark.slow
@simulated
async def test_a_load_after_a_failed_one_has_no_event_that_was_removed_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[SealedAtCapture] = []
    prepare_sealed = EventFiles._prepare_sealed

    async def failing(self: EventFiles, channel: Any, file: Any, *rest: Any, **more: Any) -> Any:
        made.append(file)
        if len(made) == 2:
            raise LimitReached("no room for the second file")
        return await prepare_sealed(self, channel, file, *rest, **more)

    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"] * 10))
        await sealed(realm, "orders")
        await load(tables)
        for _ in range(2):
            await publish(realm, ORDERS, body([b"y"] * 10))
        await sealed(realm, "orders")
        with monkeypatch.context() as patched:
            patched.setattr(EventFiles, "_prepare_sealed", failing)
            with pytest.raises(LimitReached):
                await load(tables)
        await purge(realm, 10, 19)
        assert len(realm.shard.state.stores[ORDERS].files) == 3, "the file is not removed yet"

        assert await ids(tables, await load(tables)) == [*range(10), *range(20, 30)]


@pytest.mark.spec("B4")
@pytest.mark.slow
@simulated
async def test_a_sealed_file_is_made_again_if_a_new_property_renames_one_of_its_columns() -> None:
    async with realm_with() as (realm, tables):
        await publish(realm, ORDERS, body([b"x"], **{"a": {"x": 1}, "a.b": 7}))
        await sealed(realm, "orders")
        await load(tables)
        await publish(realm, ORDERS, body([b"x"], a={"b": 2}))

        loaded = await load(tables)

        rows = [
            row
            for path in await data_files(tables, loaded)
            for row in (await parquet_table(tables, loaded, path)).to_pylist()
        ]
        assert [row["properties.a.b"] for row in rows if row["event_id"] == 0] == [7]


@pytest.mark.slow
@simulated
async def test_a_load_of_many_files_lets_other_work_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_files, "WORK_AT_ONCE", 4)
    async with realm_with() as (realm, tables):
        for _ in range(40):
            await publish(realm, ORDERS, body([b"x"]))
        await sealed(realm, "orders")
        await load(tables)
        await publish(realm, ORDERS, body([b"x"]))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.get_running_loop().create_task(count_turns())
        await load(tables)
        counting.cancel()

        assert turns >= 10, "the loop turned once for each four files"


@given(st.integers(0, 300))
def test_a_manifest_of_encoded_records_is_an_avro_file(count: int) -> None:
    entries = [
        ManifestEntry(f"s3://b/{number}.parquet", rows=number, size=9, metrics=METRICS)
        for number in range(count)
    ]
    records = [manifest_record(entry, "data") for entry in entries]

    data = manifest(records, "data", {"type": "struct", "schema-id": 0, "fields": []})

    reader = fastavro.reader(io.BytesIO(data))
    listed: list[Any] = list(reader)
    files = [record["data_file"] for record in listed]
    assert reader.metadata["content"] == "data"
    assert [file["file_path"] for file in files] == [entry.path for entry in entries]
    assert [file["record_count"] for file in files] == list(range(count))
    assert all(file["upper_bounds"] == [{"key": 1, "value": b"z"}] for file in files)
