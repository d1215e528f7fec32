"""Rows of a stored batch or body, read one at a time and only when asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from penstock.columns.schema import overflow
from penstock.columns.schema.layout import PRIORITY_DEFAULT
from penstock.columns.schema.nested_columns import Level
from penstock.columns.schema.shapes import struct_shape

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


Publishers = Sequence[tuple[str, Sequence[tuple[int, int]]]]
"""By publisher (``user@host``): the ids it published; no ids: all of them."""


BLOCK_ROWS: Final = 256
"""Rows converted at once when a batch is read in order."""

_NO_BLOCK: Final[tuple[int, list[Any]]] = (-BLOCK_ROWS, [])


class Rows:
    """Exact access to the events of a batch by row. Columns are looked up once.

    Read ``in_order`` from the first to the last row, values are converted a block at a time,
    which is many times faster; going back is then as fast as without.
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
        """The value of a column in a row; None where it is null or the column absent."""
        blocks = self._blocks
        if blocks is not None:
            first, values = blocks.get(name, _NO_BLOCK)
            place = row - first
            if 0 <= place < len(values):
                return values[place]
            if 0 < place < 2 * BLOCK_ROWS:
                return self._next_block(name, row)
        return self._value(name, row)

    def _next_block(self, name: str, row: int) -> Any:
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
        """When the realm took the event, in UTC; None in a body."""
        index = self.batch.schema.get_field_index("published")
        if index < 0:
            return None
        return _EPOCH + timedelta(microseconds=self.batch.column(index)[row].value)

    def data(self, row: int) -> bytes:
        """The event's bytes."""
        if self._blocks is not None:  # as in value(): a call less for each event
            first, values = self._blocks.get("data", _NO_BLOCK)
            if 0 <= row - first < len(values):
                return values[row - first] or b""
        return self.value("data", row) or b""

    def wanted(self, first: int, end: int) -> tuple[Sequence[Any] | None, Sequence[Any] | None]:
        """The bytes and the properties of rows that are read in order, each only if it was asked
        for before: who reads those of one event reads those of the next. None for one of them is
        to be asked for by itself."""
        blocks = self._blocks or {}
        datas = self._list("data", first, end) if "data" in blocks else None
        has_properties = self._is_plain and "properties" in blocks
        return datas, self._list("properties", first, end) if has_properties else None

    def _list(self, name: str, first: int, end: int) -> list[Any] | None:
        column = self._column(name)
        values: list[Any] | None = column and column.slice(first, end - first).to_pylist()
        return values

    def ttl(self, row: int) -> int:
        """Milliseconds; 0 for none of its own."""
        return self.value("ttl", row) or 0

    def persistent(self, row: int) -> bool:
        """False only where the publisher said so."""
        return self.value("persistent", row) is not False

    def transient(self, row: int) -> bool:
        """True only where the publisher said so (SEM E8)."""
        return self.value("transient", row) is True

    def priority(self, row: int) -> int:
        """0..9."""
        priority: int | None = self.value("priority", row)
        return PRIORITY_DEFAULT if priority is None else priority

    def headers(self, row: int) -> dict[str, Any]:
        """The headers that are set."""
        found: dict[str, Any] = self.value("headers", row) or {}
        headers = {name: value for name, value in found.items() if value is not None}
        if self.publishers:
            headers |= self._stamped(self.value("event_id", row))
        return headers

    def _stamped(self, event_id: int) -> dict[str, str]:
        """Who published the event and from where, as the realm has seen it (SEM E3)."""
        for publisher, spans in self.publishers:
            if not spans or any(first <= event_id < end for first, end in spans):
                user, _, host = publisher.rpartition("@")
                return {"publisher": user, "host": host} if user else {"host": host}
        return {}

    def properties(self, row: int) -> dict[str, Any]:
        """The properties as published: values, nulls and absent keys exact (SEM E2)."""
        if self._is_plain and self._blocks is not None:
            first, values = self._blocks.get("properties", _NO_BLOCK)
            if 0 <= row - first < len(values):
                return values[row - first] or {}
        found: dict[str, Any] = self.value("properties", row) or {}
        if self._is_plain:
            return found
        if self._is_plain is None:
            self._is_plain = self._says_it_all()
        if found:
            level = self._properties_level()
            sparse = self.value("sparse", row)
            if sparse or level.is_renamed:
                nulls = frozenset(self.value("nulls", row) or ()) if sparse else None
                found = level.read(found, nulls)
        left_over = self.value("more", row)
        return {**found, **overflow.decoded(left_over)} if left_over else found

    def _says_it_all(self) -> bool:
        """Whether the properties of every row are what their column says."""
        if self._column("properties") is None or self._column("sparse") is not None:
            return False
        return self._column("more") is None and not self._properties_level().is_renamed

    def _properties_level(self) -> Level:
        if self._level is None:
            field = self.batch.schema.field("properties")
            self._level = Level(struct_shape(field.type))
        return self._level
