"""S22L: loads of a large table, and the publishers of another channel beside them."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import penstock
from bench.paced_publishing import PacedJob, latencies_at_rate
from bench.peers.penstock import Penstock, storage_of
from bench.shape import Case, Figures
from bench.table_loads import LoadJob, load_latencies, loading
from penstock_testing.ports import free_port

EVENTS = 10_000_000
BATCH = 50_000
"""Events in one publish of the filled channel; each of them becomes a sealed file."""
LARGE, MEASURED = "large", "measured"
RATE, PUBLISHES = 50_000, 500
"""Events and publishes per second of the measured publisher."""
NEW_EVENTS = 1_000
PAUSE_S = 0.1
"""Seconds between two loads beside the measured publisher."""
LOADS = 100


class LargeTables:
    """The events are small: one integer each. A case starts the realm again, whose tables do not
    outlive it, so that each first load is cold."""

    name = "S22L"
    title = f"loads of a large table, and publishes at {RATE:,} events/s beside them"
    figure = "p99_us"
    higher_is_better = False
    contenders: Sequence[str] = ("penstock",)
    events = 0
    """Number of events of the table; 0 means :data:`EVENTS`."""

    def __init__(self) -> None:
        self._folders = ExitStack()
        """The filled folders, which serve all cases until the process ends."""
        self._filled: dict[int, Path] = {}
        """Data directories by the number of events."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        events = 60_000 if quick else self.events or EVENTS
        seconds, loads = (0.3, 3) if quick else (6.0, LOADS)

        def case(label: str, new: int = 0, loads: int = 0, *, is_warm: bool = True) -> Case:
            return Case(
                f"{events:,} events: {label}",
                "D1",
                {
                    "events": events,
                    "seconds": seconds,
                    "new": new,
                    "loads": loads,
                    "is_warm": is_warm,
                },
            )

        return [
            case("load, nothing new", loads=loads),
            case(f"load, {NEW_EVENTS:,} new events", NEW_EVENTS, loads),
            case("publishes beside later loads", NEW_EVENTS),
            case("publishes beside the first load", is_warm=False),
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        stored = self._filled.get(case["events"]) or self._fill(case)
        http_port = free_port()
        with Penstock("--http-port", str(http_port)).serve(stored, case.durability) as server:
            loads = LoadJob(
                server.url,
                http_port,
                LARGE,
                new_events=case["new"],
                loads=case["loads"],
                pause_s=PAUSE_S,
                is_warm=case["is_warm"],
            )
            if loads.loads:
                return load_latencies(loads)
            publisher = PacedJob(
                server.url,
                MEASURED,
                RATE // PUBLISHES,
                rate=PUBLISHES,
                seconds=case["seconds"],
            )
            alone = latencies_at_rate(publisher)
            with loading(loads):
                beside = latencies_at_rate(publisher)
        return beside | {
            "p50_us_before": alone["p50_us"],
            "p99_us_before": alone["p99_us"],
            "added_p99_us": beside["p99_us"] - alone["p99_us"],
        }

    def _fill(self, case: Case) -> Path:
        """Return the data directory of a realm whose channel :data:`LARGE` has the events."""
        if not self._filled:
            atexit.register(self._folders.close)
        place = tempfile.TemporaryDirectory(prefix="penstock-bench-")
        stored = Path(self._folders.enter_context(place)) / "stored"
        stored.mkdir()
        storage = storage_of(case.durability)
        with (
            Penstock().serve(stored, case.durability) as server,
            penstock.connect(server.url) as session,
        ):
            session.channels.create(MEASURED, type="persistent", storage=storage)
            channel = session.channels.create(
                LARGE, type="persistent", retain_consumed=True, storage=storage
            )
            for first in range(0, case["events"], BATCH):
                numbers = np.arange(first, min(first + BATCH, case["events"]))
                channel.publish_table({"n": numbers})
        self._filled[case["events"]] = stored
        return stored


SHAPE = LargeTables()
