"""Files that a realm has located for the source are the ones that Spark's tasks find later."""

from __future__ import annotations

from pathlib import Path

from packages.server.tests.runtime.files import on_disk
from packages.server.tests.runtime.living import SINGLE, body, living, publish, sealed
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.subscriptions.locations import locate
from penstock_spark.reading.plan import FileRows
from penstock_spark.reading.sealed import is_readable_here
from penstock_testing.loop import simulated


@simulated
async def test_a_file_that_was_located_is_still_the_one_after_it_has_grown(tmp_path: Path) -> None:
    store = on_disk(tmp_path)
    async with living(store.journal, store.blobs) as realm:
        await realm.create_channel("orders", SINGLE)
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")
        (part,) = (await locate(realm.shard, realm.dispatch, ChannelId(1), span=Span(0, 99))).sealed
        rows = FileRows(part.path, part.size, b"", batches=(), spans=())
        await publish(realm, ChannelId(1), body([b"x"] * 10))
        await sealed(realm, "orders")

        assert is_readable_here(rows.path, rows.size)
        assert part.spans == (Span(0, 10),)
        (part,) = (await locate(realm.shard, realm.dispatch, ChannelId(1), span=Span(0, 99))).sealed
        assert part.spans == (Span(0, 20),)
    await realm.release()
