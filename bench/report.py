"""Results of benchmarks: cells, their tables in Markdown, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from msgspec import Struct

from bench.shape import OURS, Figures


class Cell(Struct, frozen=True):
    """All runs of one contender in one case."""

    case: str
    durability: str
    contender: str
    runs: list[Figures]
    missing: str = ""
    """The reason why this cell has no runs."""
    planned: int = 0
    """Number of runs that a run of everything wants; 0 if it was measured otherwise."""
    took_s: list[float] = []
    """Seconds of each run with its start and end, in a run of everything."""

    def median(self, figure: str) -> float | None:
        values = [run[figure] for run in self.runs if figure in run]
        return statistics.median(values) if values else None

    def spread(self, figure: str) -> float | None:
        """Return half the distance between the best and the worst run, as a share of the median;
        ``None`` for a single run, and for a difference whose median is below 0."""
        values = [run[figure] for run in self.runs if figure in run]
        if len(values) < 2:
            return None
        middle = statistics.median(values)
        if middle < 0:
            return None
        return (max(values) - min(values)) / 2 / middle if middle else 0.0


class Result(Struct, frozen=True):
    """The measured cells of one shape."""

    shape: str
    title: str
    figure: str
    higher_is_better: bool
    machine: str
    at: str
    versions: Mapping[str, str]
    cells: list[Cell]
    ours: str = OURS
    """Name of the system that the ratios compare with all others."""
    busy: Mapping[str, float] = {}
    """Share of the processors that was busy just before a case, by its label and level."""
    caption: str = ""
    """A sentence on the size of the work, if it is not the usual one."""


def markdown(result: Result) -> str:
    """Return the section of a shape: its table, the machine, the date and the versions."""
    figures = _figures(result)
    header = ["case", "level", "system", "runs", *map(label_of, figures), "ratio"]
    absent = _absent(result)
    rows = [
        *(
            _line(result, cell, figures)
            for cell in _by_case(result)
            if cell.contender not in absent and cell.missing != LEFT_OUT
        ),
        *(
            row(["every case", "", name, "0", reason, *[""] * len(figures)])
            for name, reason in absent.items()
            if reason != LEFT_OUT
        ),
    ]
    lines = [
        f"### {result.shape}: {result.title}",
        "",
        " ".join(
            filter(None, [_where(result), _how_often(result) if rows else "", *_remarks(result)])
        ),
    ]
    if rows:
        lines += ["", row(header), row(["---"] * 3 + ["---:"] * (len(header) - 3)), *rows]
    return "\n".join(lines) + "\n"


ROUNDING_ERROR = 1e-9
"""Differences of times below this value are rounding errors of a difference of 0."""
IDLE = 0.15
"""A machine is idle if less than this share of its processors is busy."""
LEFT_OUT = "left out to fit the time"
"""``missing`` of a cell that a run of everything has no time for."""

LABELS = {
    "left": "rate kept",
    "left_of_work": "events/CPU s kept",
    "deliveries_per_s": "deliveries/s",
    "events_per_s": "events/s",
    "cpu_s_per_million": "CPU s/M",
    "client_cpu_s_per_million": "client CPU s/M",
    "of_server_cpu_s_per_million": "server CPU s/M",
    "server_cpu_s": "server CPU s",
    "disk_bytes_per_event": "disk B/event",
    "written_bytes_per_event": "written B/event",
    "sent_bytes_per_event": "sent B/event",
    "received_bytes_per_event": "received B/event",
    "late_subscriber_s": "late subscriber s",
    "p50_us_before": "p50 µs before",
    "p99_us_before": "p99 µs before",
    "p999_us_before": "p99.9 µs before",
    "max_us_before": "max µs before",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "p999_us": "p99.9 µs",
    "max_us": "max µs",
    "swelling": "p99 / p99 before",
    "slowdown": "p50 / p50 before",
    "gone": "share expired in time",
    "late_s": "last expiry late s",
    "added_p99_us": "p99 µs added",
    "first_load_ms": "first load ms",
    "rows_per_s": "rows/s",
    "events_per_cpu_s": "events/CPU s",
    "first_events_per_cpu_s": "first scan events/CPU s",
    "cpu_us_per_batch": "CPU µs/batch",
    "achieved_per_s": "achieved/s",
    "first_ack_ms": "first ack ms",
    "ms": "ms",
    "p95_ms": "p95 ms",
    "trigger_ms": "micro-batch ms",
    "session_ms": "session start ms",
    "realm_idle_ms": "realm ms",
    "session_idle_ms": "session without query ms",
    "import_ms": "import ms",
    "process_ms": "whole process ms",
    "listening_ms": "listening ms",
    "restart_s": "first event s (after stop)",
    "killed_restart_s": "first event s (after kill)",
    "listening_s": "listening s",
    "first_event_ms": "first event ms",
    "connected_s": "all connected s",
    "kb_per_connection": "server kB/connection",
    "kb_per_channel": "server kB/channel",
    "memory_mb": "server memory MB",
    "memory_mib": "peak memory MiB",
    "made_ms": "channel creation ms",
}
"""Headings of the columns by figure, in the order of the columns."""


def _absent(result: Result) -> dict[str, str]:
    """Return the reason by contender for contenders that ran in no case."""
    ran = {cell.contender for cell in result.cells if not cell.missing}
    reasons: dict[str, str] = {}
    for cell in result.cells:
        if cell.contender not in ran:
            reasons.setdefault(cell.contender, cell.missing)
    return reasons


def _figures(result: Result) -> list[str]:
    seen = {figure for cell in result.cells for run in cell.runs for figure in run}
    return [figure for figure in LABELS if figure in seen]


def _by_case(result: Result) -> list[Cell]:
    """Return the cells grouped by case, ours first; calls may have measured a case separately."""
    cases = list(dict.fromkeys((cell.case, cell.durability) for cell in result.cells))
    return sorted(
        result.cells,
        key=lambda cell: (
            cases.index((cell.case, cell.durability)),
            cell.contender != result.ours,
        ),
    )


def _where(result: Result) -> str:
    """Return the date, machine and versions; empty if the page names them once for all tables."""
    if not result.machine:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return f"Measured {result.at} on {result.machine}. Versions: {versions}."


def _remarks(result: Result) -> list[str]:
    """Return sentences on the size of the work, cells that were left out, and other work on the
    machine."""
    remarks = [result.caption]
    left_out: dict[str, list[str]] = {}
    for cell in result.cells:
        if cell.missing == LEFT_OUT:
            left_out.setdefault(f"{cell.case} {cell.durability}".strip(), []).append(cell.contender)
    if left_out:
        omitted = (f"{case} ({', '.join(names)})" for case, names in left_out.items())
        remarks.append(f"Left out to fit the time: {'; '.join(omitted)}.")
    if texts := [f"{case} ({share:.0%})" for case, share in result.busy.items() if share >= IDLE]:
        remarks.append(f"The machine was not idle before: {'; '.join(texts)}.")
    return remarks


def _how_often(result: Result) -> str:
    if max((len(cell.runs) for cell in result.cells), default=0) < 2:
        return "Each cell is one run."
    return (
        "Each cell is the median of its runs; ± is half the distance between the best and the "
        "worst run."
    )


def _line(result: Result, cell: Cell, figures: Sequence[str]) -> str:
    start = [cell.case, cell.durability, cell.contender, str(len(cell.runs))]
    if cell.missing:
        return row([*start, cell.missing, *[""] * len(figures)])
    values = []
    for figure in figures:
        median = cell.median(figure)
        text = "" if median is None else number(median)
        spread = cell.spread(figure)
        if figure == result.figure and spread is not None:
            text += f" ± {spread:.0%}"
        values.append(text)
    return row([*start, *values, _ratio(result, cell)])


def _ratio(result: Result, cell: Cell) -> str:
    """Return Penstock's ratio to this contender; above 1 Penstock is better."""
    own_cell = next((our_cell for our_cell, peer_cell in pairs(result) if peer_cell is cell), None)
    return "" if own_cell is None else emphasized(compared(result, own_cell, cell))


