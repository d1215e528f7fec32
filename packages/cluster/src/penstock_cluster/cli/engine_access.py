"""What commands need that do something on the engine of a cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock_server.cli.shared.choosing import chosen

if TYPE_CHECKING:
    from penstock_core.vocabulary.ports import Clock, StorageEngine
    from penstock_server.settings import ClusterSettings

T = TypeVar("T")


def cluster_settings(url: str | None, file: Path | None) -> ClusterSettings:
    """A cluster as `penstock serve` would read it. Raises ``InvalidArgument``."""
    from penstock_cluster.bootstrap import cluster as adapters

    wanted = chosen(file, {"cluster.engine": url}).cluster
    adapters.check_names(wanted)
    return wanted


def on_engine(settings: ClusterSettings, do: Callable[[StorageEngine, Clock], Awaitable[T]]) -> T:
    """What is done on the engine of a cluster, which has to be trusted first."""
    import asyncio

    from penstock_cluster.bootstrap import cluster as adapters
    from penstock_server.runtime.writer.clock import SystemClock

    clock = SystemClock()

    async def done() -> T:
        engine = await adapters.open_engine(settings, clock)
        try:
            await adapters.check_engine(engine, 0)
            return await do(engine, clock)
        finally:
            await engine.close()

    return asyncio.run(done())
