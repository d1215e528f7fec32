"""Writes the report as text and as JSON: the parts and their speed, and the results of the
checks."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from examples.flights import statistics
from examples.flights.reconciliation import Check


class Line(msgspec.Struct, frozen=True):
    """The count and speed of one part of the run."""

    name: str
    count: int
    seconds: float
    rate: float
    note: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    beginning: str
    """``Fresh run`` or ``Resumed``."""
    finished: datetime
    seconds: float
    machine: str
    parts: tuple[Line, ...]
    checks: tuple[Check, ...]
    carriers: tuple[dict[str, Any], ...]
    picture: str
    """Name of the picture's file, which is in the folder of the report."""
    flights: int

    @property
    def reconciles(self) -> bool:
        """Whether all checks hold."""
        return all(check.is_true for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result of the checks in one line."""
        failed = sum(not check.is_true for check in self.checks)
        if failed:
            return f"FAILED: {failed} of {len(self.checks)} checks do not hold."
        return (
            f"OK: published = delivered = acknowledged = archived = {self.flights:,}, and all "
            "sums are those of the CSV."
        )


def machine() -> str:
    """Return a description of the machine."""
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def carrier_rows(sums: pa.Table, names: Mapping[str, str]) -> tuple[dict[str, Any], ...]:
    """Combine sums by carrier and day into one row per carrier, the largest first."""
    by_carrier = statistics.added_up(sums, by=("carrier",))
    rows = by_carrier.sort_by([("flights", "descending")]).to_pylist()
    return tuple({"name": names.get(row["carrier"], ""), **row} for row in rows)


def write(report: Report, text_file: Path, json_file: Path) -> str:
    """Write both files, and return the text."""
    text = as_text(report)
    image = f"\n![Average departure delays by carrier]({report.picture})\n"
    text_file.write_text(text + image, encoding="utf-8")
    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return text


def as_text(report: Report) -> str:
    """Return a report as Markdown."""
    return "\n".join(
        [
            "# Flights: report",
            "",
            f"{report.beginning}. {report.seconds:.1f} s in all, ended "
            f"{report.finished.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC. {report.machine}.",
            "",
            "## What happened",
            "",
            *_table(
                ("part", "count", "seconds", "a second", ""),
                [
                    (
                        line.name,
                        f"{line.count:,}",
                        f"{line.seconds:.1f}" if line.seconds else "",
                        f"{line.rate:,.0f}" if line.rate else "",
                        line.note,
                    )
                    for line in report.parts
                ],
                "lrrrl",
            ),
            "",
            "## By carrier, from the table of the roll-up",
            "",
            *_table(
                ("carrier", "name", "flights", "cancelled", "dep. delay", "arr. delay", "miles"),
                [_carrier(row) for row in report.carriers],
                "llrrrrr",
            ),
            "",
            "Delays are averages in minutes.",
            "",
            "## Reconciliation",
            "",
            *(f"    {check}" for check in report.checks),
            "",
            report.verdict,
            "",
        ]
    )


def _carrier(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["carrier"],
        row["name"],
        f"{row['flights']:,}",
        f"{row['flights'] - row['departed']:,}",
        f"{row['departure_delay'] / max(1, row['departed']):.1f}",
        f"{row['arrival_delay'] / max(1, row['arrived']):.1f}",
        f"{row['distance']:,}",
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return the lines of a Markdown table whose columns are aligned in the source, too."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(cells, widths, sides, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rules = [
        f"{'-' * (width - 1)}:" if side == "r" else "-" * max(width, 1)
        for width, side in zip(widths, sides, strict=True)
    ]
    return [line(head), line(rules), *map(line, rows)]
