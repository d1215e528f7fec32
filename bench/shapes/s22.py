"""S22: the time until an Iceberg client reads an acknowledged event in the channel's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import penstock
from bench.paced_publishing import PacedJob, publishing
from bench.peers.penstock import Penstock, storage_of
from bench.processes import without_client
from bench.shape import Case, Figures, Missing
from bench.table_lookups import CLIENTS, LookupJob, lookup_latencies
from penstock_testing.ports import free_port

CHANNEL = "orders"
BATCH = 1_000
RATES = (0, 100_000)
"""Events per second of the other publisher; 0 means that there is none."""


class FreshTables:
    """A client publishes an event, and looks it up as soon as it is acknowledged: it loads the
    table and reads the row with the event's id. Another process publishes to the same channel."""

    name = "S22"
    title = "from the acknowledgement of an event until a client has read it from the table"
    figure = "p50_us"
    higher_is_better = False
    contenders: Sequence[str] = ("penstock",)

    def cases(self, *, quick: bool) -> Sequence[Case]:
        lookups = 3 if quick else 200
        rates = [rate // 100 if quick else rate for rate in RATES]
        return [
            Case(
                f"{client}, {rate:,} events/s, {when}",
                "D2",
                {"client": client, "rate": rate, "lookups": count, "pause_s": pause_s},
            )
            for client in CLIENTS
            for rate in rates
            for when, pause_s, count in (
                ("one lookup after the other", 0.0, lookups),
                ("two lookups a second", 0.0 if quick else 0.5, min(lookups, 100)),
            )
        ]

    def versions(self) -> Mapping[str, str]:
        """The version of Penstock, with those of the clients that are installed here."""
        clients = [
            f"{client} {version(client)}" for client in CLIENTS if not without_client(client)
        ]
        return {"penstock": f"{penstock.__version__} ({', '.join(clients)})"}

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := without_client(case["client"]):
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        http_port = free_port()
        with Penstock("--http-port", str(http_port)).serve(stored, case.durability) as server:
            with penstock.connect(server.url) as session:
                session.channels.create(
                    CHANNEL,
                    type="persistent",
                    retain_consumed=True,
                    storage=storage_of(case.durability),
                )
            lookups = LookupJob(
                server.url,
                http_port,
                CHANNEL,
                client=case["client"],
                lookups=case["lookups"],
                pause_s=case["pause_s"],
            )
            others = PacedJob(server.url, CHANNEL, BATCH, rate=case["rate"] // BATCH)
            with publishing(others) if others.rate else nullcontext():
                return lookup_latencies(lookups)


SHAPE = FreshTables()
