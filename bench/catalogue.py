"""The shapes of ``python -m bench --all`` in the order of their importance, with the time that each
takes on a machine with two processors."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from bench import mqtt_peers
from bench.plan import LEADING, OTHER, RIVAL, SUMMARY, PlannedCase, PlannedCell
from bench.shape import CONTENDERS, Case, Shape, lacks_window, ours_in, peers, shapes
from bench.store import FullRun
from bench.summary import is_in_summary

START_S: Final[Mapping[str, float]] = MappingProxyType(
    {
        "penstock": 1.5,
        "nats": 1.2,
        "redis": 1.5,
        "postgres": 1.8,
        "artemis": 4.5,
        "kafka": 6.0,
        "rabbitmq": 8.0,
        "penstock-cluster": 6.0,
        "nats-cluster": 4.0,
        "kafka-cluster": 12.0,
        "rabbitmq-cluster": 20.0,
    }
)
"""Seconds of the start and the end of a contender and its client."""
OTHER_START_S: Final = 1.5
WORK_PER_SECOND: Final = 1.5
"""Seconds that a run takes for each second that it measures, for warming up and backlogs."""
SHORTEST_S: Final = 0.5


class Entry(Struct, frozen=True):
    """The measurement of one shape among all others."""

    work_s: Mapping[str, float] = {}
    """Seconds of a run after its start, by the beginning of the case's label."""
    quick_s: float = 0.5
    """Seconds of a quick run after its start."""
    leading: Sequence[str] = ()
    """Beginnings of the labels of its leading cases, in which all peers take part longest; the
    first case if empty. A case where some peer is faster belongs to them."""
    unable: Sequence[tuple[str, str]] = ()
    """Parts of labels, and the contender that cannot take part in these cases."""
    sizes: Mapping[str, Any] = {}
    """Attributes of the shape that make it shorter."""
    caption: str = ""
    """A sentence on these sizes, for the table."""


ENTRIES: Final[Mapping[str, Entry]] = MappingProxyType(
    {
        "S1": Entry(leading=("128 B, batches of columns", "128 B, batches of events")),
        "S11": Entry(leading=("sequential", "1,000/s")),
        "C1": Entry(),
        "S2": Entry(leading=("subscribers: 10, batches", "durables: 10,")),
        "S3": Entry(
            work_s={"stored": 5.0, "live": 5.0},
            leading=("stored, batches", "live, events"),
            caption="RabbitMQ, PostgreSQL and Artemis get 40,000 events instead of 200,000.",
        ),
        "S17": Entry(leading=("",)),  # each of its peers is faster in some case
        "S15": Entry(leading=("",)),
        "S13": Entry(
            work_s={"": 0.5},
            leading=("server process",),
            unable=[("embedded", name) for name in CONTENDERS[1:]],
        ),
        "S12": Entry(
            work_s={"": 8.0},
            quick_s=8.0,
            sizes={"events": 3_000_000},
            caption="The channel has 3,000,000 rows.",
        ),
        "C11": Entry(),
        "S5": Entry(
            work_s={"drain": 6.0, "restart with 300,000": 10.0, "restart with 3,000,000": 45.0},
            leading=("drain 300,000, batches of columns",),
            unable=[("restart with 3,000,000", name) for name in CONTENDERS[2:]],
            sizes={"backlog": 300_000, "stored": 3_000_000},
            caption="Backlogs have 300,000 events, and the larger restart 3,000,000.",
        ),
        "S7": Entry(
            leading=("one key, depth 1, columns",),
            unable=[("two keys", "nats"), ("two keys", "redis"), ("two keys", "postgres")],
        ),
        "S4": Entry(work_s={"in order": 5.0, "strict order": 3.0}),
        "S14": Entry(
            work_s={
                "durables": 4.0,
                "events stored: 10,000": 4.0,
                "events stored: 3,000,000": 25.0,
                "channels: 10": 5.0,
                "channels: 1,000": 9.0,
            },
            sizes={"stored": (10_000, 3_000_000), "channels": (10, 1_000)},
            caption="At most 3,000,000 events are stored, and 1,000 channels created.",
        ),
        "S10": Entry(work_s={"": 12.0}),
        "S18": Entry(
            work_s={"5,000 offline": 8.0, "100,000 retained": 7.0, "10,000 connections": 22.0}
        ),
        "S8": Entry(
            work_s={"in": 24.0},
            unable=[("in", "redis"), ("to a dead event store", "nats")],
            sizes={"events": 300_000},
            caption="300,000 events expire.",
        ),
        "S16": Entry(work_s={"": 9.0}),
        "S20": Entry(
            work_s={"": 18.0},
            sizes={"rows": 3_000_000},
            caption="The channel that is read has 3,000,000 rows.",
        ),
        "S12P": Entry(work_s={"": 10.0}, quick_s=4.0),
        "S12T": Entry(
            work_s={"source": 25.0, "CPU time": 30.0, "new process": 14.0},
            quick_s=14.0,
            sizes={"seconds": 8.0},
            caption="Queries run for 8 seconds.",
        ),
        "S9": Entry(work_s={"ten": 8.0, "one": 15.0}),
        "S19": Entry(work_s={"": 5.0}),
        "S6": Entry(
            work_s={"publish one event, 5,000": 12.0, "publish": 4.0, "": 6.0},
            sizes={"events": 2_000_000},
            caption="2,000,000 events are browsed.",
        ),
        "S7M": Entry(work_s={"": 9.0}),
    }
)
"""Entries by shape, the most important one first. A shape without an entry comes last."""


