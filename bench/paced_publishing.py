"""A client that publishes batches of columns at a fixed rate. It is either measured or publishes
until it is ended; S22 and S22L start it as a separate process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from typing import Final

import msgspec

import penstock.aio
from bench.measuring import percentiles_us
from bench.pacing import at_rate
from bench.processes import beside, figures_of
from bench.shape import Figures
from bench.workload import pool
from penstock.client.connection.threads import fast_loop

DATA_BYTES: Final = 128
WARM_UP_S: Final = 0.5
"""Seconds of work before the measurement."""
SLICE_S: Final = 1.0
"""Seconds between two waits of an endless publisher for its last confirmation."""
PUBLISHES: Final = "publishing"
"""The line that the process prints once its first events are confirmed."""


class PacedJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    url: str
    channel: str
    batch: int
    """Events in one publish."""
    rate: int
    """Publishes per second."""
    seconds: float = 0.0
    """Duration of the measurement; 0 means that the process publishes until it is ended."""


def latencies_at_rate(job: PacedJob) -> Figures:
    """Return the latencies of a process that publishes at a rate for ``job.seconds``."""
    return figures_of([sys.executable, "-m", "bench.paced_publishing"], job)


def publishing(job: PacedJob) -> AbstractContextManager[None]:
    """Run a process that publishes at a rate within the block."""
    return beside("bench.paced_publishing", job, PUBLISHES)


async def work(job: PacedJob) -> Figures:
    """Publish, and return the latencies of the publishes. Does not return if ``job.seconds`` is
    0."""
    session = await penstock.aio.connect(job.url)
    channel = await session.channels.get(job.channel)
    tables = [events.columns.table for events in pool(10, job.batch, DATA_BYTES)]

    async def publish(number: int) -> None:
        await channel.publish_table(tables[number % len(tables)])

    await at_rate(publish, job.rate, WARM_UP_S, sleeps=True)
    if not job.seconds:
        print(PUBLISHES, flush=True)
        while True:
            await at_rate(publish, job.rate, SLICE_S, sleeps=True)
    latencies = await at_rate(publish, job.rate, job.seconds, sleeps=True)
    await session.close()
    return percentiles_us(latencies)


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=PacedJob)
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        print(msgspec.json.encode(runner.run(work(job))).decode())


if __name__ == "__main__":
    main()
