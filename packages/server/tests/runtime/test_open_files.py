"""The files that stay open, and for how long (SEM S, caching)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.files import files, on_disk
from packages.server.tests.runtime.living import EAGER, body, events, living, publish, sealed
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

SPINDLES = Definition(
    type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=10)
)


async def filled(realm: RunningRealm, definition: Definition) -> None:
    await realm.create_channel("orders", definition)
    for number in range(10):
        await publish(realm, ChannelId(1), body([b"%d" % number * 50] * 10))
    await sealed(realm, "orders")


def open_now(realm: RunningRealm) -> int:
    return sum(file.is_open for file in realm.shard.state.stores[1].files)


@simulated
async def test_files_stay_open_after_they_were_read() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, SPINDLES)
        assert (open_now(realm), realm.dispatch.files.bytes) == (0, 0)
        await events(realm, ChannelId(1))
        info = await realm.describe_channel("orders")
        assert open_now(realm) == info.storage.sealed_files == 10
        assert realm.dispatch.files.bytes == info.storage.sealed_bytes
        await realm.delete_channel("orders")
        assert realm.dispatch.files.bytes == 0


@simulated
async def test_without_caching_they_are_closed_again() -> None:
    without = replace(SPINDLES, storage=replace(SPINDLES.storage, enable_caching=False))
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, without)
        assert len(await events(realm, ChannelId(1))) == 100
        assert (open_now(realm), realm.dispatch.files.bytes) == (0, 0)


@simulated
async def test_the_least_recently_read_file_is_closed_first() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, SPINDLES)
        store, held = realm.shard.state.stores[1], realm.dispatch.files
        size = store.files[0].index.size
        held.bytes_max = 3 * size + 10
        for number in (0, 1, 2, 0, 3):
            await held.open([store.files[number]])
        assert [file.is_open for file in store.files[:4]] == [True, False, True, True]
        await held.open(store.files)
        assert open_now(realm) == 10, "what is asked for at once is open at once"
        held.bytes_max = 1 << 30
        held.files_max = 4
        await held.open(store.files[:1])
        assert open_now(realm) == 4
        purged = await realm.subscriptions.purge(ChannelId(1), None, None, selector="event_id >= 0")
        assert purged == 100


@pytest.mark.parametrize("on_reload", [True, False])
@simulated
async def test_files_are_read_at_the_start_with_cache_on_reload(
    tmp_path: Path, on_reload: bool
) -> None:
    definition = replace(SPINDLES, storage=replace(SPINDLES.storage, cache_on_reload=on_reload))
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await filled(realm, definition)
    await realm.release()
    hurt = bytearray(files(tmp_path)[3].read_bytes())
    hurt[hurt.index(b"3" * 50)] ^= 1
    files(tmp_path)[3].write_bytes(hurt)

    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        assert open_now(realm) == 10 * on_reload
        assert len(realm.recovered.damage) == on_reload
        assert len(await events(realm, ChannelId(1))) == 90
    await realm.release()


@pytest.mark.spec("S1")
@simulated
async def test_a_full_spindle_without_events_is_removed_unless_it_is_the_newest(
    tmp_path: Path,
) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs, sealing=EAGER) as realm:
        await filled(realm, SPINDLES)
        spindles = files(tmp_path)
        state = realm.directory.channels[1].state

        async def left_after_purge(first: int, last: int) -> list[int]:
            await realm.subscriptions.purge(ChannelId(1), first, last, selector="")
            await realm.sealer.drop_empty([1])
            await pass_time(1.0)  # the realm's own look may be at it, too
            files_there = files(tmp_path)
            return [number for number, file in enumerate(spindles) if file in files_there]

        assert await left_after_purge(0, 8) == list(range(10)), "one event is left in it"
        assert await left_after_purge(9, 9) == list(range(1, 10))
        assert await left_after_purge(30, 49) == [1, 2, 5, 6, 7, 8, 9]
        assert await left_after_purge(0, 99) == [9], "the newest stays though it is empty"
        assert not state.stored
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        assert await left_after_purge(0, 0) == []
        assert state.stored.spans == (Span(100, 110),)
    await realm.release()
