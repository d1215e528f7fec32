"""A realm that does not know all that has happened keeps everything it has (SEM S1)."""

from __future__ import annotations

import pytest

from packages.server.tests.runtime.lives import Lives, datas, named
from packages.server.tests.runtime.living import body, events, living, publish
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated

BUSY = SealingLimits(
    segment_bytes_max=1, journal_bytes_max=0, snapshot_tail_bytes_max=0, interval_s=0.01
)
"""Everything is sealed as soon as it comes, and snapshots follow each other."""


@pytest.mark.spec("S1")
@simulated
async def test_after_a_damaged_snapshot_journal_and_files_are_kept() -> None:
    lives = Lives()
    async with lives.life("snapshot"):
        await lives.create("orders", storage=Storage(events_per_spindle=0))
        await lives.put("orders", *named("in the snapshot"))
    async with lives.life():
        await lives.put("orders", *named("in the journal"))
    snapshots = await lives.store.blobs.list("snapshots/")
    for snapshot in snapshots:
        lives.disk.flip(f"/realm/{snapshot.name}", 100)
    lives.sealing = BUSY
    for _ in range(3):
        async with lives.life("closed", damaged=True):
            assert lives.realm.recovered.has_gaps
            assert lives.realm.directory.find("orders") is None
            await lives.create(f"new{lives.realm.directory.next_channel_id}")
            await pass_time(1.0)
        assert await lives.store.blobs.list("snapshots/") == snapshots
    kept = [entry.name for entry in lives.disk.list("/realm/journal")]
    content = b"".join(lives.disk.content(f"/realm/journal/{name}") for name in kept)
    assert b"in the journal" in content


@pytest.mark.spec("S1")
@simulated
async def test_files_that_may_have_unrecorded_events_are_neither_dropped_nor_rewritten() -> None:
    lives = Lives(sealing=BUSY)
    async with lives.life():
        await lives.create("orders", storage=Storage(events_per_spindle=0))
        await lives.put("orders", *named("first"))
        await lives.sealed("orders")
        await lives.create("gone")
        await lives.put("gone", *named("only here"))
        await lives.sealed("gone")
    files = await lives.store.blobs.list("segments/")
    damage = [info.name for info in await lives.store.blobs.list("snapshots/")]
    for name in damage:
        lives.disk.flip(f"/realm/{name}", 50)
    for _ in range(3):
        async with lives.life("closed", damaged=True):
            number = lives.realm.directory.find("orders")
            assert lives.realm.recovered.has_gaps
            assert number is None, "only the snapshot knew of it"
            await lives.create("other", storage=Storage(events_per_spindle=0))
            with pytest.raises(Damaged, match="store repair"):
                await lives.realm.maintain("other")
            await lives.realm.delete_channel("other")
    assert await lives.store.blobs.list("segments/") == files


@pytest.mark.spec("S1")
@simulated
async def test_files_kept_after_an_unreadable_snapshot_are_kept_by_later_starts() -> None:
    lives = Lives(sealing=BUSY)
    async with lives.life("snapshot"):
        await lives.create("orders")
        await lives.put("orders", *named("first"))
        await lives.sealed("orders")
    files = await lives.store.blobs.list("segments/")
    unreadable = [info.name for info in await lives.store.blobs.list("snapshots/")]
    for name in unreadable:
        lives.disk.flip(f"/realm/{name}", 50)
    async with lives.life("closed", damaged=True):
        await lives.create("made meanwhile")
        await lives.put("made meanwhile", *named("another"))
    for name in unreadable:  # the disk can read them again
        lives.disk.flip(f"/realm/{name}", 50)

    async with lives.life("closed", damaged=True):
        (contradiction,) = lives.realm.recovered.damage
        assert "channel 1 ('made meanwhile'), but 'orders' has this number" in contradiction
        assert datas(await lives.stored("orders")) == ["first"]

    assert await lives.store.blobs.list("segments/") == files


