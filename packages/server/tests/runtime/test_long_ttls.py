"""Events whose own TTL is longer than the realm allows: version 0.1.0 stored them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from packages.server.tests.runtime.living import Reader, body, events, living, publish, sealed
from penstock_core.bounds import TTL_MS_MAX
from penstock_core.columns.schema.ipc import batch_bytes, schema_bytes
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.store.bodies import Body
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import simulated

pytestmark = pytest.mark.spec("T2")

FOR_EVER = (1 << 63) - 1


def endless() -> Body:
    """An event as version 0.1.0 accepted it."""
    batch = pa.record_batch({"data": pa.array([b"x"]), "ttl": pa.array([FOR_EVER])})
    return Body(batch_bytes(batch), batch, schema_bytes(batch.schema))


async def ttls(realm: RunningRealm, number: int) -> list[int | None]:
    reader = Reader()
    subscribe = realm.subscriptions.subscribe
    await subscribe(ChannelId(number), FromEarliest(), reader, credit=100, browse=True)
    await reader.at_end.wait()
    return [ttl for batch in reader.batches for ttl in batch.column("ttl").to_pylist()]


@simulated
async def test_a_realm_with_a_very_long_ttl_seals_snapshots_exports_and_starts() -> None:
    journal, blobs = MemoryJournal(), MemoryBlobs()
    async with living(journal, blobs, orderly=False) as realm:
        await realm.create_channel("big", Definition())
        await publish(realm, ChannelId(1), endless())
    for _ in range(2):
        async with living(journal, blobs) as realm:
            await publish(realm, ChannelId(1), body([b"more"]))
            await sealed(realm, "big")
            await realm.snapshot()
            begun = await realm.exports.begin("me", "big", "channel")
            assert (await realm.exports.read("me", begun.export, 0, offset=0)).content
            await realm.exports.end("me", begun.export)
    async with living(journal, blobs) as realm:
        assert list(await events(realm, ChannelId(1))) == [0, 1, 2]


@simulated
async def test_a_moved_event_has_at_most_the_longest_allowed_ttl() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await realm.create_channel("dead", Definition())
        await realm.create_channel("big", Definition(capacity=1, dead_event_store="dead"))
        await publish(realm, ChannelId(2), endless())
        await publish(realm, ChannelId(2), body([b"newer"]))
        await realm.create_channel("again", Definition())

        assert (await realm.redrive("dead", "again", "")).moved == 1

        assert await ttls(realm, 3) == [TTL_MS_MAX]
        await realm.snapshot()
