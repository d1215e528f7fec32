"""S19: delivery states of a channel as a table: all rows, and one page of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import penstock
from bench.measuring import percentiles_us
from bench.peers.penstock import Penstock, storage_of
from bench.shape import Case, Figures
from penstock_core.vocabulary.delivery_runs import EventState

PAGE: Final = 1_000
"""Rows of the measured page."""
PAGES: Final = 20
BATCH: Final = 10_000
DURABLE: Final = "team"


class DeliveryStates:
    """The table is read several times over one session; nothing else happens meanwhile. The
    latencies are those of its first page.

    ``ready``: events of a few publishes. ``in flight``: every second event of those that a client
    got is acknowledged. ``delayed``: each event was rolled back with a different delay. ``dead``:
    a small capacity has moved the events to the dead event store.
    """

    name = "S19"
    title = f"delivery states as a table; latency of a page of {PAGE:,} rows"
    figure = "rows_per_s"
    higher_is_better = True
    contenders: Sequence[str] = ("penstock",)

    def cases(self, *, quick: bool) -> Sequence[Case]:
        counts = {"ready": 500_000, "in flight": 20_000, "delayed": 10_000, "dead": 100_000}
        return [
            Case(
                f"{2_000 if quick else count:,} events, {state}",
                "D1",
                {"state": state, "events": 2_000 if quick else count, "rounds": 1 if quick else 5},
            )
            for state, count in counts.items()
        ]

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        stored = directory / "stored"
        stored.mkdir()
        with (
            Penstock().serve(stored, case.durability) as server,
            penstock.connect(server.url) as session,
        ):
            return _measured(session, case)


def _measured(session: penstock.Session, case: Case) -> Figures:
    state: EventState = "in_flight" if case["state"] == "in flight" else case["state"]
    channel = STEPS[state](session, case)
    latencies: list[float] = []
    for _ in range(PAGES):
        started_s = time.perf_counter()
        page = channel.delivery_state(states=[state], limit=PAGE)
        latencies.append(time.perf_counter() - started_s)
        if page.num_rows != PAGE:
            raise AssertionError(f"{page.num_rows} rows of a page of {PAGE}")
    rows, started_s = 0, time.perf_counter()
    for _ in range(case["rounds"]):
        rows += channel.delivery_state(states=[state]).num_rows
    return {
        "rows": rows,
        "rows_per_s": rows / (time.perf_counter() - started_s),
        **percentiles_us(latencies),
    }


def _filled(session: penstock.Session, case: Case, **attributes: Any) -> penstock.Channel:
    """Return a channel that has got the events of the case, with one durable."""
    channel = session.channels.create(
        "orders", type="persistent", storage=storage_of(case.durability), **attributes
    )
    channel.durables.create(DURABLE)
    for first in range(0, case["events"], BATCH):
        channel.publish_table({"n": range(first, min(first + BATCH, case["events"]))})
    return channel


def _ready(session: penstock.Session, case: Case) -> penstock.Channel:
    return _filled(session, case)


def _in_flight(session: penstock.Session, case: Case) -> penstock.Channel:
    channel = _filled(session, case)
    for events in _fetched(channel, case["events"]):
        for event in events[::2]:
            event.ack()
    return channel


def _delayed(session: penstock.Session, case: Case) -> penstock.Channel:
    channel = _filled(session, case)
    number = count()
    for events in _fetched(channel, case["events"]):
        for event in events:
            event.rollback(delay=3_600 + next(number) / 1_000)
    return channel


def _fetched(channel: penstock.Channel, total: int) -> Iterator[Sequence[penstock.DeliveredEvent]]:
    """Yield ``total`` events of the durable in batches. What the caller settles is flushed before
    the next batch and at the end."""
    durable = channel.durables.get(DURABLE)
    while total > 0:
        events = durable.fetch(BATCH, timeout=5)
        total -= len(events)
        yield events
        durable.flush()


def _dead(session: penstock.Session, case: Case) -> penstock.Channel:
    session.channels.create("dead", type="persistent", storage=storage_of(case.durability))
    return _filled(session, case, dead_event_store="dead", capacity=PAGE // 2)


STEPS: Final[Mapping[EventState, Callable[[penstock.Session, Case], penstock.Channel]]] = (
    MappingProxyType({"ready": _ready, "in_flight": _in_flight, "delayed": _delayed, "dead": _dead})
)

SHAPE = DeliveryStates()
