"""The copies of segments in a node's data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_cluster.bootstrap.cluster import open_shard
from penstock_core.vocabulary.ports import Blobs
from penstock_server.runtime.delivery.owner_lease import ENDLESS
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings import ClusterSettings, Settings
from penstock_testing.engine import EngineServers, MemoryEngine
from tests.loops import on_a_loop

SEGMENT = "segments/1/0-9.1.arrow"
DATA = b"columns"


async def put_and_got(tmp_path: Path, cache_bytes: int) -> tuple[bytes, Blobs]:
    """Return the content that an owner reads of a segment that it has written, and the blobs of the
    engine."""
    engine = MemoryEngine(EngineServers())
    blobs = await engine.blobs(0)
    realm = await open_shard(
        await engine.journal(0, 1),
        blobs,
        ENDLESS,
        registry=await engine.registry(),
        settings=Settings(cluster=ClusterSettings(cache_bytes=cache_bytes)),
        clock=SystemClock(),
        directory=tmp_path,
        identity="an-identity",
    )
    try:
        await realm.blobs.put(SEGMENT, [DATA])
        return bytes(await realm.blobs.get(SEGMENT)), blobs
    finally:
        await realm.release()


@on_a_loop
async def test_an_owner_keeps_copies_of_segments_in_its_data_directory(tmp_path: Path) -> None:
    content, blobs = await put_and_got(tmp_path, cache_bytes=1 << 20)

    assert content == bytes(await blobs.get(SEGMENT)) == DATA
    assert (tmp_path / "cache" / SEGMENT).read_bytes() == DATA


@pytest.mark.parametrize("cache_bytes", [0, len(DATA) - 1])
@on_a_loop
async def test_what_is_larger_than_the_cache_is_on_the_engine_alone(
    tmp_path: Path, cache_bytes: int
) -> None:
    content, _ = await put_and_got(tmp_path, cache_bytes)

    assert content == DATA
    assert not (tmp_path / "cache" / SEGMENT).exists()


@on_a_loop
async def test_files_of_tables_are_in_the_data_directory_and_go_with_the_next_owner(
    tmp_path: Path,
) -> None:
    earlier_file = tmp_path / "tables" / "0.parquet"
    earlier_file.parent.mkdir()
    earlier_file.write_bytes(DATA)
    engine = MemoryEngine(EngineServers())

    realm = await open_shard(
        await engine.journal(0, 1),
        await engine.blobs(0),
        ENDLESS,
        registry=await engine.registry(),
        settings=Settings(),
        clock=SystemClock(),
        directory=tmp_path,
        identity="an-identity",
    )
    await realm.release()

    assert realm.scratch_folder == earlier_file.parent
    assert not earlier_file.exists()
