"""S7: publish keys; the cost of storing only the newest events of each value."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from bench.measuring import Stopwatch
from bench.pacing import at_once
from bench.processes import run_client
from bench.shape import BATCH, Broker, Case, Figures, Keyed, Missing, peers
from bench.workload import Events, keyed_pool

VALUES = 10_000
POOL_BATCHES = 64
BATCHES_UNDER_WAY = 4
"""Unconfirmed batches of a publisher, equal for all."""
WITHOUT = "penstock, no key"
"""A channel with the same events, and no publish key."""
ONE_KEY = {
    "nats": "a message has one subject",
    "redis": "a hash has one field per entry",
    "postgres": "an upsert has one unique key",
}


class PublishKeys:
    """Publishes for some seconds, without a reader; every value has been published before the clock
    starts. Values are drawn at random, so a batch replaces scattered events."""

    name = "S7"
    title = "publish keys: 10,000 values, batches of 1,000, 128 B"
    figure = "events_per_s"
    higher_is_better = True
    contenders = ("penstock", WITHOUT, "nats", "redis", "postgres")

    def cases(self, *, quick: bool) -> Sequence[Case]:
        seconds, batches = (0.05, 4) if quick else (1.0, POOL_BATCHES)
        size = {"seconds": seconds, "batches": batches}
        cases = [
            Case(f"{label}, {shown}", durability, {"keys": keys, "api": api, **size})
            for label, keys, api, shown, durabilities in (
                ("one key, depth 1", {"sku": 1}, "columns", "columns", ("D1", "D2")),
                ("one key, depth 1", {"sku": 1}, "rows", "events", ("D1", "D2")),
                ("one key, depth 10", {"sku": 10}, "columns", "columns", ("D2",)),
                ("two keys, depth 1", {"sku": 1, "quantity": 1}, "columns", "columns", ("D2",)),
            )
            for durability in durabilities
        ]
        return cases[::2] if quick else cases

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        if contender == WITHOUT:
            case = replace(case, parameters={**case.parameters, "keys": {}})
            return run_client(self.name, case, "penstock", directory=directory)
        if len(case["keys"]) > 1 and contender in ONE_KEY:
            raise Missing(peers()[contender].missing() or ONE_KEY[contender])
        return run_client(self.name, case, contender, directory=directory)

    async def work(self, case: Case, broker: Broker, server_pid: int) -> Figures:
        keyed, keys = cast("Keyed", broker), case["keys"]
        pool = keyed_pool(case["batches"], BATCH, 128, values=VALUES)
        await keyed.prepare_keyed(case.durability, keys)
        publish = partial(keyed.publish_keyed, api=case["api"])
        first = await at_once(publish, pool, BATCHES_UNDER_WAY)
        watch = Stopwatch(server_pid)
        until_time_is_up = itertools.takewhile(
            lambda _: watch.elapsed_s < case["seconds"], itertools.cycle(pool)
        )
        batches = await at_once(publish, until_time_is_up, BATCHES_UNDER_WAY)
        figures = watch.figures(batches * BATCH)
        _check(keys, pool, first + batches, stored=await keyed.stored())
        return figures


def _check(keys: Mapping[str, int], pool: Sequence[Events], batches: int, stored: int) -> None:
    """Raise if the number of stored events is not the number that the keys leave of the published
    ones."""
    if len(keys) > 1:
        assert 0 < stored <= VALUES, f"{stored} events stored"
        return
    counts = Counter[Any]()
    for number, events in enumerate(pool):
        times = len(range(number, batches, len(pool)))
        for properties in events.properties:
            counts[properties.get(*keys) if keys else ""] += times
    depth = next(iter(keys.values()), batches * BATCH)
    expected = sum(min(depth, count) for count in counts.values())
    if stored != expected:
        raise AssertionError(f"{stored} events stored, {expected} should be")


SHAPE = PublishKeys()
