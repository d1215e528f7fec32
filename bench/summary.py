"""The table at the top of the page: one line for each important case, better or worse."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from bench.report import Cell, Result, compared, number, row

SUMMARY = "summary"
"""Name of the marks around the table."""


class Line(Struct, frozen=True):
    """A case of a shape and the peer that Penstock is compared with."""

    work: str
    shape: str
    case: str
    durability: str
    peer: str
    unit: str


LINES = (
    Line(
        "publish and consume, batches of columns",
        "S1",
        "128 B, batches of columns",
        durability="D2",
        peer="nats",
        unit="events/s",
    ),
    Line(
        "publish and consume, batches of columns",
        "S1",
        "128 B, batches of columns",
        durability="D2",
        peer="kafka",
        unit="events/s",
    ),
    Line(
        "publish and consume, lists of events",
        "S1",
        "128 B, batches of events",
        durability="D2",
        peer="nats",
        unit="events/s",
    ),
    Line(
        "deliver to 100 durables",
        "S2",
        "durables: 100, batches of columns",
        durability="D2",
        peer="nats",
        unit="deliveries/s",
    ),
    Line(
        "shared durable, 8 clients, lists of events",
        "S3",
        "live, events",
        durability="D1",
        peer="nats",
        unit="events/s",
    ),
    Line(
        "AMQP sends, streamed",
        "S15",
        "C client, acknowledged",
        durability="D1",
        peer="artemis",
        unit="messages/s",
    ),
    Line(
        "JMS sends, one at a time",
        "S15",
        "Qpid JMS, one at a time",
        durability="D1",
        peer="artemis",
        unit="messages/s",
    ),
    Line(
        "publish latency, 1,000 single events/s",
        "S11",
        "1,000/s",
        durability="D1",
        peer="nats",
        unit="µs",
    ),
    Line(
        work="server start to first acknowledged event",
        shape="S13",
        case="server process, from its start",
        durability="D2",
        peer="nats",
        unit="ms",
    ),
    Line(
        work="MQTT publishes, QoS 1",
        shape="S17",
        case="publish, QoS 1, 200 x window 10",
        durability="D1",
        peer="rumqttd",
        unit="server CPU s/M",
    ),
    Line(
        work="MQTT round trip, one message at a time",
        shape="S17",
        case="round trip, QoS 1",
        durability="D1",
        peer="mosquitto",
        unit="server CPU s/M",
    ),
    Line(
        work="Spark streaming read, sealed files",
        shape="S12",
        case="streaming read, sealed files, 10,000,000 rows",
        durability="",
        peer="parquet",
        unit="rows/s",
    ),
    Line(
        "publish and consume, cluster",
        "C1",
        "batches of columns",
        durability="D2",
        peer="nats-cluster",
        unit="events/s",
    ),
    Line(
        work="publish latency, cluster, one event at a time",
        shape="C11",
        case="sequential",
        durability="D2",
        peer="nats-cluster",
        unit="µs",
    ),
)


def summary(results: Iterable[Result]) -> str:
    """Return the table without the lines whose cells were not measured."""
    measured = {result.shape: result for result in results}
    header = ["work", "peer", "Penstock", "peer's", "unit", "ratio", "runs", "table"]
    rows = [
        text
        for line in LINES
        if line.shape in measured and (text := _row_of(line, measured[line.shape]))
    ]
    return "\n".join(
        [row(header), row(["---"] * 2 + ["---:"] * 2 + ["---", "---:", "---", "---"]), *rows, ""]
    )


def _row_of(line: Line, result: Result) -> str:
    """Return a line of the table; empty if one of its cells was not measured."""
    case = (line.case, line.durability)
    cells = {cell.contender: cell for cell in result.cells if (cell.case, cell.durability) == case}
    ours, theirs = cells.get(result.ours), cells.get(line.peer)
    if ours is None or theirs is None:
        return ""
    ratio = compared(result, ours, theirs)
    if not ratio:
        return ""
    work = f"{line.work}, {line.durability}" if line.durability else line.work
    verdict = f"**{ratio}**" if float(ratio) < 1 else ratio
    values = (number(cell.median(result.figure) or 0.0) for cell in (ours, theirs))
    return row([work, line.peer, *values, line.unit, verdict, _runs(ours, theirs), line.shape])


def _runs(ours: Cell, theirs: Cell) -> str:
    """Return the numbers of runs of both cells."""
    return f"{len(ours.runs)} / {len(theirs.runs)}"
