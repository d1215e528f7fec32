"""S22A: ``penstock archive run`` copies a channel to an Iceberg table, without Spark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import penstock
from bench.measuring import cpu_s_of, peak_memory_kb_of
from bench.processes import RUN_TIMEOUT_S, environment, without_client
from bench.shape import Case, Figures, Missing, peers
from bench.spark_work import CHANNEL, store

EVENTS = 2_000_000
SAMPLE_S = 0.02
"""Seconds between two looks at the memory of the archiver."""
CATALOG = "bench"
TABLE = ("lake", CHANNEL)
DURABLE = "lake"
WAYS: Mapping[str, Sequence[str]] = {"by value": ()}
"""Further options of the command by the name of the way in which it copies."""


class Archives:
    """The table is in a catalog of SQLite and a folder, on the same disk as the realm. The time is
    that of the whole command, which ends when all stored events are in the table."""

    name = "S22A"
    title = "copy a channel to an Iceberg table without Spark, rows with 128 B"
    figure = "rows_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock",)
    events = 0
    """Number of events; 0 means :data:`EVENTS`."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        events = 20_000 if quick else self.events or EVENTS
        return [
            Case(f"{events:,} rows, {way}", "D2", {"way": way, "events": events}) for way in WAYS
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if reason := without_client("pyiceberg"):
            raise Missing(reason)
        stored = directory / "stored"
        stored.mkdir()
        catalog = {
            "uri": f"sqlite:///{directory}/catalog.db",
            "warehouse": f"file://{directory}/warehouse",
        }
        with peers()["penstock"].serve(stored, case.durability) as server:
            store(server.url, case["events"])
            with penstock.connect(server.url) as session:
                durables = session.channels.get(CHANNEL).durables
                durables.create(DURABLE, type="serial", start="earliest")
            command = [sys.executable, "-m", "penstock", "archive", "run", CHANNEL, "--once"]
            command += ["--table", f"iceberg://{CATALOG}/{'/'.join(TABLE)}", "--url", server.url]
            command += ["--durable", DURABLE, *WAYS[case["way"]]]
            figures = _measured(command, catalog, directory / "archive.log", case["events"])
        if (rows := _rows_in(catalog)) != case["events"]:
            raise AssertionError(f"the table has {rows} rows, {case['events']} are stored")
        return figures


def _measured(
    command: Sequence[str], catalog: Mapping[str, str], log: Path, events: int
) -> Figures:
    """Run an archiver until it ends, and return its rate, processor time and peak memory."""
    variables = {
        f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name.upper()}": value
        for name, value in catalog.items()
    }
    peak_kb = cpu_s = 0.0
    started_s = time.perf_counter()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, env=environment() | variables, stdout=output, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while process.poll() is None:
                # An ended process has no figures, so the last ones count.
                peak_kb = max(peak_kb, peak_memory_kb_of(process.pid))
                cpu_s = max(cpu_s, cpu_s_of(process.pid))
                elapsed_s = time.perf_counter() - started_s
                if elapsed_s > RUN_TIMEOUT_S:
                    raise RuntimeError(f"the archiver did not end within {RUN_TIMEOUT_S:.0f} s")
                time.sleep(SAMPLE_S)
        finally:
            process.kill()
    elapsed_s = time.perf_counter() - started_s
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-4_000:]}")
    return {
        "rows_per_s": events / elapsed_s,
        "cpu_s_per_million": cpu_s / events * 1e6,
        "memory_mib": peak_kb / 1_024,
    }


def _rows_in(catalog: Mapping[str, str]) -> int:
    """Return the number of rows of the table, from its metadata."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(CATALOG, **catalog).load_table(TABLE).scan().count()


SHAPE = Archives()
