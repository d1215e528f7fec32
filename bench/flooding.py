"""A client process that publishes to a separate stream as fast as it can, next to the client that
is measured."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from typing import Final, cast

import msgspec

from bench.processes import Job, beside
from bench.shape import BATCH, Crowded, peers
from bench.workload import pool
from penstock.client.connection.threads import fast_loop

STREAM: Final = "flooded"
FLOODS: Final = "flooding"
"""Line that the process prints after its first events."""


def flooding(job: Job) -> AbstractContextManager[None]:
    """Run a process within the block that publishes continuously, and waits for confirmations after
    every thousand events."""
    return beside("bench.flooding", job, FLOODS)


async def flood(job: Job) -> None:
    """Publish until the process is ended."""
    broker = cast("Crowded", await peers()[job.peer].connect(job.server.url))
    await broker.prepare_streams(job.case.durability, [STREAM])
    await broker.attach(STREAM, consumes=False)
    events = pool(1, BATCH, 128)[0]
    has_begun = False
    while True:
        for row in range(len(events)):
            await broker.send(events, row)
        await broker.flush()
        # Confirmed events show that the flood has begun, so the measurement may start.
        if not has_begun:
            has_begun = True
            print(FLOODS, flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        runner.run(flood(msgspec.json.decode(sys.argv[1], type=Job)))