def everything(
    *, quick: bool, runs: int, measured: FullRun | None = None
) -> tuple[Mapping[str, Shape], list[PlannedCase]]:
    """Return all shapes, with the sizes of their entries, and all of their cases with each
    contender.

    ``measured`` is an earlier run of everything, whose times replace the estimates.
    """
    by_name = {name: _sized(shape, quick=quick) for name, shape in shapes().items()}
    names = [*ENTRIES, *(name for name in by_name if name not in ENTRIES)]
    times = {} if measured is None else _times_of(measured)
    cases = [
        _planned(
            by_name[name],
            importance,
            case,
            runs=runs,
            quick=quick,
            is_first=not place,
            times=times,
        )
        for importance, name in enumerate(names)
        for place, case in enumerate(by_name[name].cases(quick=quick))
    ]
    return by_name, cases


def caption_of(name: str, *, quick: bool) -> str:
    """Return the sentence on the sizes of a shape; empty if they are the usual ones."""
    return "" if quick else ENTRIES.get(name, Entry()).caption


def main_peer(shape: Shape) -> str:
    """Return the peer that matters most: NATS, or the first one of the shape."""
    others = [name for name in shape.contenders if name != ours_in(shape)]
    return next((name for name in others if name.startswith("nats")), others[0] if others else "")


Times = Mapping[tuple[str, str, str, str], float]
"""Seconds of a run, by shape, case, level and contender."""


def _times_of(measured: FullRun) -> Times:
    return {
        (result.shape, cell.case, cell.durability, cell.contender): sum(cell.took_s)
        / len(cell.took_s)
        for result in measured.results
        for cell in result.cells
        if cell.took_s
    }


def _sized(shape: Shape, *, quick: bool) -> Shape:
    """Return a shape with the sizes of its entry. Raises ``AttributeError`` if it has no such
    size."""
    sized = copy.copy(shape)
    for name, value in {} if quick else ENTRIES.get(shape.name, Entry()).sizes.items():
        getattr(shape, name)
        setattr(sized, name, value)
    return sized


def _planned(
    shape: Shape,
    importance: int,
    case: Case,
    *,
    runs: int,
    quick: bool,
    is_first: bool,
    times: Times,
) -> PlannedCase:
    entry = ENTRIES.get(shape.name, Entry())
    leading = entry.leading or ((case.label,) if is_first else ())
    is_leading = case.label.startswith(tuple(leading))
    cells = (
        PlannedCell(
            name,
            _rank(shape, case, name, is_leading=is_leading),
            times.get(
                (shape.name, case.label, case.durability, name),
                _run_s(entry, case, name, quick=quick),
            ),
            runs,
        )
        for name in shape.contenders
    )
    return PlannedCase(shape.name, importance, case, tuple(cells))


def _rank(shape: Shape, case: Case, contender: str, *, is_leading: bool) -> int:
    if is_in_summary(shape.name, case, contender, ours_in(shape)):
        return SUMMARY
    if contender == main_peer(shape) or contender.startswith("penstock"):
        return RIVAL
    return LEADING if is_leading else OTHER


def _run_s(entry: Entry, case: Case, contender: str, *, quick: bool) -> float:
    """Return the estimated seconds of a run."""
    name = contender.partition(", ")[0]
    cannot = any(part in case.label and contender == who for part, who in entry.unable)
    if cannot or _is_absent(name) or (name in peers() and lacks_window(case, name)):
        return 0.0
    start_s = START_S.get(name, OTHER_START_S)
    if quick:
        return start_s + entry.quick_s
    beginnings = [text for text in entry.work_s if case.label.startswith(text)]
    if beginnings:
        return start_s + entry.work_s[max(beginnings, key=len)]
    return start_s + SHORTEST_S + WORK_PER_SECOND * float(case.parameters.get("seconds", 0.0))


def _is_absent(name: str) -> bool:
    if name in peers():
        return bool(peers()[name].missing())
    return name in mqtt_peers.CONTENDERS and bool(mqtt_peers.missing(name))
