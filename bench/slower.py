"""Reasons why Penstock is slower than another system, one sentence for each such row.

A new row below 1 needs an entry in :data:`REASONS`; ``python -m bench report`` names those without.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from bench.report import Cell, Result, compared, emphasized, pairs, row

SLOWER: Final = "slower"
"""Name of the marks around the table."""
EQUAL: Final = "The runs of both systems overlap, so the difference may be noise."
"""The sentence of a row without an entry whose runs overlap with Penstock's."""


class Reason(Struct, frozen=True):
    """Why Penstock is slower in some rows of a shape."""

    shape: str
    work: str
    """The work of these rows, in a few words."""
    sentence: str
    case: str = ""
    """Beginning of the case's label; every case if empty."""
    peer: str = ""
    """Name of the other system; every other system if empty."""


class SlowRow(Struct, frozen=True):
    """A row whose ratio is below 1."""

    shape: str
    cell: Cell
    ratio: str
    reason: Reason | None
    """``None`` if no entry fits."""


REASONS: Final = (
    Reason(
        "S2",
        "one subscriber, single events",
        "With one subscriber the work of its client decides, and each event becomes a Python "
        "object; Penstock's lead comes from encoding an event once for many receivers.",
        case="subscribers: 1, events",
    ),
    Reason(
        "S5",
        "restart with stored events",
        "Python and its libraries have to be loaded before the first event is read.",
        case="restart",
    ),
    Reason(
        "S7",
        "a channel with a publish key, beside one without",
        "Penstock is compared with itself here: each key costs a look-up per event.",
        peer="penstock, no key",
    ),
    Reason(
        "S7",
        "a publish key with ten events of each value, beside a channel without",
        "Penstock is compared with itself here: a replaced event is about 100,000 events old, so "
        "it has been written to a file of the channel; with a depth of 1 most are not.",
        case="one key, depth 10",
        peer="penstock, no key",
    ),
    Reason(
        "S7M",
        "deltas to a merge channel, beside whole events",
        "Penstock is compared with itself here: each delta is merged into the state of its key.",
    ),
    Reason(
        "S7M",
        "lists of deltas to a merge channel, beside whole events in columns",
        "Penstock is compared with itself here: most of the time goes into the client's lists of "
        "events, which deltas of different fields need.",
        case="any field",
    ),
    Reason(
        "S9",
        "the others beside a consumer that stalls",
        "The cause has not been examined; 1 means that the others keep their whole rate.",
    ),
    Reason(
        "S10",
        "many connections",
        "Each connection has its own events, so every turn of both event loops serves a single "
        "small batch.",
    ),
    Reason(
        "S11",
        "one awaited publish",
        "Between two publishes the server process sleeps and has to be woken, and each publish "
        "costs a turn of both event loops, partly in Python; NATS is a Go server.",
        peer="nats",
    ),
    Reason(
        "S11",
        "one awaited publish",
        "Redis appends a command to a buffer.",
        peer="redis",
    ),
    Reason(
        "S11",
        "one awaited publish",
        "An insert that is not synced writes to memory.",
        peer="postgres",
    ),
    Reason(
        "S11",
        "one awaited publish",
        "Each publish costs a turn of both event loops, partly in Python.",
    ),
    Reason(
        "S12",
        "Spark reads",
        "Spark takes rows of a Python source one by one, and reads Parquet in batches inside its "
        "JVM.",
    ),
    Reason(
        "S12",
        "Spark writes",
        "The rows leave the JVM for Python and are stored twice, in the journal and in a file of "
        "the channel.",
        case="streaming write",
    ),
    Reason(
        "S12P",
        "stateful Spark pipelines",
        "The rows have to enter the JVM from a Python source, and the results of a roll-up leave "
        "it again.",
    ),
    Reason(
        "S12T",
        "an idle Spark query",
        "The cause has not been examined; the difference is a few milliseconds of processor time "
        "per second.",
        case="CPU time of an idle query",
    ),
    Reason(
        "S13",
        "server start",
        "Python and its libraries have to be loaded first; the other server is a small program in "
        "machine code.",
    ),
    Reason(
        "S15",
        "one JMS send at a time",
        "As for one awaited publish: each send costs a turn of the event loop, partly in Python.",
        case="Qpid JMS",
    ),
    Reason(
        "S17",
        "MQTT publishes",
        "rumqttd keeps messages in memory and is written in Rust; Penstock stores each message.",
        case="publish",
        peer="rumqttd",
    ),
    Reason(
        "S17",
        "MQTT publishes, one unacknowledged message per connection",
        "A single message pays for a whole turn of the single writer, and is stored; mosquitto "
        "keeps it in memory.",
        case="publish, QoS 1, 1,000 x window 1",
        peer="mosquitto",
    ),
    Reason(
        "S17",
        "MQTT fan-out",
        "A single message pays for a whole turn of the single writer, and is stored; the others "
        "keep it in memory.",
        case="fan-out",
    ),
    Reason(
        "S17",
        "MQTT shared subscriptions",
        "Each message is stored, delivered and acknowledged in turns of the single writer; the "
        "others keep messages in memory.",
        case="shared subscription",
    ),
    Reason(
        "S17",
        "MQTT round trips",
        "A lone message pays for two turns of the single writer and for being stored; the others "
        "pass it on in memory.",
        case="round trip",
    ),
    Reason(
        "S18",
        "messages to offline sessions",
        "Each message pays for a turn of the single writer and is stored at once; mosquitto writes "
        "its file at its end and every 30 minutes.",
        case="5,000 offline sessions",
    ),
    Reason(
        "S18",
        "few of many retained messages",
        "Retained messages are read from the channel; mosquitto has them as objects in a tree in "
        "memory.",
        case="100,000 retained: subscribe",
    ),
    Reason(
        "S18",
        "restart with retained messages",
        "Python and its libraries have to be loaded first.",
        case="100,000 retained: restart",
    ),
    Reason(
        "S18",
        "idle MQTT connections",
        "Connections are Python objects, and the processor time is that of 100 single messages a "
        "second.",
        case="10,000 connections",
    ),
    Reason(
        "C1",
        "a cluster, beside one Penstock node",
        "Penstock is compared with itself here: in a cluster each event is on the disks of two of "
        "three servers, which write it to a consensus log and to a stream.",
        peer="penstock",
    ),
    Reason(
        "C11",
        "one awaited publish to a cluster, beside one Penstock node",
        "Penstock is compared with itself here: a majority of the servers has to confirm.",
        peer="penstock",
    ),
    Reason(
        "C11",
        "one awaited publish to a cluster",
        "A node stores events in a replicated NATS log, so the node is one hop more.",
    ),
)
"""The reasons; of several that fit a row the one with the longest case and a peer counts."""


