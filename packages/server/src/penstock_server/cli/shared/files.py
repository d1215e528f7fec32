"""Reads files of events piece by piece: ndjson, csv, parquet, arrow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

from penstock_core.columns.documents import event_of
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.csv import CSVStreamingReader

    from penstock_core.columns.events.event import Event

PIECE_EVENTS: Final = 16_384
"""Events of an ndjson file that are published in one step."""
PIECE_ROWS: Final = 65_536
CSV_BLOCK_BYTES: Final = 8 << 20
"""Bytes at the start of a CSV file from which the types of its columns are guessed."""

GIVEN_BY_REALM: Final = ("event_id", "published", "$penstock")


class FileEvents(NamedTuple):
    """Some events of a file, as columns or one by one."""

    events: pa.RecordBatch | list[Event]
    read: int
    """How much of the file has been read, in the unit of ``OpenedFile.total``."""


Pieces = Generator[FileEvents, None, None]


class OpenedFile(NamedTuple):
    pieces: Pieces
    total: int
    """Size in bytes or rows; 0 if unknown."""


Parse = Callable[[bytes], "Event"]
"""Makes an event from a line."""

LINES: Final = (".ndjson", ".jsonl")
"""Suffixes of files with a JSON document in each line."""


def open_events(path: str, parse: Parse = event_of) -> OpenedFile:
    """The events of a file; its suffix tells the format. ``-`` is ndjson from standard input.

    ``parse`` reads the lines of files with lines. Opening and iterating raise ``InvalidArgument``
    for a file that cannot be read, or is not what its name says.
    """
    if path == "-":
        return OpenedFile(_ndjson(sys.stdin.buffer, "standard input", parse), 0)
    kind = Path(path).suffix.lower()
    reader = partial(_open_ndjson, parse=parse) if kind in LINES else _READERS.get(kind)
    if reader is None:
        raise InvalidArgument(
            f"{path}: {kind or 'no ending'} does not tell the format; known endings are "
            f"{', '.join((*LINES, *_READERS))}"
        )
    with _explained(path):
        Path(path).open("rb").close()  # the readers' own messages for a missing file are longer
        return reader(path)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidArgument(f"{path} cannot be read: {reason}") from error
    except (pa.ArrowException, ValueError) as error:
        raise InvalidArgument(
            f"{path} cannot be read in the format its name ends in: {error}"
        ) from error


# --- lines of JSON --------------------------------------------------------------------------


def _open_ndjson(path: str, parse: Parse) -> OpenedFile:
    def pieces() -> Pieces:
        with Path(path).open("rb") as file:
            yield from _ndjson(file, path, parse)

    return OpenedFile(pieces(), Path(path).stat().st_size)


def _ndjson(file: BinaryIO, name: str, parse: Parse) -> Pieces:
    events: list[Event] = []
    read = 0
    for number, line in enumerate(file, 1):
        read += len(line)
        if line.isspace():
            continue
        try:
            events.append(parse(line))
        except (InvalidArgument, InvalidEvent) as error:
            raise type(error)(f"{name}, line {number}: {error}") from None
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
    import pyarrow as pa
    from pyarrow import csv

    return csv.open_csv(
        file,
        read_options=csv.ReadOptions(block_size=CSV_BLOCK_BYTES),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(texts, pa.string()), include_columns=list(only)
        ),
    )


def _texts_in(path: str) -> set[str]:
    """The columns that are text, though Arrow would take them for numbers: those of names that are
    parts of an event, and those with numbers that would be another number or lose a zero."""
    import pyarrow as pa

    with Path(path).open("rb") as file:
        schema = _csv(file, ()).schema
    texts = {name for name in ("data", "tag") if name in schema.names}
    numbers = [
        field.name
        for field in schema
        if (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
        and field.name not in texts
    ]
    if numbers:
        floats = {name for name in numbers if pa.types.is_floating(schema.field(name).type)}
        with Path(path).open("rb") as file:
            for batch in _csv(file, numbers, numbers):
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    if name not in texts and _is_identifier(column, name in floats):
                        texts.add(name)
    return texts


def _is_identifier(column: pa.Array, has_floats: bool) -> bool:
    """True if a column of numbers has one with a leading zero, or one that its type rounds."""
    import pyarrow as pa
    from pyarrow import compute as pc

    if pc.any(pc.match_substring_regex(column, _LEADING_ZERO)).as_py():
        return True
    long = column.filter(pc.match_substring_regex(column, _LONG))
    if not len(long):
        return False
    try:
        long.cast(pa.int64()).cast(pa.float64() if has_floats else pa.int64())
    except pa.ArrowInvalid:
        return True
    return False


_LEADING_ZERO: Final = r"^-?0[0-9]+(\.[0-9]*)?$"
_LONG: Final = "^-?[0-9]{16,}$"
"""Whole numbers that may have no exact double."""


def _parts_of_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with texts and times as the parts of an event have them: nobody can cast a CSV."""
    import pyarrow as pa
    from pyarrow import compute as pc

    from penstock_core.columns.schema.layout import BODY, UTC_MICROSECONDS

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    if "data" in columns:
        columns["data"] = columns["data"].cast(pa.binary())
    if "tag" in columns:  # an empty cell is no tag
        tags = columns["tag"]
        columns["tag"] = pc.if_else(pc.equal(tags, ""), pa.scalar(None, pa.string()), tags)
    for name, wanted in BODY.items():
        kind = columns[name].type if name in columns else None
        if wanted != UTC_MICROSECONDS or kind is None or not pa.types.is_timestamp(kind):
            continue
        if kind.tz is None:
            columns[name] = pc.assume_timezone(columns[name], "UTC")
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _dates_as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with dates and times of day as text: CSV only suggests these types, and properties
    do not have them."""
    import pyarrow as pa

    is_told = (pa.types.is_date, pa.types.is_time)
    columns = [
        column.cast(pa.string()) if any(is_kind(column.type) for is_kind in is_told) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _open_parquet(path: str) -> OpenedFile:
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    batches = file.iter_batches(batch_size=PIECE_ROWS)
    return OpenedFile(_counted(path, batches), file.metadata.num_rows)


def _open_arrow(path: str) -> OpenedFile:
    import pyarrow as pa
    from pyarrow import ipc

    file = pa.memory_map(path)
    try:
        opened = ipc.open_file(file)
    except pa.ArrowInvalid:  # it is a stream, then
        file.seek(0)
        return OpenedFile(_counted(path, iter(ipc.open_stream(file))), 0)
    batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
    return OpenedFile(_counted(path, batches), 0)


def _counted(path: str, batches: Iterator[pa.RecordBatch]) -> Pieces:
    rows = 0
    with _explained(path):
        for batch in batches:
            rows += batch.num_rows
            yield FileEvents(_without_stamps(batch), rows)


def _without_stamps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without what a realm assigns: another realm assigns its own ids."""
    names = [name for name in batch.schema.names if name not in GIVEN_BY_REALM]
    return batch.select(names)


_READERS: Final[dict[str, Callable[[str], OpenedFile]]] = {
    ".csv": _open_csv,
    ".parquet": _open_parquet,
    ".arrow": _open_arrow,
    ".feather": _open_arrow,
}
