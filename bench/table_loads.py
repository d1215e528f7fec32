"""A client that loads one table of the catalog again and again, over plain HTTP. It is either
measured or loads until it is ended; S22L starts it as a separate process."""

from __future__ import annotations

import http.client
import sys
import time
from contextlib import AbstractContextManager, closing
from typing import Final

import msgspec

import penstock
from bench.measuring import percentiles_us
from bench.processes import beside, figures_of
from bench.shape import Figures

LOADS: Final = "loading"
"""The line that the process prints before the first load, or after it with ``is_warm``."""
WARM_UP: Final = 3
"""Loads between the first and the measured ones."""


class LoadJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    url: str
    http_port: int
    channel: str
    new_events: int
    """Events that are published before each load, except the first."""
    loads: int = 0
    """Number of measured loads; 0 means that the process loads until it is ended."""
    pause_s: float = 0.0
    is_warm: bool = True
    """Whether an endless process says that it has begun after its first load, not before."""


class TableLoads:
    """One connection over HTTP, and one session that publishes."""

    def __init__(self, job: LoadJob, session: penstock.Session) -> None:
        self._job = job
        self._http = http.client.HTTPConnection("127.0.0.1", job.http_port)
        self._channel = session.channels.get(job.channel)

    def load_s(self) -> float:
        """Load the table, and return the seconds until the whole answer is there."""
        started_s = time.perf_counter()
        path = f"/api/v1/iceberg/v1/namespaces/channels/tables/{self._job.channel}"
        self._http.request("GET", path)
        with self._http.getresponse() as answer:
            body = answer.read()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(body.decode())
        return time.perf_counter() - started_s

    def close(self) -> None:
        """Close the connection over HTTP."""
        self._http.close()

    def next_load_s(self) -> float:
        """Publish the new events, and return the seconds of a load after their confirmation."""
        if self._job.new_events:
            self._channel.publish_table({"n": range(self._job.new_events)})
        return self.load_s()

    def load_for_ever(self) -> None:
        """Load until the process is ended."""
        if not self._job.is_warm:
            print(LOADS, flush=True)
        self.load_s()
        if self._job.is_warm:
            print(LOADS, flush=True)
        while True:
            self.next_load_s()
            time.sleep(self._job.pause_s)

    def measured(self) -> Figures:
        """Return the seconds of the first load, and the latencies of the measured ones."""
        first_s = self.load_s()
        for _ in range(WARM_UP):
            self.next_load_s()
        latencies = [self.next_load_s() for _ in range(self._job.loads)]
        return percentiles_us(latencies) | {"first_load_ms": first_s * 1_000}


def load_latencies(job: LoadJob) -> Figures:
    """Return the latencies of a process that loads a table ``job.loads`` times."""
    return figures_of([sys.executable, "-m", "bench.table_loads"], job)


def loading(job: LoadJob) -> AbstractContextManager[None]:
    """Run a process that loads a table within the block."""
    return beside("bench.table_loads", job, LOADS)


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=LoadJob)
    with penstock.connect(job.url) as session, closing(TableLoads(job, session)) as loads:
        if not job.loads:
            loads.load_for_ever()
        print(msgspec.json.encode(loads.measured()).decode())


if __name__ == "__main__":
    main()
