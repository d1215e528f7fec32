"""A part of one store for each shard, and a cache that may be lost at any time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_cluster.storage.shared_blobs import CachedBlobs, PrefixedBlobs
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument, NameDoesNotExist
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import BlobInfo, Blobs, BlobSum, CopyCounts, inline
from penstock_server.storage.disk import make_directories
from penstock_server.storage.embedded import FileBlobs
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.disk import FaultyDisk
from penstock_testing.engine import EngineServers, MemoryEngine
from penstock_testing.loop import simulated

A, B, C = (f"segments/orders.1/{n}.arrow" for n in "abc")


class Counted:
    """A store elsewhere that counts what is fetched from it."""

    grows = False

    def __init__(self) -> None:
        self.blobs = MemoryBlobs()
        self.read_counts: Counter[str] = Counter()
        self.ranges: list[tuple[str, int, int | None]] = []
        self.waits: Callable[[], Any] = lambda: asyncio.sleep(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.blobs, name)

    async def get(self, name: str, offset: int = 0, length: int | None = None) -> memoryview:
        self.read_counts[name] += 1
        self.ranges.append((name, offset, length))
        await self.waits()
        return await self.blobs.get(name, offset, length)

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        return await self.blobs.list(prefix)


class Node:
    """The disk of a node, and its cache of what lies elsewhere."""

    def __init__(self, remote: Blobs, bytes_max: int = 1_000) -> None:
        self.disk = FaultyDisk()
        self.remote = remote
        self.bytes_max = bytes_max
        make_directories(self.disk, "/cache", "/")
        self.start()

    def start(self) -> None:
        self.files = FileBlobs("/cache", disk=self.disk, offload=inline)
        self.blobs = CachedBlobs(self.remote, self.files, self.bytes_max, offload=inline)

    async def cached(self) -> list[str]:
        return [info.name for info in await self.files.list()]


async def stored(**blobs: bytes) -> Counted:
    remote = Counted()
    for name, data in blobs.items():
        await remote.blobs.put(f"segments/orders.1/{name}.arrow", [data])
    return remote


def knows(**blobs: bytes) -> Callable[[str], BlobSum | None]:
    sums = {
        f"segments/orders.1/{name}.arrow": BlobSum(len(data), xxh3_64_intdigest(data))
        for name, data in blobs.items()
    }
    return sums.get


@simulated
async def test_shards_share_a_store_and_see_their_own_part_of_it() -> None:
    blobs = MemoryBlobs()
    seven, seventy = PrefixedBlobs(blobs, "shard-7/"), PrefixedBlobs(blobs, "shard-70/")

    await seven.put(A, [b"of 7"])
    await seventy.put(A, [b"of 70"])

    assert [info.name for info in await blobs.list()] == [f"shard-7/{A}", f"shard-70/{A}"]
    assert [(info.name, info.size) for info in await seven.list("segments/")] == [(A, 4)]
    assert await seven.list("snapshots/") == []
    await seven.delete(A)
    assert bytes(await seventy.get(A)) == b"of 70"


@pytest.mark.parametrize("prefix", ["", "shard-7", "shard-/", "../", "shard-7/8/", "segments/"])
def test_a_prefix_is_that_of_a_shard(prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="shard-7/"):
        PrefixedBlobs(MemoryBlobs(), prefix)


@pytest.mark.parametrize("grows", [True, False])
def test_what_has_a_prefix_grows_if_the_whole_does(grows: bool) -> None:
    assert PrefixedBlobs(MemoryBlobs(grows=grows), "shard-1/").grows is grows


@simulated
async def test_a_file_is_fetched_once_and_whole() -> None:
    remote = await stored(a=b"0123456789")
    node = Node(remote)

    assert bytes(await node.blobs.get(A, 3, 4)) == b"3456"
    assert bytes(await node.blobs.get(A)) == b"0123456789"
    assert bytes(await node.blobs.get(A, 8)) == b"89"

    assert remote.ranges == [(A, 0, None)]
    assert node.blobs.copies == CopyCounts(bytes=10, hits=2, misses=1)
    node.start()
    node.blobs.check_against(knows(a=b"0123456789"))
    assert bytes(await node.blobs.get(A)) == b"0123456789"
    assert remote.read_counts[A] == 1


@pytest.mark.parametrize("first", ["read", "written"])
@simulated
async def test_what_an_earlier_run_has_left_is_not_relied_on_if_nobody_knows_it(first: str) -> None:
    remote = await stored(**({"a": b"what is true"} if first == "read" else {}))
    node = Node(remote)
    await node.files.put(A, [b"of another try"])
    node.start()
    if first == "written":
        await node.blobs.put(A, [b"what is true"])

    assert bytes(await node.blobs.get(A)) == b"what is true"
    assert bytes(await node.files.get(A)) == b"what is true"
    assert remote.read_counts[A] == (first == "read")
    assert bytes(await node.blobs.get(A)) == b"what is true"
    assert remote.read_counts[A] == (first == "read")


@simulated
async def test_those_who_want_one_file_at_once_fetch_it_once() -> None:
    remote = await stored(a=b"0123456789")
    node = Node(remote)
    wanted = asyncio.Event()
    remote.waits = wanted.wait

    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(node.blobs.get(A, n, 1)) for n in range(5)]
        cancelled = reading.pop(0)
        await asyncio.sleep(0)
        cancelled.cancel()
        wanted.set()

    assert [bytes(task.result()) for task in reading] == [b"1", b"2", b"3", b"4"]
    assert remote.read_counts[A] <= 2  # once by who gave up


@simulated
async def test_a_file_larger_than_the_cache_is_read_in_ranges() -> None:
    remote = await stored(a=b"0123456789", b=b"tiny")
    node = Node(remote, bytes_max=9)

    assert bytes(await node.blobs.get(A, 3, 4)) == b"3456"
    assert bytes(await node.blobs.get(A)) == b"0123456789"

    assert remote.ranges == [(A, 3, 4), (A, 0, None)]
    assert await node.cached() == []
    await node.blobs.get(B)
    assert await node.cached() == [B]


@simulated
async def test_what_was_not_read_for_longest_leaves_the_cache() -> None:
    remote = await stored(a=b"a" * 400, b=b"b" * 400, c=b"c" * 400)
    node = Node(remote)
    for name in (A, B, A):
        await node.blobs.get(name)

    view = await node.blobs.get(B)
    await node.blobs.get(A)
    await node.blobs.get(C)

    assert await node.cached() == [A, C]
    assert bytes(view) == b"b" * 400, "what was given out stays"
    assert bytes(await node.blobs.get(B)) == b"b" * 400
    assert remote.read_counts == {A: 1, B: 2, C: 1}


@simulated
async def test_a_cache_that_was_made_smaller_lets_go_at_the_start() -> None:
    remote = await stored(a=b"a" * 400, b=b"b" * 400, c=b"c" * 100)
    node = Node(remote)
    for name in (A, B, C):
        await node.blobs.get(name)

    node.bytes_max = 500
    node.start()
    await node.blobs.get(C)

    assert await node.cached() == [B, C]


@simulated
async def test_what_is_written_is_in_the_cache_and_what_is_deleted_is_not() -> None:
    remote = await stored()
    node = Node(remote)

    await node.blobs.put(A, [b"one", b"two"])

    assert bytes(await node.blobs.get(A)) == b"onetwo"
    assert remote.read_counts[A] == 0
    await node.blobs.delete(A)
    assert await node.cached() == []
    with pytest.raises(NameDoesNotExist, match=A):
        await node.blobs.get(A)


@pytest.mark.spec("N10")
@simulated
async def test_the_two_newest_snapshots_are_kept_and_read_where_they_belong() -> None:
    remote = await stored()
    node = Node(remote)
    names = [f"snapshots/{number}.snap" for number in range(1, 4)]
    for name in names:
        await node.blobs.put(name, [b"state"])
    await node.blobs.put("snapshots/4.snap", [b"x" * 1_001])

    assert await node.cached() == names[1:], "one that is larger than the cache is not kept"
    assert node.blobs.copies.bytes == 0, "they do not count as segments"
    assert bytes(await node.blobs.get(names[-1])) == b"state"
    assert remote.read_counts[names[-1]] == 1


@simulated
async def test_nothing_grows_in_a_cache() -> None:
    remote = await stored(a=b"one")
    node = Node(remote)

    assert not node.blobs.grows
    with pytest.raises(IllegalState, match="copies"):
        await node.blobs.extend(A, 3, [b"more"])
    assert node.blobs.local_path(A) is None


@pytest.mark.parametrize("cached_bytes", [b"of another epoch", b"as long as it"])
@simulated
async def test_a_file_in_the_cache_with_other_bytes_is_fetched_again(cached_bytes: bytes) -> None:
    remote = await stored(a=b"what is true.")
    node = Node(remote)
    await node.files.put(A, [cached_bytes])
    node.start()
    node.blobs.check_against(knows(a=b"what is true."))

    assert bytes(await node.blobs.get(A)) == b"what is true."
    assert bytes(await node.files.get(A)) == b"what is true."
    assert remote.read_counts[A] == 1


@simulated
async def test_a_file_that_rots_in_the_cache_between_two_runs_is_fetched_again() -> None:
    remote = await stored(a=b"x" * 600)
    node = Node(remote)
    node.blobs.check_against(knows(a=b"x" * 600))
    await node.blobs.get(A)
    node.disk.flip(f"/cache/{A}", 300)

    node.start()
    node.blobs.check_against(knows(a=b"x" * 600))

    assert bytes(await node.blobs.get(A)) == b"x" * 600
    assert remote.read_counts[A] == 2


@simulated
async def test_what_is_damaged_elsewhere_is_given_as_it_is_and_not_kept() -> None:
    remote = await stored(a=b"what is there")
    node = Node(remote)
    node.blobs.check_against(knows(a=b"what was true"))

    assert bytes(await node.blobs.get(A, 5, 2)) == b"is"
    assert await node.cached() == []
    with pytest.raises(InvalidArgument, match="13 bytes"):
        await node.blobs.get(A, 13, 1)


@simulated
async def test_a_cache_whose_disk_is_full_costs_nothing_but_time() -> None:
    remote = await stored(a=b"0123456789")
    node = Node(remote)
    node.disk.fail_writes(3)

    assert bytes(await node.blobs.get(A, 3, 4)) == b"3456"
    await node.blobs.put(B, [b"written"])

    assert bytes(await remote.blobs.get(B)) == b"written"
    assert bytes(await node.blobs.get(B)) == b"written"
    assert await node.cached() == []


@simulated
async def test_a_file_somebody_removed_from_the_cache_is_read_elsewhere() -> None:
    remote = await stored(a=b"0123456789")
    node = Node(remote)
    await node.blobs.get(A)
    node.disk.unlink(f"/cache/{A}")

    assert bytes(await node.blobs.get(A, 3, 4)) == b"3456"
    assert bytes(await node.blobs.get(A)) == b"0123456789"
    assert await node.cached() == [A]


def test_a_cache_has_no_less_than_nothing() -> None:
    with pytest.raises(InvalidArgument, match="-1 bytes"):
        Node(Counted(), bytes_max=-1)


@pytest.mark.parametrize("bytes_max", [0, 2_000, 1 << 20])
@simulated
async def test_an_owner_with_a_cold_cache_reads_what_the_owner_before_has_sealed(
    bytes_max: int,
) -> None:
    servers, written = EngineServers(), {}
    for epoch in range(1, 4):
        engine = MemoryEngine(servers)
        journal, shard = await engine.journal(0, epoch), await engine.blobs(0)
        blobs = Node(PrefixedBlobs(shard, "shard-0/"), bytes_max).blobs
        async with living(journal, blobs, sealing=EAGER, epoch=epoch) as realm:
            if epoch == 1:
                storage = Storage(events_per_spindle=5)
                await realm.create_channel("orders", Definition(type="persistent", storage=storage))
            for number in range(epoch * 5 - 5, epoch * 5):
                data = Random(number).randbytes(300)
                written[number] = data
                await publish(realm, ChannelId(1), body([data]))
            await sealed(realm, "orders")

            assert realm.recovered.damage == []
            assert await events(realm, ChannelId(1)) == written


@simulated
async def test_an_owner_whose_cache_has_rotted_while_it_was_down_reports_no_damage() -> None:
    servers = EngineServers()
    node = Node(MemoryBlobs(), bytes_max=1 << 20)
    for epoch in (1, 2):
        engine = MemoryEngine(servers)
        journal, node.remote = await engine.journal(0, epoch), await engine.blobs(0)
        node.start()
        async with living(journal, node.blobs, sealing=EAGER, epoch=epoch) as realm:
            if epoch == 1:
                storage = Storage(events_per_spindle=5)
                await realm.create_channel("orders", Definition(type="persistent", storage=storage))
                await publish(realm, ChannelId(1), *[body([b"x" * 300])] * 5)
                await sealed(realm, "orders")

            assert realm.recovered.damage == []
            assert await events(realm, ChannelId(1)) == dict.fromkeys(range(5), b"x" * 300)
        for name in await node.cached():
            node.disk.flip(f"/cache/{name}", 800)
