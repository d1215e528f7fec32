"""A client that publishes an event and looks it up in the channel's table as soon as it is
acknowledged, with pyiceberg or DuckDB. S22 starts it as a separate process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

import penstock
from bench.measuring import percentiles_us
from bench.processes import figures_of
from bench.shape import Figures
from packages.lakehouse.tests.clients import catalog, connected_duckdb

WARM_UP: Final = 3

Lookup = Callable[[int], int]
"""Returns the number of rows with an event id, in the newest table."""


class LookupJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    url: str
    http_port: int
    channel: str
    client: str
    """A key of :data:`CLIENTS`."""
    lookups: int
    pause_s: float
    """Seconds between a lookup and the next event."""


def by_pyiceberg(job: LookupJob) -> Lookup:
    realm = catalog(f"http://127.0.0.1:{job.http_port}")

    def count(event_id: int) -> int:
        table = realm.load_table(("channels", job.channel))
        scan = table.scan(row_filter=f"event_id = {event_id}", selected_fields=("event_id",))
        return int(scan.to_arrow().num_rows)

    return count


def by_duckdb(job: LookupJob) -> Lookup:
    realm = connected_duckdb(f"http://127.0.0.1:{job.http_port}")

    def count(event_id: int) -> int:
        table = f'realm.channels."{job.channel}"'
        [(rows,)] = realm.sql(
            f"SELECT count(*) FROM {table} WHERE event_id = {event_id}"
        ).fetchall()
        return int(rows)

    return count


CLIENTS: Final[Mapping[str, Callable[[LookupJob], Lookup]]] = MappingProxyType(
    {"pyiceberg": by_pyiceberg, "duckdb": by_duckdb}
)


def lookup_latencies(job: LookupJob) -> Figures:
    """Return the latencies of a process that looks events up, and the rate at which the channel
    got events in the meantime."""
    return figures_of([sys.executable, "-m", "bench.table_lookups"], job)


def measured(job: LookupJob, channel: penstock.Channel) -> Figures:
    """Return the latencies of the lookups, from the acknowledgement of an event until its row is
    there. Raises ``AssertionError`` if a lookup does not find the event."""
    lookup = CLIENTS[job.client](job)
    latencies: list[float] = []
    first_id, started_s = 0, 0.0
    for number in range(WARM_UP + job.lookups):
        event_id = channel.publish(b"")
        acknowledged_s = time.perf_counter()
        if number == WARM_UP:
            first_id, started_s = event_id, acknowledged_s
        if (rows := lookup(event_id)) != 1:
            raise AssertionError(f"the table has {rows} rows for the acknowledged event {event_id}")
        if number >= WARM_UP:
            latencies.append(time.perf_counter() - acknowledged_s)
        time.sleep(job.pause_s)
    published = channel.publish(b"") - first_id
    elapsed_s = time.perf_counter() - started_s
    return percentiles_us(latencies) | {"events_per_s": published / elapsed_s}


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=LookupJob)
    with penstock.connect(job.url) as session:
        figures = measured(job, session.channels.get(job.channel))
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
