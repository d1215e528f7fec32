"""Reads dead events from a channel or queue, and converts them to tables for transformations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.reading.peeking import PEEK_MAX
from penstock.client.sync.sync import Channel, Queue, Session
from penstock_core.columns.events.batch import ids_of
from penstock_core.columns.events.origin import bounded_ttl
from penstock_core.columns.schema.layout import FIELDS, HEADERS, STAMPED
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.vocabulary.errors import NameDoesNotExist

VIEW_COLUMNS: Final[dict[str, pa.DataType]] = {
    **STAMPED,
    "tag": FIELDS["tag"].type,
    "data": FIELDS["data"].type,
    "ttl": FIELDS["ttl"].type,
    "priority": FIELDS["priority"].type,
    "persistent": FIELDS["persistent"].type,
    "headers": pa.struct(list(HEADERS.items())),
    "origin": FIELDS["origin"].type,
}
"""The first columns of a table of dead events. A column for each property follows."""
ROUTING_COLUMNS: Final = ("outcome", "channel")
"""Columns of a transformation's result that direct the redrive and are not properties."""


class DeadEventChannel:
    """A channel that stores dead events."""

    def __init__(self, channel: Channel, selector: str = "") -> None:
        """``selector`` restricts the events that :meth:`read` returns; empty means all."""
        self.name = channel.name
        self.store: Channel | Queue = channel
        self._channel = channel
        self._selector = selector

    def read(self, first_id: int, count: int) -> pa.RecordBatch | None:
        """Return up to ``count`` events from ``first_id`` on; None if none is stored."""
        batches: list[pa.RecordBatch] = []
        with self._channel.browse(start=first_id, selector=self._selector) as events:
            rows = 0
            while rows < count and (batch := events.next_batch()) is not None:
                batches.append(batch.to_arrow())
                rows += len(batch)
        return merge_batches(batches, count)


class DeadEventQueue:
    """A queue that stores dead events. Events that a reader of the queue holds are left out."""

    def __init__(self, queue: Queue, selector: str = "") -> None:
        """``selector`` restricts the events that :meth:`read` returns; empty means all."""
        self.name = queue.name
        self.store: Channel | Queue = queue
        self._queue = queue
        self._selector = selector

    def read(self, first_id: int, count: int) -> pa.RecordBatch | None:
        """Return up to ``count`` events from ``first_id`` on; None if none is ready."""
        # A peek has no start, so the selector skips the earlier events.
        selector = f"event_id >= {first_id}"
        if self._selector:
            selector += f" AND ({self._selector})"
        peeked = self._queue.peek(min(count, PEEK_MAX), selector=selector)
        return merge_batches([batch.to_arrow() for batch in peeked.batches], count)


def dead_store(
    session: Session, name: str, selector: str = ""
) -> DeadEventChannel | DeadEventQueue:
    """Return the channel or queue ``name``, whose events are dead events.

    Raises ``NameDoesNotExist`` if the realm has neither.
    """
    try:
        return DeadEventChannel(session.channels.get(name), selector)
    except NameDoesNotExist:
        pass
    try:
        return DeadEventQueue(session.queues.get(name), selector)
    except NameDoesNotExist:
        raise NameDoesNotExist(
            f"the realm has no channel or queue {name} with dead events"
        ) from None


def merge_batches(batches: Sequence[pa.RecordBatch], count: int) -> pa.RecordBatch | None:
    """Concatenate stored batches, whose schemas may differ, and return the first ``count`` rows;
    None if all are empty."""
    non_empty = [batch for batch in batches if batch.num_rows]
    if not non_empty:
        return None
    schema = ChannelSchema.empty()
    for batch in non_empty:
        schema = schema.grown(batch.schema)
    merged: pa.RecordBatch = pa.concat_batches([schema.conform(batch) for batch in non_empty])
    return merged.slice(0, count)


def transformation_view(batch: pa.RecordBatch) -> pa.Table:
    """Return dead events as a flat table for a transformation.

    The column ``ttl`` has the original TTL, and not that of the dead event. Properties that do not
    fit into columns are left out; the redriven event keeps them.
    """
    columns: dict[str, pa.Array] = {}
    for name, kind in VIEW_COLUMNS.items():
        index = batch.schema.get_field_index(name)
        array = batch.column(index) if index >= 0 else pa.nulls(batch.num_rows, kind)
        columns[name] = _headers(array) if name == "headers" else array
    ttl = pc.coalesce(pc.struct_field(columns["origin"], "ttl"), columns["ttl"])
    columns["ttl"] = bounded_ttl(ttl)
    columns["data"] = pc.fill_null(columns["data"], b"")
    index = batch.schema.get_field_index("properties")
    if index >= 0:
        struct = batch.column(index)
        for field, array in zip(struct.type, struct.flatten(), strict=True):
            # The prefix distinguishes a property from a column of the same name.
            is_name_used = field.name in columns or field.name in ROUTING_COLUMNS
            name = f"properties.{field.name}" if is_name_used else field.name
            columns[name] = _with_spark_type(array)
    return pa.table(columns)


def rows_by_id(batch: pa.RecordBatch, ids: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the index of the row with each of the ``ids`` in ``batch``; -1 if no row has the
    id."""
    stored_ids = ids_of(batch)
    searched_ids = np.asarray(ids.to_numpy(zero_copy_only=False), dtype=np.int64)
    # An id above all stored ones is found past the end; the comparison then rejects the last row.
    rows = np.minimum(np.searchsorted(stored_ids, searched_ids), len(stored_ids) - 1)
    return np.where(stored_ids[rows] == searched_ids, rows, -1).astype(np.int64)


def _headers(array: pa.Array) -> pa.StructArray:
    """Return the headers as a struct with every defined field; fields that ``array`` lacks are
    null."""
    arrays = {}
    if pa.types.is_struct(array.type):
        arrays = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    children = [arrays.get(name, pa.nulls(len(array), kind)) for name, kind in HEADERS.items()]
    fields = [pa.field(name, kind) for name, kind in HEADERS.items()]
    return pa.StructArray.from_arrays(children, fields=fields)


def _with_spark_type(array: pa.Array) -> pa.Array:
    """Return the values of a property with a type that Spark supports: a property that was null in
    all events becomes a string."""
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array
