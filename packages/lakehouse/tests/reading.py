"""Reads the files of a snapshot as a client does: manifests with fastavro, rows with pyarrow."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
from pyarrow import parquet

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.identities import ChannelId
from penstock_lakehouse.channel_tables import ChannelTables, LoadedTable
from penstock_lakehouse.file_store import BUCKET
from penstock_server.runtime.realm import RunningRealm

ANN = Principal("ann", "pc")
EPOCH = "realm/1"


async def load(
    tables: ChannelTables, number: int = 1, reader: Principal = ANN, epoch: str = EPOCH
) -> LoadedTable:
    return await tables.load(ChannelId(number), epoch, reader)


async def content(tables: ChannelTables, loaded: LoadedTable, location: str) -> bytes:
    """Return the bytes of a file, which is read with the key of the loaded table."""
    grant = tables.grant_of(loaded.key)
    assert grant is not None, "the key has ended"
    file = tables.file_of(grant, location.removeprefix(f"s3://{BUCKET}/"))
    return await tables.read(file, 0, file.size)


async def entries(tables: ChannelTables, loaded: LoadedTable) -> list[dict[str, Any]]:
    """Return the descriptions of the files in the manifests of the newest snapshot."""
    listed = await records(tables, loaded, loaded.metadata["snapshots"][-1]["manifest-list"])
    return [
        entry["data_file"]
        for manifest in listed
        for entry in await records(tables, loaded, manifest["manifest_path"])
    ]


async def records(tables: ChannelTables, loaded: LoadedTable, location: str) -> list[Any]:
    data = await content(tables, loaded, location)
    return list(fastavro.reader(io.BytesIO(data)))


async def ids(tables: ChannelTables, loaded: LoadedTable) -> list[int]:
    """Return the sorted ids of the events in the newest snapshot, without removed events."""
    removed: set[tuple[str, int]] = set()
    rows: list[tuple[str, int, int]] = []
    for file in await entries(tables, loaded):
        table = await parquet_table(tables, loaded, file["file_path"])
        assert table.num_rows == file["record_count"]
        if file["content"]:
            removed |= {(row["file_path"], row["pos"]) for row in table.to_pylist()}
        else:
            rows += [
                (file["file_path"], position, event_id)
                for position, event_id in enumerate(table.column("event_id").to_pylist())
            ]
    assert removed <= {(path, position) for path, position, _ in rows}
    return sorted(event_id for path, position, event_id in rows if (path, position) not in removed)


async def parquet_table(tables: ChannelTables, loaded: LoadedTable, location: str) -> pa.Table:
    return parquet.read_table(pa.BufferReader(await content(tables, loaded, location)))


async def data_files(tables: ChannelTables, loaded: LoadedTable) -> set[str]:
    return {file["file_path"] for file in await entries(tables, loaded) if not file["content"]}


def stored_ids(realm: RunningRealm, number: int = 1) -> list[int]:
    return list(realm.shard.state.channels[ChannelId(number)].state.stored)
