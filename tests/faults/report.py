"""What a run has found: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from tests.faults.checking import Consuming, Publishing
from tests.faults.damage import KINDS, Damage


class Loop(Struct):
    """One data directory, from its first server to its end."""

    seed: int
    minutes: float
    lives: int
    """Starts of the server."""
    faults: dict[str, int]
    publishers: list[Publishing]
    consumers: list[Consuming]
    damages: list[Damage]
    notes: list[str]
    """What could not be played here, and why."""
    violations: list[str]

    @property
    def is_well(self) -> bool:
        return not self.violations


def as_json(loops: Sequence[Struct]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(list(loops)))


def table(loops: Sequence[Loop]) -> str:
    """All loops together, by who published and consumed and by what was damaged."""
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
    wrong = [f"seed {loop.seed}: {what[:2_000]}" for loop in loops for what in loop.violations]
    minutes = sum(loop.minutes for loop in loops)
    lives = sum(loop.lives for loop in loops)
    last = f"{len(loops)} loops, {minutes:.1f} minutes of faults, {lives} lives of the server: "
    last += "everything held" if not wrong else f"{len(wrong)} VIOLATIONS"
    return "\n\n".join([*parts, *notes, *wrong, last]) + "\n"


def traffic(publishers: Sequence[Publishing], consumers: Sequence[Consuming]) -> list[str]:
    """What was published and consumed, by who did it."""
    return [
        as_table(
            ("PUBLISHER", "ATTEMPTED", "ACKNOWLEDGED", "REFUSED", "STORED", "LOST", "DUPLICATED"),
            _summed(publishers),
        ),
        as_table(
            ("CONSUMER", "EVENTS", "RECEIVED", "CONFIRMED", "AGAIN", "MISSED"), _summed(consumers)
        ),
    ]


def _summed(rows: Sequence[Struct]) -> list[tuple[Any, ...]]:
    sums: dict[str, list[int]] = {}
    for row in rows:
        name, *numbers = msgspec.structs.astuple(row)
        known = sums.setdefault(name, [0] * len(numbers))
        sums[name] = [a + b for a, b in zip(known, numbers, strict=True)]
    total = [sum(column) for column in zip(*sums.values(), strict=True)] if sums else []
    return [*((name, *numbers) for name, numbers in sums.items()), ("all", *total)]


def _by_kind(damages: Sequence[Damage]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for kind in KINDS:
        mine = [each for each in damages if each.kind == kind]
        missing, named = sum(each.missing for each in mine), sum(each.named for each in mine)
        placed = sum(each.placed for each in mine)
        refused = sum(bool(each.refused) for each in mine)
        kept = sum(each.kept for each in mine)
        silent = missing - named - placed - kept
        found.append((kind, len(mine), refused, missing, named, placed, kept, silent))
    return found


def _faults(loops: Sequence[Loop]) -> list[tuple[Any, ...]]:
    sums: dict[str, int] = {}
    for loop in loops:
        for what, times in loop.faults.items():
            sums[what] = sums.get(what, 0) + times
    return sorted(sums.items())


def as_table(head: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> str:
    """Lines with a head, in columns."""
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
