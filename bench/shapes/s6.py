"""S6: the rate at which selectors examine events, and their cost for a publisher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.processes import figures_of
from bench.selector_work import LOTS, SelectorJob
from bench.shape import Case, Figures

EVENTS = 10_000_000
PUBLISHED = 200_000
SUBSCRIPTIONS = 100
SINGLE = 2_000
"""Events published one by one."""
MANY = 1_000


class Selectors:
    """One process contains realm and client; its processor time over all threads counts, so that
    the figure is that of one core. Of two browses the second one counts: the first also verifies
    each record batch of the files it reads.

    Events have 64 B of data and five properties. ``lot`` is scattered over all events, ``seq``
    ascends with them: only then can whole record batches be skipped unread.
    """

    name = "S6"
    title = "selectors: events tested per second of CPU time"
    figure = "events_per_cpu_s"
    higher_is_better = True
    contenders = ("penstock",)
    events = EVENTS
    """Events that are browsed."""

    def cases(self, *, quick: bool) -> Sequence[Case]:
        events = 100_000 if quick else self.events
        middle = events // 2
        scans = [
            ("1 % matches, scattered", f"lot < {LOTS // 100}"),
            ("1 % matches, two conditions", f"region = 'eu' AND lot < {LOTS // 25}"),
            ("0.001 % matches, scattered", "lot = 77"),
            (
                "0.001 % matches, neighbours",
                f"seq >= {middle} AND seq < {middle + max(1, events // 100_000)}",
            ),
            ("nothing matches: a value no event has", "region = 'nowhere'"),
        ]
        published = 5_000 if quick else PUBLISHED
        count = 5 if quick else SUBSCRIPTIONS
        single, many = (20, 10) if quick else (SINGLE, MANY)
        cases = [
            *(
                Case(f"{label} ({events:,} events)", "", {"events": events, "selector": selector})
                for label, selector in scans
            ),
            *(
                Case(
                    label, "", {"events": published, "subscriptions": number, "distinct": distinct}
                )
                for label, number, distinct in (
                    ("publish 1,000 a batch, no subscription", 0, False),
                    (f"publish, {count} subscriptions, one selector", count, False),
                    (f"publish, {count} subscriptions, each its own selector", count, True),
                )
            ),
            Case(
                f"publish one event, {many:,} subscriptions, each its own selector",
                "",
                {"events": single, "rows": 1, "subscriptions": many, "distinct": True},
            ),
            Case(
                f"publish one event, {5 * many:,} shared durables, each its own selector",
                "",
                {"events": single, "rows": 1, "durables": 5 * many},
            ),
        ]
        return cases[::3] if quick else cases

    def run(self, case: Case, contender: str, directory: Path) -> Figures:
        stored = directory / "stored"
        stored.mkdir()
        job = SelectorJob(
            "scan" if "selector" in case.parameters else "publish", str(stored), **case.parameters
        )
        return figures_of([sys.executable, "-m", "bench.selector_work"], job)


SHAPE = Selectors()