def slow_rows(results: Iterable[Result]) -> list[SlowRow]:
    """Return the rows whose ratio is below 1, in the order of the tables."""
    rows = []
    for result in results:
        for our_cell, cell in pairs(result):
            ratio = compared(result, our_cell, cell)
            if ratio and float(ratio) < 1:
                reason = _reason(result, our_cell, cell)
                rows.append(SlowRow(result.shape, cell, ratio, reason))
    return rows


def without_reason(results: Iterable[Result]) -> list[str]:
    """Return a line for each row below 1 that no entry explains."""
    return [
        f"{slow.shape}, {slow.cell.case}, {slow.cell.durability or 'no level'}, "
        f"{slow.cell.contender}: {slow.ratio}"
        for slow in slow_rows(results)
        if slow.reason is None
    ]


def slower_table(results: Iterable[Result]) -> str:
    """Return the table of all reasons that have rows, the smallest ratio first."""
    rows_by_reason: dict[Reason, list[SlowRow]] = {}
    for slow in slow_rows(results):
        if slow.reason is not None:
            rows_by_reason.setdefault(slow.reason, []).append(slow)
    ordered = sorted(rows_by_reason.items(), key=lambda item: min(_value(one) for one in item[1]))
    lines = [
        row(
            [
                f"{reason.work} ({reason.shape})",
                ", ".join(dict.fromkeys(slow.cell.contender for slow in slows)),
                str(len(slows)),
                _range(slows),
                reason.sentence,
            ]
        )
        for reason, slows in ordered
    ]
    header = ["work", "faster", "rows", "ratio", "why"]
    return "\n".join([row(header), row(["---", "---", "---:", "---:", "---"]), *lines, ""])


def remarks(result: Result) -> str:
    """Return a list of the reasons for the rows of a table that are below 1; empty if it has no
    such row."""
    sentences: dict[str, list[str]] = {}
    for slow in slow_rows([result]):
        if slow.reason is not None:
            name = f"{slow.cell.case} {slow.cell.durability}".strip()
            sentences.setdefault(slow.reason.sentence, []).append(
                f"`{name}` ({slow.cell.contender})"
            )
    if not sentences:
        return ""
    items = [f"- {', '.join(names)}: {sentence}" for sentence, names in sentences.items()]
    return "\n".join(["", "Ratios below 1:", "", *items, ""])


def _reason(result: Result, our_cell: Cell, cell: Cell) -> Reason | None:
    fitting = [
        reason
        for reason in REASONS
        if reason.shape == result.shape
        and cell.case.startswith(reason.case)
        and reason.peer in ("", cell.contender)
    ]
    if fitting:
        return max(fitting, key=lambda reason: (bool(reason.peer), len(reason.case)))
    if _overlap(result.figure, our_cell, cell):
        return Reason(result.shape, "rows within the spread", EQUAL)
    return None


def _overlap(figure: str, our_cell: Cell, cell: Cell) -> bool:
    """Return whether the ranges of several runs of both overlap."""
    ours, theirs = ([run[figure] for run in one.runs if figure in run] for one in (our_cell, cell))
    if min(len(ours), len(theirs)) < 2:
        return False
    return max(min(ours), min(theirs)) <= min(max(ours), max(theirs))


def _value(slow: SlowRow) -> float:
    return float(slow.ratio)


def _range(slows: Iterable[SlowRow]) -> str:
    """Return the smallest and the largest ratio."""
    ratios = sorted({slow.ratio for slow in slows}, key=float)
    first, last = emphasized(ratios[0]), emphasized(ratios[-1])
    return first if len(ratios) == 1 else f"{first} to {last}"
