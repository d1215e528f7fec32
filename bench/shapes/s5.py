"""S5: draining a backlog, and starting a server with millions of stored events."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from bench.fanning import events_of
from bench.measuring import Stopwatch, memory_kb_of
from bench.processes import Job, bytes_below, client_figures
from bench.shape import (
    BATCH,
    CONTENDERS,
    WINDOWS,
    Broker,
    Case,
    Crowded,
    Figures,
    Missing,
    Peer,
    Server,
    lacks_window,
    peers,
)
from penstock.client.connection.threads import fast_loop

BACKLOG = 1_000_000
STORED = 10_000_000
POOL_BATCHES = 100
RESTARTS = 3
STREAM = "orders"
SLOW_TO_FILL = "filling takes minutes, because no way is faster than the client"
FILLED_FAST = ("penstock", "nats")


class Backlog:
    """``drain``: all events are stored before the clock starts, and the durable exists from the
    start. One consumer attaches, and the clock stops when the server has processed the last
    acknowledgement.

    ``restart``: the server is stopped, or killed, and started again on the same directory. The time
    is that from the start of its process to the first event of the durable at a client.
    """

    name = "S5"
    title = "drain a backlog; restart with stored events, 128 B"
    figure = "events_per_s"
    higher_is_better = True
    contenders: Sequence[str] = CONTENDERS
    backlog = BACKLOG
    """Events that are drained, and that a server with fewer events is restarted with."""
    stored = STORED
    """Events that a server with many events is restarted with."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        backlog, stored = (20_000, 20_000) if quick else (self.backlog, self.stored)
        drains = [
            Case(f"drain {backlog:,}, {shown}", durability, {"events": backlog, "api": api})
            for durability in (("D1",) if quick else ("D1", "D2"))
            for api, shown in (("columns", "batches of columns"), ("rows", "events"))
        ]
        if not quick:
            drains += [
                Case(
                    f"drain {backlog:,}, columns, {windows}",
                    "D1",
                    {"events": backlog, "api": "columns", "window": window},
                )
                for window, windows in WINDOWS
            ]
        times = 1 if quick else RESTARTS
        restarts = [
            Case(f"restart with {count:,}", "D1", {"events": count, "restarts": times})
            for count in ((stored,) if quick else (backlog, stored))
        ]
        return [*drains, *restarts]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        peer = peers()[contender]
        if reason := peer.missing():
            raise Missing(reason)
        if reason := lacks_window(case, contender):
            raise Missing(reason)
        if case["events"] > BACKLOG and contender not in FILLED_FAST:
            raise Missing(SLOW_TO_FILL)
        stored = directory / "stored"
        stored.mkdir()
        with peer.serve(stored, case.durability) as server:
            figures = client_figures(Job(self.name, contender, case, server=server))
        figures["disk_bytes_per_event"] = bytes_below(stored) / case["events"]
        if "restarts" in case.parameters:
            figures |= _restarted(peer, case, stored)
        return figures

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        crowded = cast("Crowded", broker)
        batches = events_of(min(POOL_BATCHES, case["events"] // BATCH))
        await crowded.prepare_streams(case.durability, [STREAM])
        rounds = case["events"] // (len(batches) * BATCH)
        await crowded.fill(STREAM, batches, rounds)
        if "restarts" in case.parameters:
            return {}
        watch = Stopwatch(server_pid)
        await crowded.attach(STREAM)
        consumed, price, first_s = 0, 0.0, 0.0
        while consumed < case["events"]:
            count, part = await broker.consume(case["events"] - consumed, case["api"])
            first_s = first_s or watch.elapsed_s
            consumed += count
            price += part
        await broker.settled()
        figures = watch.figures(consumed)
        wanted = rounds * sum(batch.price for batch in batches)
        if consumed != case["events"] or abs(price - wanted) > 1e-6 * wanted:
            raise AssertionError(f"{consumed} events of {price} drained, {wanted} expected")
        return figures | {"first_event_ms": first_s * 1e3}


def _restarted(peer: Peer, case: Case, stored: Path) -> Figures:
    """Measure restarts, half of them after a stop, half after a kill. Return the medians of
    both."""
    seconds: dict[str, list[float]] = {"restart_s": [], "killed_restart_s": []}
    listening: list[float] = []
    memory = 0.0
    with asyncio.Runner(loop_factory=fast_loop) as runner:
        for after in ["restart_s", "killed_restart_s"] * case["restarts"]:
            started_s = time.perf_counter()
            with peer.serve(stored, case.durability) as server:
                listening.append(time.perf_counter() - started_s)
                runner.run(_read_first(peer, server))
                seconds[after].append(time.perf_counter() - started_s)
                memory = max(memory, memory_kb_of(server.pid) / 1e3)
                if after == "restart_s":  # the next call starts the killed server
                    os.kill(server.pid, signal.SIGKILL)
    figures = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "events_per_s": case["events"] / figures["killed_restart_s"],
        **figures,
        "listening_s": statistics.median(listening),
        "memory_mb": memory,
    }


async def _read_first(peer: Peer, server: Server) -> None:
    broker = await peer.connect(server.url)
    try:
        await cast("Crowded", broker).attach(STREAM)
        count, _ = await broker.consume(1, "rows")
        assert count, "a restarted server delivers a stored event"
    finally:
        await broker.close()


SHAPE = Backlog()
