"""A whole realm on an engine of several servers, with blocks of the largest allowed size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from xxhash import xxh3_64_hexdigest

from packages.server.tests.runtime.living import Owning, body, events, publish
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.ports import StorageEngine
from penstock_server.bootstrap import rules
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.store.large_blocks import BLOCK_BYTES_MAX
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.settings.loading import load
from penstock_server.storage.memory import MemoryPages

ORDERS: Final = ChannelId(1)
EVENT_BYTES_MAX: Final = 60 << 20
"""The largest value that the setting allows."""
PART: Final = (BLOCK_BYTES_MAX >> 1) + (1 << 20)
"""Two events of this size make a block larger than the largest that an engine accepts."""


@asynccontextmanager
async def owner(engine: StorageEngine, epoch: int) -> AsyncIterator[RunningRealm]:
    """Run a realm that owns shard 0. At the end it is killed before it has sealed anything."""
    realm = await RunningRealm.open(
        await engine.journal(0, epoch),
        await engine.blobs(0),
        MemoryPages(),
        rules(load(overrides={"limits.max_event_bytes": EVENT_BYTES_MAX})),
        SystemClock(),
        asyncio.to_thread,
        identity="i",
        limits=Limits(event_bytes_max=EVENT_BYTES_MAX),
        sealing=SealingLimits(interval_s=1e6),
        lease=Owning(epoch),
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(realm.run())
        try:
            yield realm
        finally:
            running.cancel()


async def check_large_blocks(join: Callable[[], Awaitable[StorageEngine]]) -> None:
    """Check that the next owner finds an event of the largest size, and a commit that fits no
    single block. ``join`` returns the engine as one more node sees it."""
    random = Random(19)
    written = [random.randbytes(size) for size in (EVENT_BYTES_MAX - 4_096, PART, PART)]
    async with owner(await join(), 1) as realm:
        await realm.create_channel("orders", Definition(type="persistent"))
        assert await publish(realm, ORDERS, body(written[:1])) == Span(0, 1)
        assert await apart(await join()) == [], "it is a block of the journal"
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        for part in (1, 2):
            realm.stages.put(f"query/0/{part}", ORDERS, [body([written[part]])])
        realm.commit(
            ORDERS,
            ["query/0/1", "query/0/2"],
            "query",
            sequence=0,
            reply=lambda _, error: done.set_result(error),
        )
        assert await done is None
        assert len(await apart(await join())) == 1, "its bodies are beside the journal"

    async with owner(await join(), 2) as realm:
        assert realm.recovered.damage == []
        stored = await events(realm, ORDERS)
        assert shown(stored) == shown(dict(enumerate(written)))
        assert await publish(realm, ORDERS, body([b"more"])) == Span(3, 4)


async def apart(engine: StorageEngine) -> list[str]:
    return [info.name for info in await (await engine.blobs(0)).list("blocks/")]


def shown(events: dict[int, bytes]) -> dict[int, tuple[int, str]]:
    """Return size and checksum of each event, because sixty megabytes are useless in a report."""
    return {number: (len(data), xxh3_64_hexdigest(data)) for number, data in events.items()}
