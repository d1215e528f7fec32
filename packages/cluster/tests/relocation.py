"""Moves realms into a cluster and out of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from packages.server.tests.runtime.living import Owning
from penstock_cluster.bootstrap import relocating
from penstock_cluster.bootstrap.relocating import RealmMoved, source_realm
from penstock_cluster.owning.arriving import refuse_partial_realm
from penstock_core.vocabulary.ports import inline
from penstock_server.bootstrap import rules
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.memory import MemoryPages
from penstock_testing.engine import EngineServers, MemoryEngine, MemoryInspector

CLUSTER = "penstock"


async def moved_in(
    directory: Path, servers: EngineServers, engine: MemoryEngine | None = None, **how: Any
) -> RealmMoved:
    async with source_realm(directory) as source:
        return await relocating.import_realm(
            source, engine or MemoryEngine(servers), SystemClock(), cluster=CLUSTER, **how
        )


async def moved_out(servers: EngineServers, directory: Path) -> RealmMoved:
    records = await MemoryInspector(servers).records()
    return await relocating.export_realm(
        MemoryEngine(servers), records, directory, clock=SystemClock(), cluster=CLUSTER
    )


@asynccontextmanager
async def owned(servers: EngineServers, epoch: int) -> AsyncIterator[RunningRealm]:
    """Run the realm of a cluster as the owner of this epoch, and stop it at the end without closing
    it."""
    engine = MemoryEngine(servers)
    await refuse_partial_realm(await engine.registry())
    realm = await RunningRealm.open(
        await engine.journal(0, epoch),
        await engine.blobs(0),
        MemoryPages(),
        rules(),
        SystemClock(),
        inline,
        identity="i",
        lease=Owning(epoch),
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(realm.run())
        yield realm
        running.cancel()
