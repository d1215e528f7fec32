"""Message fields as columns for selectors (SEM P1, P2).

Messages are decoded a batch at a time, without an object per message. A row without a message, with
an unknown type, or with bytes that do not match its type, has nulls: "unknown" in selectors.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock_core.columns.protobuf.descriptors import (
    DESCRIPTORS_KEPT_BYTES_MAX,
    Descriptors,
    descriptors_of,
)
from penstock_core.columns.schema import compute as pc
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.text_cache import TextCache

TYPE_HEADER = "message_type"
"""The header that names the type of the message in an event's data."""
_PARTS: Final = 16
"""Number of parts into which a column is split to find the messages that cannot be decoded."""


class MessageFields:
    """Reads fields of a channel's messages, for one set of descriptors."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._last: tuple[pa.RecordBatch, dict[str, tuple[pa.Array, pa.RecordBatch]]] | None = None
        """The last decoded batch, cached because selectors and joins read one batch in turn."""

    def roots(self, batch: pa.RecordBatch, name: str) -> tuple[list[Any], Any]:
        """Return the columns of the field ``name``, one for each message type that has the field,
        and a mask of the rows with a message of these types; None instead of the mask if no message
        type of the batch has the field.
        """
        columns: list[Any] = []
        has_field: Any = None
        for kind, rows in self._rows_of_types(batch).items():
            if not self._descriptors.has_field(kind, name):
                continue
            positions, decoded = self._decoded(batch, kind, rows)
            column = decoded.column(decoded.schema.get_field_index(name))
            columns.append(column.take(positions))
            has_field = rows if has_field is None else pc.or_(has_field, rows)
        return columns, has_field

    def _rows_of_types(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return, for each known message type, the mask of rows with a message of this type."""
        index = batch.schema.get_field_index("headers")
        if index < 0:
            return {}
        headers = batch.column(index)
        place = headers.type.get_field_index(TYPE_HEADER)
        if place < 0:
            return {}
        names = pc.struct_field(headers, [place])
        return {
            kind: pc.equal(names, kind).fill_null(fill_value=False)
            for kind in pc.unique(names).to_pylist()
            if kind in self._descriptors and not self._descriptors.is_too_wide(kind)
        }

    def _decoded(self, batch: pa.RecordBatch, kind: str, rows: Any) -> Any:
        """Return the messages of a type in ``rows`` as columns, and for each row of the batch the
        position of its message in them; null for rows without a message that can be decoded."""
        if self._last is None or self._last[0] is not batch:
            self._last = (batch, {})
        by_type = self._last[1]
        if kind not in by_type:
            data = _data(batch).filter(rows)
            # The position of a message is the number of earlier rows that have a message.
            places = np.cumsum(rows.to_numpy(zero_copy_only=False)) - 1
            messages, broken = self._messages(kind, data)
            positions = pc.if_else(rows, pa.array(places, pa.int64()), None)
            if broken:
                positions = pc.if_else(
                    pc.is_in(positions, pa.array(broken, pa.int64())), None, positions
                )
            by_type[kind] = (positions, messages)
        return by_type[kind]

    def _messages(self, kind: str, data: Any) -> tuple[pa.RecordBatch, list[int]]:
        """Return the messages as columns, and the positions of messages that cannot be decoded."""
        try:
            return self._descriptors.table(kind, data), []
        except InvalidEvent:
            broken = self._broken(kind, data, 0)
        places = np.zeros(len(data), dtype=np.bool_)
        places[broken] = True
        # Empty bytes are a valid message of any type, so the other messages keep their positions.
        decodable = pc.if_else(pa.array(places), pa.scalar(b"", pa.binary()), data)
        return self._descriptors.table(kind, decodable), broken

    def _broken(self, kind: str, data: Any, first: int) -> list[int]:
        """Return the positions, counted from ``first``, of messages in ``data`` that cannot be
        decoded.

        Decoding messages one by one is slow, so only parts with an error are split further.
        """
        if len(data) == 1:
            return [first]
        broken: list[int] = []
        step = -(-len(data) // _PARTS)
        for start in range(0, len(data), step):
            part = data.slice(start, step)
            try:
                self._descriptors.table(kind, part)
            except InvalidEvent:
                broken += self._broken(kind, part, first + start)
        return broken


def _data(batch: pa.RecordBatch) -> Any:
    """Return the column ``data`` of a batch; without it the data of all events is empty."""
    index = batch.schema.get_field_index("data")
    if index >= 0:
        return batch.column(index)
    return pa.repeat(pa.scalar(b"", pa.binary()), batch.num_rows)


_fields_of: Final[TextCache[bytes, MessageFields]] = TextCache(
    lambda serialized: MessageFields(descriptors_of(serialized)), DESCRIPTORS_KEPT_BYTES_MAX
)


def fields_of(serialized: bytes) -> MessageFields | None:
    """Return the field reader of a channel's messages; None for a channel without descriptors."""
    return _fields_of(serialized) if serialized else None