@pytest.mark.spec("S1")
@simulated
async def test_strays_of_a_damaged_state_are_kept_after_the_damage_is_repaired() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs, sealing=SealingLimits(interval_s=1_000.0)) as realm:
        await realm.create_channel("orders", Definition(type="persistent"))
    lost, stray = (f"segments/{name}.9/{0:020d}-{9:020d}.arrow" for name in ("lost", "left"))
    await blobs.put(lost, [b"of a channel whose facts are lost"])
    block = journal.blocks[0]
    journal.blocks[0] = b"damaged"
    async with living(journal, blobs, sealing=SealingLimits(interval_s=1_000.0)) as realm:
        assert realm.recovered.has_gaps
    await blobs.put(stray, [b"of a crash"])
    journal.blocks[0] = block

    async with living(journal, blobs, sealing=SealingLimits(interval_s=1_000.0)) as realm:
        assert realm.recovered.damage == []

    assert [info.name for info in await blobs.list("segments/")] == [lost]


@pytest.mark.spec("S1")
@simulated
async def test_a_torn_tail_is_no_gap() -> None:
    lives = Lives(sealing=BUSY)
    async with lives.life():
        await lives.create("orders")
        await lives.put("orders", *named("first"))
    last = lives.disk.list("/realm/journal")[-1].name
    path = f"/realm/journal/{last}"
    used = len(lives.disk.content(path).rstrip(b"\0"))
    lives.disk.shorten(path, used - 1)
    async with lives.life("closed", damaged=True):
        assert not lives.realm.recovered.has_gaps


@pytest.mark.spec("S1")
@simulated
async def test_a_torn_tail_makes_no_damage_of_files_whose_events_have_left() -> None:
    lives = Lives(sealing=BUSY)
    async with lives.life():
        await lives.create("orders", storage=Storage(events_per_spindle=1))
        await lives.create("other")
        await lives.put("orders", *named("consumed", "consumed as well"))
        await lives.sealed("orders")
    lives.sealing = SealingLimits(interval_s=1_000.0)  # the file is not dropped yet
    async with lives.life():
        assert await lives.purge("orders") == 2
        await lives.put("other", *named("on its way"))
    last = lives.disk.list("/realm/journal")[-1].name
    path = f"/realm/journal/{last}"
    lives.disk.shorten(path, len(lives.disk.content(path).rstrip(b"\0")) - 1)
    lives.sealing = BUSY
    async with lives.life("closed", damaged=True):
        assert len(await lives.store.blobs.list("segments/orders")) == 2
        assert (await lives.info("orders")).storage.quarantined == ()
        await pass_time(1.0)
        assert len(await lives.store.blobs.list("segments/orders")) == 1, "the newest stays"


@pytest.mark.spec("S1")
@simulated
async def test_events_of_a_damaged_file_that_are_in_memory_outlive_the_next_file() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    limits = SealingLimits(interval_s=0.01)
    definition = Definition(type="persistent", storage=Storage(events_per_spindle=10))
    async with living(journal, blobs, sealing=limits) as realm:
        await realm.create_channel("orders", definition)
        await publish(realm, ChannelId(1), body([b"early"] * 9))
        await publish(realm, ChannelId(1), body([b"over the end of a file"] * 3))
        await pass_time(1)
    ((name, file),) = blobs.contents.items()
    offset = file.index(b"early")
    blobs.contents[name] = file[:offset] + b"E" + file[offset + 1 :]

    async with living(journal, blobs, sealing=limits) as realm:
        assert sorted(await events(realm, ChannelId(1))) == [9, 10, 11]
        await publish(realm, ChannelId(1), body([b"later"] * 9))
        await pass_time(1)
        assert len(realm.shard.state.stores[ChannelId(1)].files) == 2
        assert sorted(await events(realm, ChannelId(1))) == [*range(9, 21)]

    async with living(journal, blobs, sealing=limits) as realm:
        assert sorted(await events(realm, ChannelId(1))) == [*range(9, 21)]
