"""The table at the top of the page, and its ten most important rows for the README."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from bench.report import Cell, Result, compared, emphasized, label_of, number, pairs, row
from bench.shape import Case

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
    is_in_readme: bool = False


README_ROWS: Final = 10
"""Rows of the table in the README, with the worst one."""
HEADER: Final = ("work", "peer", "Penstock", "peer's", "unit", "ratio")
LINES = (
    Line(
        "publish and consume, batches of columns",
        "S1",
        "128 B, batches of columns",
        durability="D2",
        peer="nats",
        unit="events/s",
        is_in_readme=True,
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
        is_in_readme=True,
    ),
    Line(
        "deliver to 100 durables",
        "S2",
        "durables: 100, batches of columns",
        durability="D2",
        peer="nats",
        unit="deliveries/s",
        is_in_readme=True,
    ),
    Line(
        "shared durable, 8 clients, lists of events",
        "S3",
        "live, events",
        durability="D1",
        peer="nats",
        unit="events/s",
        is_in_readme=True,
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
        is_in_readme=True,
    ),
    Line(
        "publish latency, 1,000 single events/s",
        "S11",
        "1,000/s",
        durability="D1",
        peer="nats",
        unit="µs",
        is_in_readme=True,
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
        is_in_readme=True,
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
        case="streaming read, sealed files, 3,000,000 rows",
        durability="",
        peer="parquet",
        unit="rows/s",
        is_in_readme=True,
    ),
    Line(
        "publish and consume, cluster",
        "C1",
        "batches of columns",
        durability="D2",
        peer="nats-cluster",
        unit="events/s",
        is_in_readme=True,
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
    rows = [
        row([*_values(line, measured, cells), _runs(*cells), line.shape])
        for line in LINES
        if (cells := _cells_of(line, measured))
    ]
    return _table([*HEADER, "runs", "table"], rows)


def readme_table(results: Sequence[Result]) -> str:
    """Return the rows for the README: those of the most important lines, and the row with the
    smallest ratio of all tables."""
    measured = {result.shape: result for result in results}
    worst = _worst(results)
    lines = [line for line in LINES if line.is_in_readme and line not in worst]
    shown = [line for line in lines if _cells_of(line, measured)]
    rows = [
        row(_values(line, measured, cells))
        for line in [*shown[: README_ROWS - bool(worst)], *worst]
        if (cells := _cells_of(line, measured))
    ]
    return _table(HEADER, rows)


def is_in_summary(shape: str, case: Case, contender: str, ours: str) -> bool:
    """Return whether a line of the summary needs the cell of this contender."""
    return any(
        (line.shape, line.case, line.durability) == (shape, case.label, case.durability)
        and contender in (line.peer, ours)
        for line in LINES
    )


def _worst(results: Iterable[Result]) -> list[Line]:
    """Return a line for the row with the smallest ratio to another system; empty if there is no
    such row. Rows that compare Penstock with Penstock do not count."""
    ratios = [
        (ratio, result, cell)
        for result in results
        for our_cell, cell in pairs(result)
        if not cell.contender.startswith("penstock") and (ratio := compared(result, our_cell, cell))
    ]
    if not ratios:
        return []
    _, result, cell = min(ratios, key=lambda one: float(one[0]))
    fitting = [line for line in LINES if _is_line_of(line, result, cell)]
    return fitting or [
        Line(
            work=f"the smallest ratio: {cell.case}",
            shape=result.shape,
            case=cell.case,
            durability=cell.durability,
            peer=cell.contender,
            unit=label_of(result.figure),
        )
    ]


def _is_line_of(line: Line, result: Result, cell: Cell) -> bool:
    return (line.shape, line.case, line.durability, line.peer) == (
        result.shape,
        cell.case,
        cell.durability,
        cell.contender,
    )


def _table(header: Sequence[str], rows: Sequence[str]) -> str:
    lines = ["---"] * 2 + ["---:"] * 2 + ["---", "---:"] + ["---"] * (len(header) - len(HEADER))
    return "\n".join([row(header), row(lines), *rows, ""])


def _cells_of(line: Line, measured: Mapping[str, Result]) -> tuple[Cell, Cell] | None:
    """Return Penstock's cell and the peer's; ``None`` if one of them was not measured."""
    result = measured.get(line.shape)
    if result is None:
        return None
    return next(
        (
            (our_cell, cell)
            for our_cell, cell in pairs(result)
            if _is_line_of(line, result, cell) and compared(result, our_cell, cell)
        ),
        None,
    )


def _values(line: Line, measured: Mapping[str, Result], cells: tuple[Cell, Cell]) -> Sequence[str]:
    """Return the columns that both tables have."""
    result = measured[line.shape]
    work = f"{line.work}, {line.durability}" if line.durability else line.work
    values = (number(cell.median(result.figure) or 0.0) for cell in cells)
    return [work, line.peer, *values, line.unit, emphasized(compared(result, *cells))]


def _runs(ours: Cell, theirs: Cell) -> str:
    """Return the numbers of runs of both cells."""
    return f"{len(ours.runs)} / {len(theirs.runs)}"
