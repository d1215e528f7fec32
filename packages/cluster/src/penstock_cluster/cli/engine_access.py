"""Open the engine of a cluster for one command."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock_server.cli.shared.choosing import chosen

if TYPE_CHECKING:
    from penstock_core.vocabulary.ports import Clock, EngineInspector, StorageEngine
    from penstock_server.settings import ClusterSettings

T = TypeVar("T")


def cluster_settings(url: str | None, file: Path | None) -> ClusterSettings:
    """Return the settings of a cluster as `penstock serve` would read them. Raises
    ``InvalidArgument``."""
    from penstock_cluster.bootstrap import cluster as adapters

    settings = chosen(file, {"cluster.engine": url}).cluster
    adapters.check_names(settings)
    return settings


def inspect(settings: ClusterSettings, read: Callable[[EngineInspector, Clock], Awaitable[T]]) -> T:
    """Read the engine of a cluster without being a node of it, and return the result."""
    import asyncio

    from penstock_server.runtime.writer.clock import SystemClock

    clock = SystemClock()

    async def run() -> T:
        async with opened_inspector(settings, clock) as inspector:
            return await read(inspector, clock)

    return asyncio.run(run())


def on_engine(settings: ClusterSettings, use: Callable[[StorageEngine, Clock], Awaitable[T]]) -> T:
    """Open and check the engine of a cluster, call ``use`` with it, and return the result."""
    import asyncio

    from penstock_cluster.bootstrap import cluster as adapters
    from penstock_server.runtime.writer.clock import SystemClock

    clock = SystemClock()

    async def run() -> T:
        async with opened_engine(settings, clock) as engine:
            await adapters.check_engine(engine, 0)
            return await use(engine, clock)

    return asyncio.run(run())


@asynccontextmanager
async def opened_inspector(
    settings: ClusterSettings, clock: Clock
) -> AsyncIterator[EngineInspector]:
    """Open the inspector of a cluster's engine for the block."""
    from penstock_cluster.bootstrap import cluster as adapters

    inspector = adapters.open_inspector(settings, clock)
    try:
        yield inspector
    finally:
        await inspector.close()


@asynccontextmanager
async def opened_engine(settings: ClusterSettings, clock: Clock) -> AsyncIterator[StorageEngine]:
    """Open the engine of a cluster for the block."""
    from penstock_cluster.bootstrap import cluster as adapters

    engine = await adapters.open_engine(settings, clock)
    try:
        yield engine
    finally:
        await engine.close()
