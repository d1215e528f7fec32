"""Output of commands: tables for people, JSON for programs.

Texts that others have chosen, such as names, data and messages of a realm, may hold characters that
control a terminal or change the direction of text. They are escaped here, and nowhere else.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
import typer

from penstock_core.columns.schema.moments import moment_of
from penstock_core.printable import escaped, plain
from penstock_core.vocabulary.backoff import Backoff

ListFormat = Annotated[
    Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")
]

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()
CELL_MAX: Final = 40
"""Characters of a table's cell; longer texts are cut."""


def write(line: str) -> None:
    sys.stdout.write(f"{plain(line)}\n")


def note(line: str) -> None:
    """Print something for the person at the terminal that is not part of the result."""
    sys.stderr.write(f"{plain(line)}\n")


def write_json(value: Any) -> None:
    """Print one JSON document, indented."""
    write(json_text(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def write_json_line(value: Any) -> None:
    """Print one JSON document on a line of its own."""
    write(json_text(_encoder.encode(value)))


def json_text(encoded: bytes) -> str:
    """A JSON document in printable characters that standard output can encode, with the same
    meaning."""
    text = escaped(encoded.decode(), _json_escape)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(sign if sign.isascii() else _json_escape(sign) for sign in text)
    return text


def _json_escape(sign: str) -> str:
    return json.dumps(sign)[1:-1]


def cell(value: Any) -> str:
    """A value for a table: on one line, and not too long."""
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


def moment_of_us(us: int) -> str:
    """A time in microseconds since 1970, in UTC, to the millisecond."""
    return moment(moment_of(us))


class TextTable:
    """Prints rows under a header, in columns as wide as needed; more rows may follow."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._widths = [len(column) for column in self.columns]
        self._headed = False

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print rows. The header comes before the first, and again when columns get wider."""
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
    """Print a line, cut to the width of a terminal; other outputs get all of it."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = line if len(line) <= width else f"{line[: width - 1]}…"
        line = typer.style(plain(line), bold=True) if bold else plain(line)
        sys.stdout.write(f"{line}\n")
    else:
        write(line)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], nothing: str) -> None:
    """Print a whole table, or the sentence ``nothing`` if there are no rows."""
    if not rows:
        write(nothing)
        return
    TextTable(columns).write(rows)


def write_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names, each with its text."""
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        write(f"{name.ljust(width)}  {text}".rstrip())


def write_list(
    format: str, items: Sequence[T], columns: Mapping[str, Callable[[T], Any]], *, nothing: str
) -> None:
    """Print items as one JSON document, or as a table whose columns are computed from each item."""
    if format == "json":
        write_json(items)
    else:
        rows = [[value_of(item) for value_of in columns.values()] for item in items]
        write_table(tuple(columns), rows, nothing)


def write_description(
    format: str, value: T, facts_of: Callable[[T], Sequence[tuple[str, str]]]
) -> None:
    """Print a value as one JSON document, or as the facts about it."""
    if format == "json":
        write_json(value)
    else:
        write_facts(facts_of(value))


def count(number: int, noun: str) -> str:
    """``1 event``, ``2,000 events``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def waits(events: int, until_us: int | None) -> str:
    """How many events wait after a rollback, and until when the first of them does."""
    if not events or until_us is None:
        return "none"
    first = datetime.fromtimestamp(until_us / 1_000_000, UTC)
    return f"{count(events, 'event')}, the first until {first:%Y-%m-%d %H:%M:%S} UTC"


def backoff_shown(backoff: Backoff | None) -> str:
    """How long rolled-back events wait before they come again."""
    if backoff is None:
        return "none; a rolled-back event comes again at once"
    shorter = f", up to {backoff.jitter:.4g} of it less" if backoff.jitter else ""
    return (
        f"{duration(backoff.first)}, then {backoff.factor:g} times longer each time, at most "
        f"{duration(backoff.most)}{shorter}"
    )


def size(number: int) -> str:
    """A size in bytes, in readable units."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1_024:
            break
        amount, unit = amount / 1_024, larger
    return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(ms: int) -> str:
    """A duration in milliseconds, in readable units."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.4g} {unit}"
    return f"{ms} ms"
