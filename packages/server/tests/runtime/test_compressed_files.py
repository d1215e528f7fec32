"""Files of events may be compressed; the events read from them are the same (SEM S)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.compressed_batches import (
    PACKED,
    rows,
    with_a_batch_that_cannot_be_unpacked,
)
from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_core.columns.files.growing_segment import end_of_batches, extended, started
from penstock_core.columns.files.segments import (
    UNPACKED_MAX,
    SegmentReader,
    UnpackedBatches,
    encode_segment,
)
from penstock_core.columns.schema.ipc import is_compressed
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.compression import Compression
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.compaction import MaintenanceLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

pytestmark = pytest.mark.spec("S")

ALIKE = [b"flight from here to there " * 40] * 100


def channel(compression: Compression, *, single: bool) -> Definition:
    storage = Storage(compression=compression, events_per_spindle=0 if single else 1_000)
    return Definition(type="persistent", storage=storage)


async def sealed_bytes(blobs: MemoryBlobs) -> int:
    return sum(info.size for info in await blobs.list("segments/"))


@pytest.mark.parametrize("compression", PACKED)
def test_a_compressed_segment_is_a_plain_arrow_file_and_is_read_alike(
    compression: Compression,
) -> None:
    batch = rows(5, 1_000)
    plain = encode_segment([batch], rows_per_batch=300)
    image = encode_segment([batch], rows_per_batch=300, compression=compression)
    reader = SegmentReader(image.buffer, image.index)

    assert image.buffer.size * 2 < plain.buffer.size
    assert pa.ipc.open_file(image.buffer).read_all().equals(pa.Table.from_batches([batch]))
    assert pa.Table.from_batches(reader.read(Span(0, 2_000))).equals(pa.Table.from_batches([batch]))
    assert [record_batch.num_rows for record_batch in reader.read(Span(300, 310))] == [5, 5]
    assert [record_batch.span for record_batch in image.index.batches] == [
        record_batch.span for record_batch in plain.index.batches
    ]
    assert [record_batch.summary for record_batch in image.index.batches] == [
        record_batch.summary for record_batch in plain.index.batches
    ]


@pytest.mark.parametrize("compression", PACKED)
def test_a_file_grows_by_batches_compressed_or_not(compression: Compression) -> None:
    first = started([rows(0, 10)])
    tail = bytes(first.chunks[-1])
    second = extended(first.index, tail, [rows(10, 500)], compression=compression)
    third = extended(second.index, bytes(second.chunks[-1]), [rows(510, 10)])
    file = b"".join(map(bytes, first.chunks))[: end_of_batches(first.index.batches)]
    file += b"".join(map(bytes, second.chunks))[: -1 * len(bytes(second.chunks[-1]))]
    file += b"".join(map(bytes, third.chunks))

    reader = SegmentReader(memoryview(file), third.index)

    table = pa.Table.from_batches([rows(0, 520)])
    assert pa.Table.from_batches(reader.read(Span(0, 600))).equals(table)
    assert pa.ipc.open_file(pa.py_buffer(file)).read_all().equals(table)


def test_few_unpacked_batches_stay_in_memory() -> None:
    image = encode_segment([rows(0, 1_000)], rows_per_batch=100, compression="zstd")
    reader = SegmentReader(image.buffer, image.index)

    for number in range(10):
        reader.batch(number)

    kept = [batch for batch in reader.batches if batch is not None]
    assert len(kept) == UNPACKED_MAX
    assert reader.batch(9) is reader.batch(9)
    assert reader.batch(0).equals(rows(0, 100))


def test_unpacked_batches_of_many_files_are_bounded_together() -> None:
    image = encode_segment([rows(0, 1_000)], rows_per_batch=100, compression="lz4")
    unpacked = UnpackedBatches()
    readers = [SegmentReader(image.buffer, image.index, unpacked=unpacked) for _ in range(20)]
    size = readers[0].unpacked_size(3)
    unpacked.bytes_max = 5 * size + size // 2

    def kept() -> list[tuple[int, int]]:
        kept_batches = [
            (index, n)
            for index, one_reader in enumerate(readers)
            for n in range(10)
            if one_reader.batches[n]
        ]
        assert sum(unpacked.sizes.values()) <= unpacked.bytes_max
        return kept_batches

    for reader in readers:
        reader.batch(3)
        reader.batch(7)
    assert kept() == [(17, 7), (18, 3), (18, 7), (19, 3), (19, 7)]
    assert readers[0].batch(3).equals(rows(300, 100))
    assert kept() == [(0, 3), (18, 3), (18, 7), (19, 3), (19, 7)]
    unpacked.bytes_max = 1
    assert readers[1].batch(0) is readers[1].batch(0), "the newest stays"
    assert len(unpacked.sizes) == 1


def test_damage_of_a_compressed_batch_is_found_and_the_others_are_read() -> None:
    image = encode_segment([rows(0, 300)], rows_per_batch=100, compression="zstd")
    file = bytearray(memoryview(image.buffer))
    file[image.index.batches[1].offset + image.index.batches[1].length - 9] ^= 1
    reader = SegmentReader(memoryview(bytes(file)), image.index)

    with pytest.raises(Damaged, match="events 100-199"):
        reader.batch(1)
    assert reader.batch(2).equals(rows(200, 100))
    assert len(reader.check()) == 1


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("compression", PACKED)
@simulated
async def test_what_is_sealed_is_smaller_and_read_alike_also_after_a_restart(
    compression: Compression, single: bool
) -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs) as realm:
        await realm.create_channel("orders", channel(compression, single=single))
        await publish(realm, ChannelId(1), body(ALIKE, price=1.5))
        await publish(realm, ChannelId(1), body([b"other"] * 10))
        await sealed(realm, "orders")
        assert await sealed_bytes(blobs) < sum(map(len, ALIKE)) / 4
        before = await events(realm, ChannelId(1))
        assert list(before.values()) == ALIKE + [b"other"] * 10

    async with living(journal, blobs) as realm:
        assert await events(realm, ChannelId(1)) == before


@simulated
async def test_a_rewritten_file_has_the_compression_that_its_channel_has_now() -> None:
    blobs = MemoryBlobs()
    limits = replace(EAGER, maintenance=MaintenanceLimits(dead_bytes=1, interval_s=0.01))
    async with living(MemoryJournal(), blobs, sealing=limits) as realm:
        await realm.create_channel("orders", channel("none", single=True))
        await publish(realm, ChannelId(1), body(ALIKE))
        await sealed(realm, "orders")
        await pass_time(5)
        assert await sealed_bytes(blobs) > sum(map(len, ALIKE))

        await realm.edit_channel("orders", channel("zstd", single=True))
        await realm.maintain("orders")

        assert await sealed_bytes(blobs) < sum(map(len, ALIKE)) / 4
        assert list((await events(realm, ChannelId(1))).values()) == ALIKE
        [info] = await blobs.list("segments/")
        file = realm.shard.state.stores[ChannelId(1)].files[0]
        data = pa.py_buffer(await blobs.get(info.name))
        [place] = file.index.batches
        assert is_compressed(data.slice(place.offset, place.length))


@pytest.mark.parametrize("compression", PACKED)
def test_a_batch_that_passes_its_checksum_and_cannot_be_unpacked_is_damage(
    compression: Compression,
) -> None:
    file, index = with_a_batch_that_cannot_be_unpacked(compression)
    reader = SegmentReader(memoryview(file), index, name="orders")

    with pytest.raises(Damaged, match=r"orders: batch 1, events 100-199: .* not the batch"):
        reader.batch(1)
    assert reader.batch(2).equals(rows(200, 100))
    assert len(reader.check()) == 1


@simulated
async def test_a_part_of_an_export_is_as_large_as_what_is_in_it_unpacked() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("orders", channel("zstd", single=True))
        for _ in range(6):
            await publish(realm, ChannelId(1), body([bytes(10_000)] * 50))
            await sealed(realm, "orders")
        [file] = realm.shard.state.stores[ChannelId(1)].files
        assert (len(file.index.batches), file.index.size < 100_000) == (6, True)

        realm.exports.part_bytes = 1 << 20
        begun = await realm.exports.begin("me", "orders", "channel")
        parts = [
            (await realm.exports.read("me", begun.export, number, offset=0)).file
            for number in range(3)
        ]

        assert [(part.rows, part.size < 1_100_000) for part in parts] == [(100, True)] * 3


async def forms(realm: RunningRealm, blobs: MemoryBlobs) -> list[bool]:
    """Whether each batch of the files of the first channel is compressed, in the order of ids."""
    compressed = []
    for file in realm.shard.state.stores[ChannelId(1)].files:
        data = pa.py_buffer(await blobs.get(file.name))
        places = file.index.batches
        compressed += [is_compressed(data.slice(place.offset, place.length)) for place in places]
    return compressed


@pytest.mark.parametrize("single", [False, True])
@simulated
async def test_files_of_either_form_lie_side_by_side_and_a_single_file_is_rewritten_in_the_newest(
    single: bool,
) -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    wanted: list[bytes] = []
    remaining: dict[int, bytes] = {}
    edits: tuple[Compression, ...] = ("none", "zstd", "lz4", "none")
    async with living(journal, blobs) as realm:
        await realm.create_channel("orders", channel("none", single=single))
        for compression in edits:
            await realm.edit_channel("orders", channel(compression, single=single))
            await publish(realm, ChannelId(1), body(ALIKE))
            await sealed(realm, "orders")
            wanted += ALIKE
        assert await forms(realm, blobs) == [False, True, True, False]
        assert list((await events(realm, ChannelId(1))).values()) == wanted

    async with living(journal, blobs) as realm:
        assert list((await events(realm, ChannelId(1))).values()) == wanted
        rewrites: tuple[Compression, ...] = ("zstd", "none")
        for last in rewrites:
            await realm.edit_channel("orders", channel(last, single=single))
            for first in range(0, 400, 100):
                removed_through = first + rewrites.index(last)
                await realm.subscriptions.purge(
                    ChannelId(1), removed_through, removed_through, selector=""
                )
            await realm.maintain("orders")
            remaining = await events(realm, ChannelId(1))
            assert len(remaining) == 396 - 4 * rewrites.index(last)
            rewritten = [last == "zstd"]
            assert await forms(realm, blobs) == (
                rewritten if single else [False, True, True, False]
            )
            assert [wanted[number] for number in remaining] == list(remaining.values())

    async with living(journal, blobs) as realm:
        assert await events(realm, ChannelId(1)) == remaining
        assert (await realm.describe_channel("orders")).storage.quarantined == ()


@simulated
async def test_newest_values_of_publish_keys_are_known_from_compressed_files() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    keyed = replace(channel("zstd", single=False), keys={"sku": 1})
    async with living(journal, blobs) as realm:
        await realm.create_channel("stock", keyed)
        for sku in range(20):
            await publish(realm, ChannelId(1), body([b"old"], sku=sku))
        await sealed(realm, "stock")
        assert {*await forms(realm, blobs)} == {True}

    async with living(journal, blobs) as realm:
        for sku in range(0, 20, 2):
            await publish(realm, ChannelId(1), body([b"new"], sku=sku))
        await sealed(realm, "stock")

    async with living(journal, blobs) as realm:
        remaining = await events(realm, ChannelId(1))
        assert remaining == dict.fromkeys(range(1, 20, 2), b"old") | dict.fromkeys(
            range(20, 30), b"new"
        )


@pytest.mark.spec("C7")
@pytest.mark.parametrize("compression", PACKED)
@simulated
async def test_an_export_is_compressed_as_its_channel_is(compression: Compression) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("orders", channel(compression, single=False))
        await publish(realm, ChannelId(1), body(ALIKE))
        await sealed(realm, "orders")
        await publish(realm, ChannelId(1), body(ALIKE))

        begun = await realm.exports.begin("me", "orders", "channel")
        files = [
            await realm.exports.read("me", begun.export, number, offset=0)
            for number in range(begun.files)
        ]

        assert sum(part.file.size for part in files) < sum(map(len, ALIKE)) / 4
        tables = [pa.ipc.open_file(part.content).read_all() for part in files]
        assert pa.concat_tables(tables).column("data").to_pylist() == ALIKE * 2
