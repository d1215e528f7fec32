"""Reads files of events piece by piece: ndjson, csv, parquet, arrow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from penstock_core.columns.documents import event_of
from penstock_core.vocabulary.csv_cells import LONG, NOT_PLAIN
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.csv import CSVStreamingReader

    from penstock_core.columns.events.event import Event

PIECE_EVENTS: Final = 16_384
"""Events of an ndjson file that are published in one request."""
PIECE_ROWS: Final = 65_536
"""Rows of a Parquet file that are published in one request."""
CSV_BLOCK_BYTES: Final = 8 << 20
"""Bytes at the start of a CSV file from which Arrow infers the types of the columns."""

ASSIGNED_BY_REALM: Final = ("event_id", "published", "$penstock")
"""Columns that the realm assigns when it stores an event."""


class FileEvents(NamedTuple):
    """A piece of a file: its events as columns or as a list."""

    events: pa.RecordBatch | list[Event]
    read: int
    """Amount of the file read so far, in the unit of ``OpenedFile.total``."""


Pieces = Generator[FileEvents, None, None]


class OpenedFile(NamedTuple):
    """An open file of events."""

    pieces: Pieces
    total: int
    """Size in bytes or rows; 0 if unknown."""


Parse = Callable[[bytes], "Event"]
"""Builds an event from one line of a file."""

LINES: Final = (".ndjson", ".jsonl")
"""Suffixes of files with one JSON document per line."""


def open_events(path: str, parse: Parse = event_of) -> OpenedFile:
    """Open a file of events. Its suffix sets the format; ``-`` is ndjson from standard input.

    ``parse`` builds events from the lines of ndjson files. Opening and iterating raise
    ``InvalidArgument`` if the file cannot be read or does not have the format of its suffix.
    """
    if path == "-":
        return OpenedFile(_ndjson(sys.stdin.buffer, "standard input", parse), 0)
    kind = Path(path).suffix.lower()
    reader = partial(_open_ndjson, parse=parse) if kind in LINES else _READERS.get(kind)
    if reader is None:
        raise InvalidArgument(
            f"{path}: the format is unknown ({kind or 'the name has no suffix'}); use a file "
            f"that ends in {', '.join((*LINES, *_READERS))}"
        )
    with _explained(path):
        Path(path).open("rb").close()  # for a missing file, this message is the shortest
        return reader(path)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise ``InvalidArgument`` with the path of the file for errors of reading it."""
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidArgument(f"{path} cannot be read: {reason}") from error
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"{path} cannot be read in the format of its suffix: {error}"
        ) from error


# --- lines of JSON --------------------------------------------------------------------------


def _open_ndjson(path: str, parse: Parse) -> OpenedFile:
    def pieces() -> Pieces:
        with Path(path).open("rb") as file:
            yield from _ndjson(file, path, parse)

    return OpenedFile(pieces(), Path(path).stat().st_size)


def _ndjson(file: BinaryIO, name: str, parse: Parse) -> Pieces:
    """Yield the events of a file with one JSON document per line, in pieces. Raises the errors of
    ``parse``, with the number of the line."""
    events: list[Event] = []
    read = 0
    for line_number, line in enumerate(file, 1):
        read += len(line)
        if line.isspace():
            continue
        try:
            events.append(parse(line))
        except (InvalidArgument, InvalidEvent) as error:
            raise type(error)(f"{name}, line {line_number}: {error}") from None
        if len(events) == PIECE_EVENTS:
            yield FileEvents(events, read)
            events = []
    if events:
        yield FileEvents(events, read)


# --- columns --------------------------------------------------------------------------------


def _open_csv(path: str) -> OpenedFile:
    size = Path(path).stat().st_size

    def pieces() -> Pieces:
        if not size:
            return
        with _explained(path), Path(path).open("rb") as file:
            for batch in _csv(file, _texts_in(path)):
                yield FileEvents(_parts_of_events(_dates_as_text(batch)), file.tell())

    return OpenedFile(pieces(), size)


def _csv(file: BinaryIO, texts: Iterable[str], only: Sequence[str] = ()) -> CSVStreamingReader:
    """Return a reader of a CSV file. The columns ``texts`` are read as strings; ``only`` names the
    columns to read, empty for all."""
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()),
            include_columns=list(only),
            null_values=list(_NULLS),
            true_values=["true", "True", "TRUE"],
            false_values=["false", "False", "FALSE"],
        ),
    )


