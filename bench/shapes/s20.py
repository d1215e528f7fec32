"""S20: the latency of a publish while another client reads ten million rows by a URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import penstock
from bench import doors, url_reading
from bench.amqp_peers import Speaker
from bench.peers.penstock import Penstock, storage_of
from bench.shape import Case, Figures
from penstock_testing.ports import free_port

MEASURED, READ = "measured", "read"
BATCH = 100_000


class BesideARead:
    """One publish after the other over the native protocol: first without other clients, then next
    to a process that reads another channel by its URL, without decoding what it gets."""

    name = "S20"
    title = f"sequential publishes of {doors.SIZE} B during a read by a URL"
    figure = "swelling"
    higher_is_better = False
    contenders: Sequence[str] = ("penstock",)
    rows = 10_000_000
    """Rows of the channel that is read."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        rows, seconds = (20_000, 0.2) if quick else (self.rows, 6.0)
        return [
            Case(
                f"during a read of {rows:,} rows as {format_}",
                durability,
                {"format": format_, "rows": rows, "seconds": seconds},
            )
            for durability in (("D1",) if quick else ("D1", "D2"))
            for format_ in url_reading.MEDIA_TYPES
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        stored = directory / "stored"
        stored.mkdir()
        http_port = free_port()
        with Penstock("--http-port", str(http_port)).serve(stored, case.durability) as server:
            with penstock.connect(server.url) as session:
                _create_channels(session, case)
            publisher = doors.Job(
                "native",
                server.url,
                http_port,
                amqp=Speaker(server.pid, 0, MEASURED),
                channel=MEASURED,
                seconds=case["seconds"],
            )
            alone = doors.latencies_of(publisher)
            with url_reading.reading(url_reading.UrlReadJob(http_port, READ, case["format"])):
                beside = doors.latencies_of(publisher)
        return beside | {
            "p50_us_before": alone["p50_us"],
            "p99_us_before": alone["p99_us"],
            "swelling": beside["p99_us"] / alone["p99_us"],
        }


def _create_channels(session: penstock.Session, case: Case) -> None:
    """Create the channel of the publisher, and a filled one for the reader."""
    storage = storage_of(case.durability)
    session.channels.create(MEASURED, type="persistent", storage=storage)
    channel = session.channels.create(READ, type="persistent", storage=storage)
    for first in range(0, case["rows"], BATCH):
        numbers = range(first, min(first + BATCH, case["rows"]))
        prices = [number % 997 / 4 for number in numbers]
        channel.publish_table({"n": numbers, "price": prices})


SHAPE = BesideARead()
