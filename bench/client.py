"""The client process: connects to a server and does the work of a shape. It is started by
:mod:`bench.processes`."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import cast

import msgspec

from bench.processes import LACKS, Job
from bench.shape import ClientWork, Figures, Missing, peers, shapes
from penstock.client.connection.threads import fast_loop


async def work(job: Job) -> Figures:
    """Connect, do the work, disconnect."""
    gc.collect()
    # Imported modules are never garbage, so collections during the measurement skip them.
    gc.freeze()
    broker = await peers()[job.peer].connect(job.server.url)
    try:
        shape = cast("ClientWork", shapes()[job.shape])
        return await shape.work(job.case, broker, job.server.pid)
    finally:
        await broker.close()


def main() -> None:
    """Execute a job, and print its figures for the process that started this one."""
    job = msgspec.json.decode(sys.argv[1], type=Job)
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        try:
            figures = runner.run(work(job))
        except Missing as reason:
            print(reason, file=sys.stderr)
            sys.exit(LACKS)
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
