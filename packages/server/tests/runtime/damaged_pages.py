"""A realm that runs with damaged pages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock_core.vocabulary.ports import inline
from penstock_server.bootstrap import rules
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.embedded import PageLimits, open_embedded
from penstock_testing.disk import FaultyDisk
from penstock_testing.loop import SimLoop


@asynccontextmanager
async def living_on(disk: FaultyDisk) -> AsyncIterator[RunningRealm]:
    """Run a realm on ``disk``, and kill it at the end."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    store = open_embedded(
        "/realm",
        disk=disk,
        offload=inline,
        clock=loop,
        identity=lambda: 1,
        holder="a test",
        page_limits=PageLimits(page_bytes_min=4_096, page_bytes_max=4_096),
    )
    realm = await RunningRealm.open(
        store.journal, store.blobs, store.pages, rules(), loop, inline, identity="i"
    )
    running = loop.create_task(realm.run())
    try:
        yield realm
    finally:
        running.cancel()
        await asyncio.wait([running])
        disk.kill()
