"""Output of commands: tables for people, JSON for programs.

Texts that others have chosen, names and data and words of a realm, may hold characters that a
terminal obeys, or that turn the direction of text. They come out escaped, here and nowhere else.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec
import typer

from penstock.core.printable import escaped, plain

ListFormat = Annotated[
    Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
]

_encoder: Final = msgspec.json.Encoder()
CELL_MAX: Final = 40
"""Characters of a table's cell; more is cut."""


def write(line: str) -> None:
    sys.stdout.write(f"{plain(line)}\n")


def note(line: str) -> None:
    """Something for the person at the terminal, not part of the result."""
    sys.stderr.write(f"{plain(line)}\n")


def write_json(value: Any) -> None:
    """One document, indented."""
    write(json_text(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def write_json_line(value: Any) -> None:
    """One document on a line of its own."""
    write(json_text(_encoder.encode(value)))


def json_text(encoded: bytes) -> str:
    """A document of JSON in printable characters; it says the same."""
    return escaped(encoded.decode(), lambda sign: json.dumps(sign)[1:-1])


def cell(value: Any) -> str:
    """A value in a table: one line, not too long."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        text = _data_text(value)
    elif isinstance(value, datetime):
        text = moment(value)
    elif isinstance(value, float):
        text = f"{value:.12g}"
    elif isinstance(value, dict | list):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    text = plain(text).replace("\n", "\\n")
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _data_text(value: bytes) -> str:
    try:
        return value[: 4 * CELL_MAX].decode()
    except UnicodeDecodeError:
        return value[:CELL_MAX].hex(" ", 4)


def moment(value: datetime) -> str:
    """A time in UTC, to the millisecond, with its zone."""
    return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1_000:03d}Z"


class TextTable:
    """Rows under a header, in columns as wide as they need; may go on as more rows come."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._widths = [len(column) for column in self.columns]
        self._headed = False

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print rows; the header comes before the first, and again when columns get wider."""
        listed = [list(row) for row in rows]
        if not listed:
            return
        cells = [[cell(value) for value in row] for row in listed]
        widths = [
            max(width, *(len(row[index]) for row in cells))
            for index, width in enumerate(self._widths)
        ]
        right = [
            all(_is_number(row[index]) or row[index] is None for row in listed)
            for index in range(len(widths))
        ]
        if not self._headed:
            self._widths = widths
            self._headed = True
            _write_cut(_aligned(self.columns, widths, right), bold=True)
        self._widths = widths
        for row in cells:
            _write_cut(_aligned(row, widths, right))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _aligned(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        text.rjust(width) if is_right else text.ljust(width)
        for text, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(placed).rstrip()


def _write_cut(line: str, *, bold: bool = False) -> None:
    """On a terminal a line is as wide as the terminal; elsewhere nothing is left out."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = line if len(line) <= width else f"{line[: width - 1]}…"
        line = typer.style(plain(line), bold=True) if bold else plain(line)
        sys.stdout.write(f"{line}\n")
    else:
        write(line)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], nothing: str) -> None:
    """A whole table, or the sentence ``nothing`` when there are no rows."""
    if not rows:
        write(nothing)
        return
    TextTable(columns).write(rows)


def write_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and what there is to say of each."""
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        write(f"{name.ljust(width)}  {text}".rstrip())


def count(number: int, noun: str) -> str:
    """``1 event``, ``2,000 events``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Bytes as people say them."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1_024:
            break
        amount, unit = amount / 1_024, larger
    return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(ms: int) -> str:
    """Milliseconds as people say them."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.4g} {unit}"
    return f"{ms} ms"
