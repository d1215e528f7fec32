"""S8: millions of events expire during publishing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

from bench.measuring import cpu_s_of_all, percentiles_us
from bench.pacing import at_once, at_rate
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Expiring, Figures, Missing, peers
from bench.workload import Events, pool

EVENTS = 1_000_000
RATE = 1_000
"""Events per second that are published one by one, without a time to live."""
BATCHES_UNDER_WAY = 4
TRIAL = 20
"""One in this number of events is stored first, to estimate the time for all of them."""
SLOWER = 2.0
"""Storing all events may be slower than the estimate by this factor."""
PATIENCE_S = 20.0
"""Longest wait, in seconds, for events that are still stored after the last time to live."""
LONG_S = 3_600.0
LOOK_S = 0.05
LACKS = {"redis": "entries of a stream have no time to live"}


class Expiry:
    """Stores events that all expire within some seconds. It then publishes at a fixed rate: before
    the first event expires, and while they expire. Each latency counts from the due time of its
    event.

    The times to live are drawn at random over those seconds, so that scattered events expire, or
    they grow with the events. The client spins, so its processor time has no meaning.
    """

    name = "S8"
    title = f"many events expire within 10 s while {RATE:,} a second are published"
    figure = "p99_us"
    higher_is_better = False
    contenders = ("penstock", "nats", "redis")
    events = EVENTS
    """Events that expire."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        size = {"events": self.events, "within_s": 10.0, "before_s": 5.0}
        if quick:
            size = {"events": 20_000, "within_s": 0.5, "before_s": 1.0}
        cases = [
            Case(label, durability, {"scattered": scattered, "buries": buries, **size})
            for label, scattered, buries, durability in (
                ("in publish order", False, False, "D2"),
                ("in random order", True, False, "D1"),
                ("in random order", True, False, "D2"),
                ("in publish order, to a dead event store", False, True, "D2"),
                ("in random order, to a dead event store", True, True, "D2"),
            )
        ]
        return cases[1::2] if quick else cases

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        reason = peers()[contender].missing() or LACKS.get(contender, "")
        if reason:
            raise Missing(reason)
        if case["buries"] and contender != "penstock":
            raise Missing("expired events are deleted")
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        expiring = cast("Expiring", broker)
        events = pool(1, BATCH, 128)[0]
        await expiring.prepare_expiring(case.durability, buries=case["buries"])
        begins_s = await _fill(expiring, case, events)
        publish = partial(_publish_one, broker, events)
        before_s = begins_s - case["before_s"] - time.perf_counter()
        await at_rate(publish, RATE, before_s)  # warms up
        left_s = begins_s - time.perf_counter()
        if left_s <= 1 / RATE:
            raise AssertionError(f"warming up took {-left_s:.1f} s too long: events expire already")
        before = await at_rate(publish, RATE, left_s)
        cpu_s = cpu_s_of_all(server_pid)
        during = await at_rate(publish, RATE, case["within_s"])
        cpu_s = cpu_s_of_all(server_pid) - cpu_s
        figures = percentiles_us(during) | {
            f"{name}_before": value for name, value in percentiles_us(before).items()
        }
        figures["swelling"] = figures["p99_us"] / figures["p99_us_before"]
        figures["server_cpu_s"] = cpu_s
        figures["events"] = case["events"]
        figures["gone"] = await expiring.expired_count() / case["events"]
        return figures | await _late(expiring, case, begins_s + case["within_s"])


async def _publish_one(broker: Broker, events: Events, number: int) -> None:
    await broker.publish_one(events, number % len(events))


async def _fill(expiring: Expiring, case: Case, events: Events) -> float:
    """Store events whose times to live begin to end at one instant, soon after; return that
    instant."""
    draw = Random(8)
    within_s: float = case["within_s"]
    started_s = time.perf_counter()
    trial = range(0, case["events"] // TRIAL, BATCH)
    await _publish_all(
        expiring,
        events,
        ([int((LONG_S + draw.random() * within_s) * 1_000) for _ in events.datas] for _ in trial),
    )
    trial_s = time.perf_counter() - started_s

    before_s: float = case["before_s"]
    begins_s = time.perf_counter() + trial_s * TRIAL * SLOWER + 1.0 + before_s

    def batch_of_ttls(first: int) -> list[int]:
        """Return the times to live of a batch, computed just before it is sent: they count from
        now."""
        soonest_s = begins_s - time.perf_counter()
        parts = (
            draw.random() if case["scattered"] else number / case["events"]
            for number in range(first, first + BATCH)
        )
        return [int((soonest_s + part * within_s) * 1_000) for part in parts]

    await _publish_all(expiring, events, map(batch_of_ttls, range(0, case["events"], BATCH)))
    short_s = time.perf_counter() + before_s - begins_s
    if short_s > 0:
        raise AssertionError(f"storing the events took {short_s:.1f} s too long to wait for them")
    return begins_s


async def _publish_all(expiring: Expiring, events: Events, ttls_ms: Iterable[list[int]]) -> None:
    await at_once(partial(expiring.publish_expiring, events), ttls_ms, BATCHES_UNDER_WAY)


async def _late(expiring: Expiring, case: Case, ended_s: float) -> Figures:
    """Return the seconds from the last time to live to the removal of the last event; raise if it
    takes too long."""
    while await expiring.expired_count() < case["events"]:
        if time.perf_counter() - ended_s > PATIENCE_S:
            return {}
        await asyncio.sleep(LOOK_S)
    return {"late_s": max(0.0, time.perf_counter() - ended_s)}


SHAPE = Expiry()
