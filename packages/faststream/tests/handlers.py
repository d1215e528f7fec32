"""What the tests of handlers share: an order, a broker at a realm, and waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from penstock_faststream import PenstockBroker

SOON_S = 60.0


class Order(BaseModel):
    sku: str
    price: float = 1.0


def broker_at(url: str, **options: Any) -> PenstockBroker:
    return PenstockBroker(url, logger=None, **options)


@asynccontextmanager
async def running(broker: PenstockBroker) -> AsyncIterator[PenstockBroker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def until(happened: Callable[[], object]) -> None:
    """Ask in another thread until it has happened: it may be a request to the realm."""
    pause = threading.Event()
    async with asyncio.timeout(SOON_S):
        while not await asyncio.to_thread(happened):
            await asyncio.to_thread(pause.wait, 0.005)