def _texts_in(path: str) -> set[str]:
    """Return the columns to read as text although Arrow would infer numbers or nulls.

    These are the parts of an event that are text, and columns whose cells would change as numbers
    or nulls: identifiers such as 0815, +49123 or NA, or with more digits than a double holds.
    """
    import pyarrow as pa

    with Path(path).open("rb") as file:
        schema = _csv(file, ()).schema
    texts = {name for name in ("data", "tag") if name in schema.names}
    doubtful = {
        field.name: field.type
        for field in schema
        if pa.types.is_integer(field.type)
        or pa.types.is_floating(field.type)
        or pa.types.is_null(field.type)
    }
    names = [name for name in doubtful if name not in texts]
    if names:
        with Path(path).open("rb") as file:
            # Every row is read, because the first identifier may come after the block from which
            # Arrow infers the types.
            for batch in _csv(file, names, names):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if name not in texts and _is_text(column, doubtful[name]):
                        texts.add(name)
    return texts


def _is_text(column: pa.Array, inferred: pa.DataType) -> bool:
    """Return whether a cell would change if the column had the inferred type: it is not written as
    a plain number, a number type would round it, or it would become null."""
    import pyarrow as pa
    from pyarrow import compute as pc

    if pa.types.is_null(inferred):
        return bool(pc.any(pc.not_equal(column, "")).as_py())
    cells = pc.utf8_trim_whitespace(column)  # as Arrow does before it reads a number
    if pc.any(pc.match_substring_regex(cells, NOT_PLAIN)).as_py():
        return True
    has_floats = pa.types.is_floating(inferred)
    large = cells.filter(pc.match_substring_regex(cells, _LARGE_EXPONENT))
    if pc.any(pc.is_inf(large.cast(pa.float64()))).as_py():
        return True
    long = cells.filter(pc.match_substring_regex(cells, LONG))
    try:
        # A cast fails for a value that the type cannot represent exactly.
        long.cast(pa.int64()).cast(pa.float64() if has_floats else pa.int64())
    except pa.ArrowInvalid:
        return True
    return False


_NULLS: Final = ("", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "n/a", "null")
"""Cells without a value in columns of numbers, booleans and timestamps. Unlike Arrow's own list, it
does not have NaN, which is a number."""
_LARGE_EXPONENT: Final = r"[eE]\+?[0-9]{3,}$"


def _parts_of_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the parts of an event cast to their types, because a CSV file does not
    state types."""
    import pyarrow as pa
    from pyarrow import compute as pc

    from penstock_core.columns.schema.layout import BODY, UTC_MICROSECONDS

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "data" in columns:
        columns["data"] = columns["data"].cast(pa.binary())
    if "tag" in columns:  # an empty cell means that the event has no tag
        tags = columns["tag"]
        columns["tag"] = pc.if_else(pc.equal(tags, ""), pa.scalar(None, pa.string()), tags)
    for name, target_type in BODY.items():
        kind = columns[name].type if name in columns else None
        if target_type != UTC_MICROSECONDS or kind is None or not pa.types.is_timestamp(kind):
            continue
        if kind.tz is None:
            columns[name] = pc.assume_timezone(columns[name], "UTC")
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _dates_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with dates and times of day as text. Arrow infers these types from CSV, but
    properties cannot have them."""
    import pyarrow as pa

    tests = (pa.types.is_date, pa.types.is_time)
    columns = [
        column.cast(pa.string()) if any(is_kind(column.type) for is_kind in tests) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _open_parquet(path: str) -> OpenedFile:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    batches = file.iter_batches(batch_size=PIECE_ROWS)
    return OpenedFile(_with_row_counts(path, batches), file.metadata.num_rows)


def _open_arrow(path: str) -> OpenedFile:
    import pyarrow as pa
    from pyarrow import ipc

    file = pa.memory_map(path)
    try:
        opened = ipc.open_file(file)
    except pa.ArrowInvalid:  # not the file format, so the stream format
        file.seek(0)
        return OpenedFile(_with_row_counts(path, iter(ipc.open_stream(file))), 0)
    batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
    return OpenedFile(_with_row_counts(path, batches), 0)


def _with_row_counts(path: str, batches: Iterator[pa.RecordBatch]) -> Pieces:
    """Yield the batches, each with the number of rows read so far."""
    rows = 0
    with _explained(path):
        for batch in batches:
            rows += batch.num_rows
            yield FileEvents(_without_stamps(batch), rows)


def _without_stamps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without the columns that a realm assigns; the target assigns its own."""
    names = [name for name in batch.schema.names if name not in ASSIGNED_BY_REALM]
    return batch.select(names)


_READERS: Final[dict[str, Callable[[str], OpenedFile]]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".arrow": _open_arrow,
    ".feather": _open_arrow,
}
