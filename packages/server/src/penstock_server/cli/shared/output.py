"""Output of commands: tables for people, JSON for programs.

Untrusted texts, such as names, data and messages of a realm, may contain characters that control a
terminal or change the direction of text. This module escapes them; its callers do not.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
import typer

from penstock_core.columns.schema.moments import moment_of
from penstock_core.printable import escaped, plain
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

ListFormat = Annotated[
    Literal["table", "json"],
    typer.Option("--format", help="table is for people, json for programs."),
]

T = TypeVar("T")

_encoder: Final = msgspec.json.Encoder()
CELL_MAX: Final = 40
"""Characters in a cell of a table; longer texts are truncated."""


def write(line: str) -> None:
    """Print a line of the result to standard output."""
    sys.stdout.write(f"{plain(line)}\n")


def note(line: str) -> None:
    """Print a line that is not part of the result to standard error."""
    sys.stderr.write(f"{plain(line)}\n")


def write_json(value: Any) -> None:
    """Print one JSON document, indented."""
    write(json_text(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def write_json_line(value: Any) -> None:
    """Print one JSON document as a single line."""
    write(json_text(_encoder.encode(value)))


def check_redirected(example: str) -> None:
    """Raise ``InvalidArgument`` if an Arrow stream would be written to a terminal. ``example`` is a
    name for the file that it should be redirected to."""
    if sys.stdout.isatty():
        raise InvalidArgument(f"an Arrow stream is binary; redirect it to a file: > {example}")


def write_arrow(table: pa.Table) -> None:
    """Write a table to standard output as an Arrow IPC stream."""
    from pyarrow import ipc

    with ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        stream.write_table(table)


def json_text(encoded: bytes) -> str:
    """Return an equivalent JSON document of printable characters that standard output can
    encode."""
    text = escaped(encoded.decode(), _json_escape)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(char if char.isascii() else _json_escape(char) for char in text)
    return text


def _json_escape(char: str) -> str:
    return json.dumps(char)[1:-1]


def cell(value: Any) -> str:
    """Return a value as the text of a table cell: one line of at most ``CELL_MAX`` characters."""
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
    """Return a UTC time as text, in milliseconds, with a ``Z``."""
    return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1_000:03d}Z"


def moment_of_us(us: int) -> str:
    """Return a time in microseconds since 1970 as UTC text in milliseconds."""
    return moment(moment_of(us))


class TextTable:
    """Prints rows under a header, in columns as wide as their cells. Rows may arrive in parts."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._widths = [len(column) for column in self.columns]
        self._headed = False

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Print rows; the header precedes the first row."""
        values = [list(row) for row in rows]
        if not values:
            return
        cells = [[cell(value) for value in row] for row in values]
        widths = [
            max(width, *(len(row[index]) for row in cells))
            for index, width in enumerate(self._widths)
        ]
        right = [
            all(_is_number(row[index]) or row[index] is None for row in values)
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
    """Return a line of a table: the cells, padded on the left or right to the widths of the
    columns."""
    placed = [
        text.rjust(width) if is_right else text.ljust(width)
        for text, width, is_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(placed).rstrip()


def _write_cut(line: str, *, bold: bool = False) -> None:
    """Print a line, truncated to the width of the terminal; files and pipes get the whole line."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        line = line if len(line) <= width else f"{line[: width - 1]}…"
        line = typer.style(plain(line), bold=True) if bold else plain(line)
        sys.stdout.write(f"{line}\n")
    else:
        write(line)


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], nothing: str) -> None:
    """Print a table, or the sentence ``nothing`` if it has no rows."""
    if not rows:
        write(nothing)
        return
    TextTable(columns).write(rows)


def write_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print one line per fact: its name and its text, aligned."""
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
    """Print a value as one JSON document, or as the facts that ``facts_of`` derives from it."""
    if format == "json":
        write_json(value)
    else:
        write_facts(facts_of(value))


def count(number: int, noun: str) -> str:
    """Return a number with its noun, as in ``1 event`` and ``2,000 events``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def waits(events: int, until_us: int | None) -> str:
    """Return how many rolled-back events wait and when the first becomes ready, as text."""
    if not events or until_us is None:
        return "none"
    first = datetime.fromtimestamp(until_us / 1_000_000, UTC)
    return f"{count(events, 'event')}, the first until {first:%Y-%m-%d %H:%M:%S} UTC"


def backoff_shown(backoff: Backoff | None) -> str:
    """Return the waits before rolled-back events are redelivered, as text."""
    if backoff is None:
        return "none; a rolled-back event is redelivered immediately"
    shorter = f", up to {backoff.jitter:.4g} of it less" if backoff.jitter else ""
    return (
        f"{duration(backoff.first)}, then {backoff.factor:g} times longer each time, at most "
        f"{duration(backoff.most)}{shorter}"
    )


def size(number: int) -> str:
    """Return a size in bytes as text with a readable unit."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1_024:
            break
        amount, unit = amount / 1_024, larger
    return f"{number} B" if unit == "B" else f"{amount:.1f} {unit}"


def duration(ms: int) -> str:
    """Return a duration in milliseconds as text with a readable unit."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= length:
            return f"{ms / length:.4g} {unit}"
    return f"{ms} ms"


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress log lines, which would mix with the result; the report has the same facts."""
    from structlog.testing import capture_logs

    with capture_logs():
        yield