def pairs(result: Result) -> list[tuple[Cell, Cell]]:
    """Return Penstock's cell and the other's for each cell of another system."""
    own_cells = {
        (cell.case, cell.durability): cell for cell in result.cells if cell.contender == result.ours
    }
    return [
        (own_cells[cell.case, cell.durability], cell)
        for cell in result.cells
        if cell.contender != result.ours and (cell.case, cell.durability) in own_cells
    ]


def emphasized(ratio: str) -> str:
    """Return a ratio, in bold if it is below 1."""
    return f"**{ratio}**" if ratio and float(ratio) < 1 else ratio


def compared(result: Result, own: Cell, cell: Cell) -> str:
    """Return the ratio of two cells, above 1 if ours is better; empty if one has no figure, or a
    difference of two times that is too small to be measured."""
    ours, theirs = own.median(result.figure), cell.median(result.figure)
    if ours is None or theirs is None or min(ours, theirs) <= 0:
        return ""
    return f"{ours / theirs if result.higher_is_better else theirs / ours:.2f}"


def label_of(figure: str) -> str:
    """Return the heading of a figure."""
    return LABELS.get(figure, figure)


def number(value: float) -> str:
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    if abs(value) < ROUNDING_ERROR:
        return "0"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def row(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def between_marks(page: str, tables: Mapping[str, str]) -> str:
    """Return ``page`` with the parts between ``<!-- S1 -->`` and ``<!-- /S1 -->`` replaced. Raises
    ``ValueError`` if the page has no place for a shape."""
    for shape, table in tables.items():
        opening, closing = f"<!-- {shape} -->", f"<!-- /{shape} -->"
        if opening not in page or closing not in page:
            raise ValueError(f"the page has no place for {shape}: {opening} ... {closing}")
        before, _, rest = page.partition(opening)
        after = rest.partition(closing)[2]
        page = f"{before}{opening}\n{table}{closing}{after}"
    return page
