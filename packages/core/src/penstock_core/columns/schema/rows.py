"""Reads rows of a stored batch or body one at a time, on demand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.ipc import batch_bytes, batch_from, schema_bytes, schema_from
from penstock_core.columns.schema.layout import PRIORITY_DEFAULT
from penstock_core.columns.schema.nested_columns import Level
from penstock_core.columns.schema.shapes import struct_shape

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


Publishers = Sequence[tuple[str, Sequence[tuple[int, int]]]]
"""Pairs of a publisher (``user@host``) and the spans of the ids it published. Empty spans mean all
events."""


BLOCK_ROWS: Final = 256
"""Number of rows converted at once when a batch is read in order."""

_NO_BLOCK: Final[tuple[int, list[Any]]] = (-BLOCK_ROWS, [])
"""Stands for the last converted block of a column before any block was converted. It ends directly
before row 0, so that a reader that begins there is recognized as one that reads in order."""


class Rows:
    """Lossless access to the values of a batch by row. Columns are looked up once.

    With ``in_order``, values are converted a block at a time, which is many times faster for
    reading from the first to the last row. Reading a row of an earlier block then costs as much as
    without ``in_order``.
    """

    __slots__ = ("_blocks", "_columns", "_is_plain", "_level", "batch", "publishers")

    def __init__(
        self, batch: pa.RecordBatch, publishers: Publishers = (), *, in_order: bool = False
    ) -> None:
        self._blocks: dict[str, tuple[int, list[Any]]] | None = {} if in_order else None
        self.batch = batch
        self.publishers = publishers
        self._columns: dict[str, pa.Array | None] = {}
        self._level: Level | None = None
        self._is_plain: bool | None = None

    def value(self, name: str, row: int) -> Any:
        """Return the value of a column in a row; None if it is null or the column is absent."""
        blocks = self._blocks
        if blocks is not None:
            first, values = blocks.get(name, _NO_BLOCK)
            offset = row - first
            if 0 <= offset < len(values):
                return values[offset]
            # Convert a block only for a reader that moves forward; random access reads single
            # values.
            if 0 < offset < 2 * BLOCK_ROWS:
                return self._next_block(name, row)
        return self._value(name, row)

    def _next_block(self, name: str, row: int) -> Any:
        """Convert the block that contains the row, and return the row's value."""
        assert self._blocks is not None, "read in order"
        column = self._column(name)
        first = row - row % BLOCK_ROWS
        values: list[Any] = (
            [None] * BLOCK_ROWS if column is None else column.slice(first, BLOCK_ROWS).to_pylist()
        )
        self._blocks[name] = first, values
        return values[row - first]

    def _value(self, name: str, row: int) -> Any:
        column = self._column(name)
        return None if column is None else column[row].as_py()

    def _column(self, name: str) -> pa.Array | None:
        try:
            return self._columns[name]
        except KeyError:
            index = self.batch.schema.get_field_index(name)
            column = self._columns[name] = self.batch.column(index) if index >= 0 else None
            return column

    def published(self, row: int) -> datetime | None:
        """Return the time when the realm stored the event, in UTC; None in a body."""
        index = self.batch.schema.get_field_index("published")
        if index < 0:
            return None
        return _EPOCH + timedelta(microseconds=self.batch.column(index)[row].value)

    def data(self, row: int) -> bytes:
        """Return the payload of the event; empty if the batch has no column ``data``."""
        if self._blocks is not None:  # inlines value(): saves a call per event
            first, values = self._blocks.get("data", _NO_BLOCK)
            if 0 <= row - first < len(values):
                return values[row - first] or b""
        return self.value("data", row) or b""

    def prefetched(self, first: int, end: int) -> tuple[Sequence[Any] | None, Sequence[Any] | None]:
        """Return the data and the properties of a range of rows that are read in order.

        Data is None unless the data of an earlier row was read, and so are properties: a consumer
        that reads the data of one event usually reads the data of the next. None means that the
        values are converted on demand.
        """
        blocks = self._blocks or {}
        datas = self._list("data", first, end) if "data" in blocks else None
        has_properties = self._is_plain and "properties" in blocks
        return datas, self._list("properties", first, end) if has_properties else None

    def _list(self, name: str, first: int, end: int) -> list[Any] | None:
        column = self._column(name)
        values: list[Any] | None = column and column.slice(first, end - first).to_pylist()
        return values

    def detach(self, row: int) -> tuple[bytes, bytes, Publishers]:
        """Return one row without the rest of the batch: its schema and values as bytes, and its
        publishers."""
        batch, event_id = self.batch.slice(row, 1), self.value("event_id", row)
        publishers = [
            (publisher, spans)
            for publisher, spans in self.publishers
            if not spans or any(first <= event_id < end for first, end in spans)
        ]
        return schema_bytes(batch.schema), batch_bytes(batch).to_pybytes(), publishers

    @classmethod
    def restored(cls, schema: bytes, values: bytes, publishers: Publishers) -> Rows:
        """Return the reader of a row that :meth:`detach` has returned."""
        return Rows(batch_from(values, schema_from(schema)), publishers)

    def ttl(self, row: int) -> int:
        """Return the event's own TTL in milliseconds; 0 if it has none."""
        return self.value("ttl", row) or 0

    def persistent(self, row: int) -> bool:
        """Return False only if the publisher set the event as not persistent."""
        return self.value("persistent", row) is not False

    def transient(self, row: int) -> bool:
        """Return True only if the publisher set the event as transient (SEM E8)."""
        return self.value("transient", row) is True

    def priority(self, row: int) -> int:
        """Return the priority, 0 to 9."""
        priority: int | None = self.value("priority", row)
        return PRIORITY_DEFAULT if priority is None else priority

    def headers(self, row: int) -> dict[str, Any]:
        """Return the headers that are set."""
        stored: dict[str, Any] = self.value("headers", row) or {}
        headers = {name: value for name, value in stored.items() if value is not None}
        if self.publishers:
            headers |= self._stamped(self.value("event_id", row))
        return headers

    def _stamped(self, event_id: int) -> dict[str, str]:
        """Return the headers publisher and host as recorded by the realm (SEM E3)."""
        for publisher, spans in self.publishers:
            if not spans or any(first <= event_id < end for first, end in spans):
                # The last "@", because the name of a user may contain some.
                user, _, host = publisher.rpartition("@")
                return {"publisher": user, "host": host} if user else {"host": host}
        return {}

    def properties(self, row: int) -> dict[str, Any]:
        """Return the properties as published, with exact values, nulls and absent keys (SEM E2)."""
        if self._is_plain and self._blocks is not None:
            first, values = self._blocks.get("properties", _NO_BLOCK)
            if 0 <= row - first < len(values):
                return values[row - first] or {}
        properties: dict[str, Any] = self.value("properties", row) or {}
        if self._is_plain:
            return properties
        if self._is_plain is None:
            self._is_plain = self._is_column_complete()
        if properties:
            level = self._properties_level()
            sparse = self.value("sparse", row)
            if sparse or level.is_renamed:
                nulls = frozenset(self.value("nulls", row) or ()) if sparse else None
                properties = level.read(properties, nulls)
        more = self.value("more", row)
        return {**properties, **overflow.decoded(more)} if more else properties

    def _is_column_complete(self) -> bool:
        """Whether the column ``properties`` has all properties as published: no sparse rows, no
        column ``more``, no renamed fields."""
        if self._column("properties") is None or self._column("sparse") is not None:
            return False
        return self._column("more") is None and not self._properties_level().is_renamed

    def _properties_level(self) -> Level:
        if self._level is None:
            field = self.batch.schema.field("properties")
            self._level = Level(struct_shape(field.type))
        return self._level
