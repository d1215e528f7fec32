"""The application that the workers of the tests run. ``REALM`` has the URL of the realm, ``NOTES``
the folder in which each call of a handler leaves a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from faststream import FastStream

from penstock_faststream import PenstockBroker
from tests.patience import until

broker = PenstockBroker(os.environ.get("REALM", "penstock://localhost:9000"))
app = FastStream(broker)
NOTES = Path(os.environ.get("NOTES", "."))


@broker.subscriber("orders", durable="billing", max_workers=4)
@broker.subscriber("work")
async def note(order: str) -> None:
    """Leave a file; hang the first time, or wait for a file, if the order says so."""
    already = any(name.startswith(f"{order}.") for name in os.listdir(NOTES))
    (NOTES / f"{order}.{os.urandom(4).hex()}").touch()
    if order.endswith("hang") and not already:
        await asyncio.Event().wait()
    if order.endswith("slow"):
        await asyncio.to_thread(until, (NOTES / "go").exists)
