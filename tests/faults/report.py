"""The results of a run: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tests.faults.checking import Consuming, Publishing
from tests.faults.damage import KINDS, Damage


class Loop(Struct):
    """The results on one data directory, from its first server to its end."""

    seed: int
    minutes: float
    lives: int
    """Number of starts of the server."""
    faults: dict[str, int]
    publishers: list[Publishing]
    consumers: list[Consuming]
    damages: list[Damage]
    notes: list[str]
    """Faults and roles that could not be played here, with the reason."""
    violations: list[str]

    @property
    def is_well(self) -> bool:
        return not self.violations


def as_json(loops: Sequence[Struct]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(list(loops)))


def table(loops: Sequence[Loop]) -> str:
    """Return the table of all loops: publishers, consumers, damage and faults."""
    parts = [
        *traffic(
            [row for loop in loops for row in loop.publishers],
            [row for loop in loops for row in loop.consumers],
        ),
        as_table(
            ("DAMAGED", "CASES", "REFUSED", "MISSING", "BY ID", "BY PLACE", "KEPT", "SILENT"),
            _by_kind([row for loop in loops for row in loop.damages]),
        ),
        as_table(("FAULT", "TIMES"), _faults(loops)),
    ]
    notes = sorted({note for loop in loops for note in loop.notes})
    violations = [f"seed {loop.seed}: {what[:2_000]}" for loop in loops for what in loop.violations]
    minutes = sum(loop.minutes for loop in loops)
    lives = sum(loop.lives for loop in loops)
    last = f"{len(loops)} loops, {minutes:.1f} minutes of faults, {lives} lives of the server: "
    last += "everything held" if not violations else f"{len(violations)} VIOLATIONS"
    return "\n\n".join([*parts, *notes, *violations, last]) + "\n"


def traffic(publishers: Sequence[Publishing], consumers: Sequence[Consuming]) -> list[str]:
    """Return the tables of publishers and consumers."""
    return [
        as_table(
            ("PUBLISHER", "ATTEMPTED", "ACKNOWLEDGED", "REFUSED", "STORED", "LOST", "DUPLICATED"),
            _sums_by_name(publishers),
        ),
        as_table(
            ("CONSUMER", "EVENTS", "RECEIVED", "CONFIRMED", "AGAIN", "MISSED"),
            _sums_by_name(consumers),
        ),
    ]


def _sums_by_name(rows: Sequence[Struct]) -> list[tuple[Any, ...]]:
    sums: dict[str, list[int]] = {}
    for row in rows:
        name, *numbers = msgspec.structs.astuple(row)
        sums_before = sums.setdefault(name, [0] * len(numbers))
        sums[name] = [a + b for a, b in zip(sums_before, numbers, strict=True)]
    total = [sum(column) for column in zip(*sums.values(), strict=True)] if sums else []
    return [*((name, *numbers) for name, numbers in sums.items()), ("all", *total)]


def _by_kind(damages: Sequence[Damage]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for kind in KINDS:
        of_kind = [case for case in damages if case.kind == kind]
        missing, named = sum(case.missing for case in of_kind), sum(case.named for case in of_kind)
        placed = sum(case.placed for case in of_kind)
        refused = sum(bool(case.refused) for case in of_kind)
        kept = sum(case.kept for case in of_kind)
        silent = missing - named - placed - kept
        rows.append((kind, len(of_kind), refused, missing, named, placed, kept, silent))
    return rows


def _faults(loops: Sequence[Loop]) -> list[tuple[Any, ...]]:
    sums: dict[str, int] = {}
    for loop in loops:
        for what, times in loop.faults.items():
            sums[what] = sums.get(what, 0) + times
    return sorted(sums.items())


def as_table(head: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Format rows in columns below a head."""
    cells = [tuple(head), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
