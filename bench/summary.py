"""The table of ten lines at the top of the page: what Penstock does better and worse."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from bench.report import Cell, Result, compared, number, row

SUMMARY = "summary"
"""Its place on the page."""


class Line(Struct, frozen=True):
    """A case of a shape, and the peer that it is compared with."""

    work: str
    shape: str
    case: str
    durability: str
    peer: str
    unit: str


LINES = (
    Line(
        "publish and consume, batches",
        "S1",
        "128 B, batches of columns",
        durability="D2",
        peer="nats",
        unit="/s",
    ),
    Line("the same", "S1", "128 B, batches of columns", durability="D2", peer="kafka", unit="/s"),
    Line(
        "the same, lists of events",
        "S1",
        "128 B, batches of events",
        durability="D2",
        peer="nats",
        unit="/s",
    ),
    Line(
        "deliver to 100 durables",
        "S2",
        "durables: 100, batches of columns",
        durability="D2",
        peer="nats",
        unit="/s",
    ),
    Line(
        "share a durable, 8 clients", "S3", "live, events", durability="D1", peer="nats", unit="/s"
    ),
    Line(
        "send over AMQP, streamed",
        "S15",
        "C client, acknowledged",
        durability="D1",
        peer="artemis",
        unit="/s",
    ),
    Line(
        "send over JMS, one at a time",
        "S15",
        "Qpid JMS, one at a time",
        durability="D1",
        peer="artemis",
        unit="/s",
    ),
    Line(
        "publish one event, awaited, 1,000 a second",
        "S11",
        "1 k/s",
        durability="D1",
        peer="nats",
        unit="µs",
    ),
    Line(
        work="start a server, until the first acknowledged event",
        shape="S13",
        case="server process, from its start",
        durability="D2",
        peer="nats",
        unit="ms",
    ),
    Line(
        work="take in MQTT messages",
        shape="S17",
        case="in, QoS 1, 200 x window 10",
        durability="D1",
        peer="rumqttd",
        unit="server CPU s a million",
    ),
    Line(
        work="send one MQTT message there and back",
        shape="S17",
        case="one there and back, QoS 1",
        durability="D1",
        peer="mosquitto",
        unit="server CPU s a million",
    ),
    Line(
        work="stream to Spark from files",
        shape="S12",
        case="streaming read, sealed files, 10,000,000 rows",
        durability="",
        peer="parquet",
        unit="rows/s",
    ),
    Line(
        "publish and consume, a cluster",
        "C1",
        "batches of columns",
        durability="D2",
        peer="nats-cluster",
        unit="/s",
    ),
    Line(
        work="publish one event to a cluster, awaited",
        shape="C11",
        case="one after the other",
        durability="D2",
        peer="nats-cluster",
        unit="µs",
    ),
)


def summary(results: Iterable[Result]) -> str:
    """The table; lines whose cells were not measured are left out."""
    measured = {result.shape: result for result in results}
    header = ["work", "beside", "Penstock", "peer", "unit", "ratio", "runs", "table"]
    rows = [
        text
        for line in LINES
        if line.shape in measured and (text := _row_of(line, measured[line.shape]))
    ]
    return "\n".join(
        [row(header), row(["---"] * 2 + ["---:"] * 2 + ["---", "---:", "---", "---"]), *rows, ""]
    )


def _row_of(line: Line, result: Result) -> str:
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
    return f"{len(ours.runs)} and {len(theirs.runs)}"
