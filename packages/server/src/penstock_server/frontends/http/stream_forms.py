"""The forms of a stream of events: how its blocks are encoded."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.csv

from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.lifted_columns import flat_table
from penstock_core.columns.protobuf import Messages
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.vocabulary.errors import IllegalState
from penstock_server.frontends.http.event_documents import (
    WHOLE,
    columns_of,
    document_of,
    with_columns,
)
from penstock_server.frontends.http.event_lines import lines_of

_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow IPC stream."""
DATA_BASE64: Final = "data_base64"
"""The additional column of CSV for data that is not UTF-8."""
LINES_AT_ONCE: Final = 64
"""Number of lines that are encoded before the thread lets the event loop run."""
_PREFIX: Final = "properties."


class StreamForm(Protocol):
    """Encodes the blocks of one stream, in order. The methods run in a thread."""

    def block(self, batches: Sequence[EventBatch]) -> list[memoryview]:
        """Return the encoded events of a block."""
        ...

    def end(self) -> list[memoryview]:
        """Return the bytes after the last block."""
        ...


class FlatTables:
    """Makes a table of each block of a stream; all tables have the same columns."""

    def __init__(self, channel: ChannelSchema, columns: str) -> None:
        """``channel`` is the schema of the stored events; ``columns`` are names separated by
        commas, or empty for all columns. Raises ``InvalidArgument`` for an unknown column."""
        self._channel = channel
        self._is_first = True
        names = dict.fromkeys(name.strip() for name in columns.split(",") if name.strip())
        self._names = self._column_names(list(names)) if names else None
        self._none = flat_table([], channel, self._names)

    def _column_names(self, names: list[str]) -> list[str]:
        """Return the names of the table's columns that ``names`` select. As in pages,
        ``properties.price`` is the property ``price``."""
        all_names = frozenset(flat_table([], self._channel).column_names)
        return list(
            dict.fromkeys(
                name.removeprefix(_PREFIX)
                if name not in all_names and name.removeprefix(_PREFIX) in all_names
                else name
                for name in names
            )
        )

    def of(self, batches: Sequence[EventBatch]) -> pa.Table:
        """Return the events of a block. The first block decides whether integers and floats of a
        property share a column (SEM E10).

        Raises ``IllegalState`` if a later block has an integer that this column cannot hold.
        """
        rows = [batch.to_arrow() for batch in batches]
        table = flat_table(rows, self._channel, self._names, on_typed=self._refuse_typed)
        if self._is_first:
            self._is_first = False
            self._names = list(dict.fromkeys(table.column_names))
            if len(self._names) < table.num_columns:  # a typed column was also requested by name
                table = flat_table(rows, self._channel, self._names)
        return table

    def empty(self) -> pa.Table:
        """Return a table without rows, for a stream without blocks."""
        return self._none

    def _refuse_typed(self, names: Sequence[str]) -> None:
        """Raise ``IllegalState`` if the integers and floats of properties need separate columns,
        but the first block of the stream had one column for them."""
        if not self._is_first:
            columns = ", ".join(f"{name}::int, {name}::float" for name in names)
            raise IllegalState(
                f"an integer of {', '.join(names)} is beyond 2**53 and has no exact double, but "
                f"the stream began with one column of doubles; request the columns {columns}"
            )


class ArrowForm:
    """An Arrow IPC stream: the schema, and one record batch for each block."""

    def __init__(self, tables: FlatTables) -> None:
        self._tables = tables
        self._has_begun = False

    def block(self, batches: Sequence[EventBatch]) -> list[memoryview]:
        table = self._tables.of(batches)
        encoded = [batch.serialize() for batch in table.combine_chunks().to_batches()]
        return [*self._beginning(table), *map(_bytes, encoded)]

    def end(self) -> list[memoryview]:
        return [*self._beginning(self._tables.empty()), memoryview(_END)]

    def _beginning(self, table: pa.Table) -> list[memoryview]:
        """Return the encoded schema, unless it was returned before."""
        if self._has_begun:
            return []
        self._has_begun = True
        return [_bytes(table.schema.serialize())]


class CsvForm:
    """CSV with a header. Texts are in quotes, so that an empty text differs from null."""

    def __init__(self, tables: FlatTables) -> None:
        self._tables = tables
        self._has_begun = False

    def block(self, batches: Sequence[EventBatch]) -> list[memoryview]:
        return self._encoded(self._tables.of(batches))

    def end(self) -> list[memoryview]:
        return [] if self._has_begun else self._encoded(self._tables.empty())

    def _encoded(self, table: pa.Table) -> list[memoryview]:
        """Return the rows as CSV, with the header before the first row of the stream."""
        columns = dict(_csv_columns(table))
        sink = pa.BufferOutputStream()
        options = pa.csv.WriteOptions(include_header=not self._has_begun)
        pa.csv.write_csv(pa.table(list(columns.values()), list(columns)), sink, options)
        self._has_begun = True
        return [_bytes(sink.getvalue())]


def _csv_columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray | pa.Array]]:
    """Yield the names and values of the columns in CSV, which has numbers, truth values, times and
    texts only: bytes are base64, and lists and dictionaries are JSON."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "data":
            yield from _data_columns(column)
            continue
        kind = column.type
        shown = column
        if pa.types.is_binary(kind):
            shown = pa.array(map(_base64, column.to_pylist()), pa.string())
        elif pa.types.is_nested(kind):
            shown = pa.array(map(_json, column.to_pylist()), pa.string())
        elif pa.types.is_null(kind):
            shown = column.cast(pa.string())
        is_taken = name == DATA_BASE64 and "data" in table.column_names
        yield (f"{_PREFIX}{name}" if is_taken else name), shown


def _data_columns(column: pa.ChunkedArray) -> Iterator[tuple[str, pa.ChunkedArray | pa.Array]]:
    """Yield the data as text, and data that is not UTF-8 as base64."""
    try:
        yield "data", column.cast(pa.string())
        yield DATA_BASE64, pa.nulls(len(column), pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        texts = [_text(value) for value in values]
        pairs = zip(values, texts, strict=True)
        encoded = [_base64(value) if text is None else None for value, text in pairs]
        yield "data", pa.array(texts, pa.string())
        yield DATA_BASE64, pa.array(encoded, pa.string())


def _text(value: bytes) -> str | None:
    """Return bytes as text; None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


class LinesForm:
    """NDJSON: a line for each event, as on a page of JSON but with all its data."""

    def __init__(self, messages: Messages | None, columns: str) -> None:
        """Raises ``InvalidArgument`` for an unknown column."""
        self._messages = messages
        self._columns = columns_of(columns)

    def block(self, batches: Sequence[EventBatch]) -> list[memoryview]:
        return [self._lines(batch) for batch in batches]

    def _lines(self, batch: EventBatch) -> memoryview:
        if self._messages is None and (lines := lines_of(batch, self._columns)) is not None:
            return lines
        return self.each_line(batch)

    def each_line(self, batch: EventBatch) -> memoryview:
        """Return the lines of any batch, made event by event."""
        encoder = msgspec.json.Encoder()
        lines = bytearray()
        for number, event in enumerate(batch):
            if number % LINES_AT_ONCE == 0:
                # Python code in a thread would keep the event loop waiting for the lock of the
                # interpreter, up to 5 ms each time.
                time.sleep(0)
            document = document_of(event, self._messages, WHOLE)
            lines += encoder.encode(with_columns(document, self._columns))
            lines += b"\n"
        return memoryview(lines)

    def end(self) -> list[memoryview]:
        return []


def _bytes(buffer: pa.Buffer) -> memoryview:
    return memoryview(buffer).cast("B")
