"""Growth of packages: `recorded.toml` has the statements that each package may have.

A package may grow by `GROWTH_MAX` over its record. The record of a package rises only together with
a reason, so many small steps are noticed like one large step. It falls without a reason.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, convert
from msgspec.structs import replace

RECORD = Path(__file__).with_name("recorded.toml")
GROWTH_MAX = 0.02
"""Largest allowed change of the statements of a package, as a fraction of its record."""
COMMAND = "python -m scripts.weight --record"

_HEADER = f"""\
# Statements of each package (docstrings are not statements), and the reasons for growth.
# tests/tidy/test_growth.py fails when a package has over {GROWTH_MAX:.0%} more than `statements`.
# `{COMMAND}` lowers the record of packages that became smaller.
# `{COMMAND} PACKAGE --reason "..."` raises the record of one that grew.
# `first` is the first record of a package.
"""


class Growth(Struct, forbid_unknown_fields=True):
    """A reason for growth."""

    date: datetime.date
    statements: int
    """Statements of the package after it grew."""
    reason: str


class Recorded(Struct, forbid_unknown_fields=True):
    """The record of a package."""

    first: int
    statements: int
    growth: list[Growth] = []

    @property
    def justified(self) -> int:
        """Statements that the last reason allows."""
        return self.growth[-1].statements if self.growth else self.first


Record = Mapping[str, Recorded]


def read_record(path: Path = RECORD) -> Record:
    """Read the record of every package."""
    return convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, Recorded])


def render(record: Record) -> str:
    """Return the record as the text of its file."""
    parts = [_HEADER]
    for package, entry in record.items():
        parts.append(f"\n[{package}]\nfirst = {entry.first}\nstatements = {entry.statements}\n")
        for growth in entry.growth:
            reason = json.dumps(growth.reason, ensure_ascii=False)
            parts.append(
                f"\n[[{package}.growth]]\ndate = {growth.date}\n"
                f"statements = {growth.statements}\nreason = {reason}\n"
            )
    return "".join(parts)


def faults(statements: Mapping[str, int], record: Record) -> Iterator[str]:
    """Return a sentence for each package that does not agree with its record."""
    for package in record.keys() - statements.keys():
        yield f"{package} is recorded but is not a package; run: {COMMAND}"
    for package, count in statements.items():
        entry = record.get(package)
        if entry is None:
            yield f"{package} has no record; run: {COMMAND} {package} --reason '...'"
            continue
        if any(not growth.reason.strip() for growth in entry.growth):
            yield f"{package} has a growth without a reason in {RECORD.name}; write the reason"
        if entry.statements > entry.justified:
            yield (
                f"the record of {package} is {entry.statements:,}, but its last reason allows "
                f"{entry.justified:,}; undo the edit and run: {COMMAND} {package} --reason '...'"
            )
        elif count > entry.statements * (1 + GROWTH_MAX):
            yield (
                f"{package} has {count:,} statements, {_change(count, entry)} over its record of "
                f"{entry.statements:,} (allowed: {GROWTH_MAX:.0%}); make the change smaller, or "
                f"record why it is worth its size: {COMMAND} {package} --reason '...'"
            )
        elif count < entry.statements * (1 - GROWTH_MAX):
            yield (
                f"{package} has {count:,} statements, {_change(count, entry)} under its record of "
                f"{entry.statements:,}; lower the record, so that it cannot grow back unnoticed: "
                f"{COMMAND}"
            )


def _change(count: int, entry: Recorded) -> str:
    return f"{abs(count - entry.statements) / max(entry.statements, 1):.1%}"


def lowered(statements: Mapping[str, int], record: Record) -> Record:
    """Return the record with smaller packages at their new size, without removed packages."""
    return {
        package: replace(record[package], statements=min(count, record[package].statements))
        for package, count in statements.items()
        if package in record
    }


def raised(
    statements: Mapping[str, int], record: Record, names: Iterable[str], growth_reason: str
) -> Record:
    """Return the record with the named packages at their new size, and the reason for it."""
    renewed = dict(record)
    for package in names:
        count = statements[package]
        if package not in record:
            renewed[package] = Recorded(first=count, statements=count)
        elif count > record[package].statements:
            today = datetime.datetime.now(datetime.UTC).date()
            growth = Growth(date=today, statements=count, reason=growth_reason.strip())
            renewed[package] = replace(
                record[package], statements=count, growth=[*record[package].growth, growth]
            )
    return {package: renewed[package] for package in statements if package in renewed}
