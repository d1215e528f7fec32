"""Exports and imports on a simulated loop: unreadable events and idle transfers."""

from __future__ import annotations

from pathlib import Path

import pytest

from packages.server.tests.runtime.living import SINGLE, body, events, living, publish, sealed
from penstock_core.columns.files.exports import Manifest, described_state
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import Damaged, IllegalState
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.transfer.transfer_registry import IDLE_US
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import pass_time, simulated
from penstock_testing.stores import open_store

pytestmark = pytest.mark.spec("C7")

SPINDLES = Definition(type="persistent", retain_consumed=True)


async def rows_exported(realm: RunningRealm) -> int:
    """Events of an export of ``orders`` that is read to its end."""
    begun = await realm.exports.begin("me", "orders", "channel")
    rows = 0
    for number in range(begun.files + 1):
        rows += (await realm.exports.read("me", begun.export, number, offset=0)).file.rows
    await realm.exports.end("me", begun.export)
    return rows


@simulated
async def test_unreadable_events_fail_the_export_and_are_quarantined(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), RealDisk())
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SPINDLES)
        for number in range(3):
            await publish(realm, ChannelId(1), body([b"%d" % number] * 10))
        await sealed(realm, "orders")
        _, damaged, _ = sorted((tmp_path / "segments").rglob("*.arrow"))
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)

        with pytest.raises(Damaged, match=r"orders cannot be exported as a whole: .*events 10-19"):
            await rows_exported(realm)
        assert await rows_exported(realm) == 20
        info = await realm.describe_channel("orders")
        assert (info.counters.quarantined, len(info.storage.quarantined)) == (10, 1)
    await realm.release()


@simulated
async def test_a_growing_file_is_exported_as_long_as_it_was() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"a"] * 10))
        await sealed(realm, "orders")
        begun = await realm.exports.begin("me", "orders", "channel")
        await publish(realm, ChannelId(1), body([b"b"] * 10))
        await sealed(realm, "orders")
        await realm.subscriptions.purge(ChannelId(1), 0, 14, selector="")
        await realm.maintain("orders")

        first = await realm.exports.read("me", begun.export, 0, offset=0)
        assert (begun.files, first.file.rows, first.file.last_id) == (1, 10, 9)
        assert len(await events(realm, ChannelId(1))) == 5


@pytest.mark.slow
@simulated
async def test_idle_transfers_expire() -> None:
    blobs = MemoryBlobs()
    async with living(MemoryJournal(), blobs) as realm:
        await realm.create_channel("orders", SPINDLES)
        await publish(realm, ChannelId(1), body([b"a"]))
        begun = await realm.exports.begin("me", "orders", "channel")
        manifest = Manifest(
            format=1,
            name="orders",
            kind="channel",
            definition=SPINDLES,
            realm="",
            exported="",
            events=0,
            state=described_state(b"state"),
            files=(),
        )
        import_id = await realm.imports.begin("me", "new", manifest.encoded())
        await pass_time(IDLE_US / 1_000_000 + 5)

        assert (len(realm.exports), len(realm.imports)) == (0, 0)
        with pytest.raises(IllegalState, match="was not read for 300 s; start again"):
            await realm.exports.read("me", begun.export, 0, offset=0)
        with pytest.raises(IllegalState, match="got no data for 300 s; start again"):
            await realm.imports.commit("me", import_id)
        assert await realm.list_channels() == ["orders"]
