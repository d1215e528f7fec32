"""Stored batches: bodies with ids and times, and the forms that consumers read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock_core.columns.events.event import Event
from penstock_core.columns.events.lifted_columns import table_of
from penstock_core.columns.schema.flat_columns import FLAT, flat_field, flat_name
from penstock_core.columns.schema.layout import BODY, LOGICAL_NAME, STAMPED, STAMPED_FIELDS
from penstock_core.columns.schema.number_columns import has_joined
from penstock_core.columns.schema.rows import BLOCK_ROWS, Publishers, Rows
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.columns.schema.struct_fields import fields_of
from penstock_core.display import ROWS_SHOWN, html_rows, safe_html, safe_repr, short
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import InvalidArgument

Int64s = npt.NDArray[np.int64]


def _stamped(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a stored batch for the schema of its body."""
    return pa.schema([*STAMPED_FIELDS, *schema])


_stamped_schemas = SchemaMemo(_stamped)


def stamp(body: pa.RecordBatch, ids: Span | Int64s, published_us: int | Int64s) -> pa.RecordBatch:
    """Return the stored batch: the body with columns for ``ids`` and ``published_us`` (microseconds
    since 1970) in front.

    The body's columns are shared, not copied.
    """
    count = body.num_rows
    if isinstance(ids, Span):
        assert ids.size == count, f"{ids.size} ids for {count} events"
        ids = np.arange(ids.first, ids.end, dtype=np.int64)
    if isinstance(published_us, int):
        published_us = np.full(count, published_us, dtype=np.int64)
    arrays = [_int64s(STAMPED["event_id"], ids), _int64s(STAMPED["published"], published_us)]
    return pa.RecordBatch.from_arrays(
        arrays + body.columns, schema=_stamped_schemas.of(body.schema)
    )


def _int64s(kind: pa.DataType, values: Int64s) -> pa.Array:
    contiguous = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(kind, len(contiguous), [None, pa.py_buffer(contiguous)], 0)


def ids_of(batch: pa.RecordBatch) -> Int64s:
    """Return the event ids of a stored batch, without a copy."""
    return _numbers(batch.column("event_id"))


def times_of(batch: pa.RecordBatch) -> Int64s:
    """Return the publish times of a stored batch in microseconds since 1970, without a copy."""
    return _numbers(batch.column("published"))


def _numbers(column: pa.Array) -> Int64s:
    """Return a column of 64-bit integers without nulls as NumPy integers, without a copy."""
    data = column.buffers()[1]
    # An empty column may have no data buffer.
    if not len(column):
        return np.empty(0, dtype=np.int64)
    # to_numpy() would import pandas if it is installed: a third of a second at the first call.
    return np.frombuffer(data, np.int64, len(column), column.offset * 8)


def runs_of(ids: Int64s) -> tuple[Int64s, Int64s]:
    """Return the firsts and ends (exclusive) of the runs of consecutive ids in ascending
    ``ids``."""
    breaks = np.flatnonzero(np.diff(ids) != 1)
    return np.concatenate((ids[:1], ids[breaks + 1])), np.concatenate((ids[breaks], ids[-1:])) + 1


def within(ids: Int64s, spans: Iterable[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Return a mask of the ascending ``ids`` that lie in one of ``spans``."""
    edges = np.array(list(spans), dtype=np.int64).reshape(-1, 2)
    # Each span adds 1 at its first id and subtracts 1 at its end; the running sum counts the spans
    # around an id. This needs no loop over the spans.
    steps = np.bincount(np.searchsorted(ids, edges[:, 0]), minlength=len(ids) + 1).astype(np.int64)
    steps -= np.bincount(np.searchsorted(ids, edges[:, 1]), minlength=len(ids) + 1)
    return np.cumsum(steps[:-1]) > 0


def body_part(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a stored batch without the columns stamped by the realm, ready to be published
    again."""
    names = [name for name in batch.schema.names if name not in STAMPED]
    return batch.select(names)


def flatten(batch: pa.RecordBatch, properties: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return a stored batch as a flat one: ``event_id, published, tag, data``, then the properties.

    ``properties`` selects properties by name; None selects all. A second type of one property keeps
    the name of its field (``price::string``). A property named like one of the first four columns
    becomes ``properties.<name>``. Properties stored only in ``more`` are left out.
    """
    plan = _flat_plans.of(batch.schema) if properties is None else _flat(batch.schema, properties)
    return pa.RecordBatch.from_arrays(_flat_columns(batch, plan), schema=plan.schema)


class _Flat(NamedTuple):
    """Plan for a flat batch: where in the stored batch each of its columns is."""

    schema: pa.Schema
    columns: tuple[int, ...]
    """Index of each column of :data:`FLAT` in the stored batch; negative if absent."""
    struct: int
    """Index of the struct of properties in the stored batch; negative if absent."""
    children: tuple[int, ...]
    """Indexes of the selected fields in the struct of properties."""
    has_joined: bool
    """Whether the integers and floats of one property are in two fields."""


def _flat(schema: pa.Schema, properties: Sequence[str] | None = None) -> _Flat:
    """Return the plan for flat batches of a schema, with all properties or those named."""
    fields = [flat_field(name) for name in FLAT]
    columns = tuple(schema.get_field_index(name) for name in FLAT)
    struct = schema.get_field_index("properties")
    children = []
    for index, field in enumerate(schema.field(struct).type if struct >= 0 else ()):
        logical = (field.metadata or {}).get(LOGICAL_NAME, field.name.encode()).decode()
        if properties is None or logical in properties or field.name in properties:
            fields.append(field.with_name(flat_name(field.name)))
            children.append(index)
    joins = bool(children) and has_joined(schema.field(struct).type)
    return _Flat(pa.schema(fields), columns, struct, children=tuple(children), has_joined=joins)


_flat_plans = SchemaMemo(_flat)


def _flat_columns(batch: pa.RecordBatch, plan: _Flat) -> list[pa.Array]:
    """Return the columns of a flat batch by its plan."""
    arrays = [
        batch.column(index) if index >= 0 else _absent(name, batch.num_rows)
        for name, index in zip(FLAT, plan.columns, strict=True)
    ]
    if plan.children:
        properties = batch.column(plan.struct)
        if properties.null_count:  # a null struct is an event without properties
            children = fields_of(properties)
            arrays += [children[index] for index in plan.children]
        else:
            arrays += [properties.field(index) for index in plan.children]
    return arrays


_ABSENT_ROWS_MAX: Final = 16_384
"""Maximum number of rows of a cached column without values."""
_ABSENT_MAX: Final = 16
"""Maximum number of cached columns without values."""


def _absent(name: str, count: int) -> pa.Array:
    """Return a column without values."""
    # Batches of many rows are not cached, because their columns would take much memory.
    return _cached_absent(name, count) if count <= _ABSENT_ROWS_MAX else _new_absent(name, count)


def _new_absent(name: str, count: int) -> pa.Array:
    kind = BODY.get(name)
    assert kind is not None, f"a stored batch has {name}"
    return pa.array([b""] * count, kind) if name == "data" else pa.nulls(count, kind)


_cached_absent: Final = lru_cache(maxsize=_ABSENT_MAX)(_new_absent)


_FIRST_ROWS: Final = 16
"""Number of rows that are read first, event by event, to learn whether the reader uses data and
properties.

Later rows are converted a block at a time, and only the parts that were read before.
"""


def row_ranges(count: int) -> Iterator[tuple[int, int]]:
    """Yield half-open ranges of rows to convert together: the first few rows, then the rest of
    their block, then one block at a time."""
    first, end = 0, min(_FIRST_ROWS, count)
    while first < count:
        yield first, end
        # End at block boundaries, because rows are converted a block at a time.
        first, end = end, min(end - end % BLOCK_ROWS + BLOCK_ROWS, count)


class EventBatch:
    """Events in columns, as stored and delivered. Creates an :class:`Event` on access."""

    __slots__ = ("_batch", "_event_type", "_publishers", "_redeliveries", "_rows")

    def __init__(
        self,
        batch: pa.RecordBatch,
        redeliveries: Mapping[int, int] | None = None,
        event_type: type[Event] = Event,
        publishers: Publishers = (),
    ) -> None:
        self._batch = batch
        self._publishers = publishers
        self._rows: Rows | None = None
        """The row reader for access by index; None until the first such access."""
        self._redeliveries = redeliveries
        self._event_type = event_type

    def __len__(self) -> int:
        count: int = self._batch.num_rows
        return count

    def __iter__(self) -> Iterator[Event]:
        rows, kind = self._sequential_reader(), self._event_type
        make = kind.__new__
        for first, end in row_ranges(len(self)):
            for row, data, properties, count in self._read(rows, first, end):
                event = make(kind)  # inlines Event.received: saves a call per event
                event._rows = rows
                event._row = row
                event._data = data
                event._properties = properties
                event.redelivery_count = count
                yield event

    def _read(
        self, rows: Rows, first: int, end: int
    ) -> Iterator[tuple[int, bytes | None, dict[str, Any] | None, int]]:
        """Return row, data, properties and redelivery count of each event from ``first`` to below
        ``end``.

        Data is None unless the data of an earlier event was read, and so are properties. Such a
        value is converted when the event's attribute is read.
        """
        datas, properties = rows.prefetched(first, end)
        counts: Iterable[int] = repeat(0)
        if self._redeliveries:
            counts = map(self._redeliveries.get, self.event_ids[first:end].tolist(), repeat(0))
        return zip(
            range(first, end),
            repeat(None) if datas is None else datas,
            repeat(None) if properties is None else properties,
            counts,
            strict=False,
        )

    def _sequential_reader(self) -> Rows:
        """Return a row reader for access from the first row to the last. It converts whole
        blocks."""
        return self._reader(in_order=True)

    def _reader(self, *, in_order: bool) -> Rows:
        return Rows(self._batch, self._publishers, in_order=in_order)

    def __getitem__(self, row: int) -> Event:
        count = len(self)
        if not -count <= row < count:
            raise IndexError(f"row {row} of a batch of {count} events")
        row %= count
        redeliveries = 0
        if self._redeliveries:
            event_id: int = self.event_ids[row].item()
            redeliveries = self._redeliveries.get(event_id, 0)
        if self._rows is None:
            self._rows = self._reader(in_order=False)
        return self._event_type.received(self._rows, row, redeliveries)

    @property
    def event_ids(self) -> Int64s:
        """The ids of the events, ascending."""
        return ids_of(self._batch)

    @property
    def redeliveries(self) -> Mapping[int, int]:
        """Number of earlier deliveries by event id, without events that were never delivered
        before."""
        return self._redeliveries or {}

    @property
    def publishers(self) -> Publishers:
        """The publishers as ``user@host``, each with the ids of its events (SEM E3)."""
        return self._publishers

    def to_arrow(self) -> pa.RecordBatch:
        """Return the stored batch itself. :mod:`penstock_core.columns.schema.layout` describes its
        columns."""
        return self._batch

    def to_table(self) -> pa.Table:
        """Return a flat table: ``event_id, published, tag, data``, then one column per property,
        which has the integers and the floats of the property (SEM E10)."""
        plan = _flat_plans.of(self._batch.schema)
        # Joined numbers and properties in `more` are not columns of the batch: compute them.
        if plan.has_joined or "more" in self._batch.schema.names:
            return table_of([self._batch])
        return pa.Table.from_arrays(_flat_columns(self._batch, plan), schema=plan.schema)

    def to_pandas(self) -> Any:
        """Return the flat table as a pandas DataFrame. pandas must be installed."""
        try:
            return self.to_table().to_pandas()
        except ModuleNotFoundError as error:
            raise InvalidArgument(f"to_pandas needs pandas: pip install pandas ({error})") from None

    @safe_repr
    def __repr__(self) -> str:
        channel = getattr(self, "channel", "")
        source = f" of channel {short(channel)}" if channel else ""
        if not len(self):
            return f"EventBatch(empty{source})"
        ids = self.event_ids
        return f"EventBatch({len(self)} events{source}, ids {ids[0]}..{ids[-1]})"

    @safe_html
    def _repr_html_(self) -> str:
        """Return a table of the first events for notebooks."""
        return html_events(repr(self), [self[row] for row in range(min(len(self), ROWS_SHOWN))])


def html_events(caption: str, events: Sequence[Event]) -> str:
    """Return an HTML table of events."""
    rows = [
        (event.event_id, event.published, event.tag, event.data, event.properties)
        for event in events
    ]
    return html_rows(caption, ("event_id", "published", "tag", "data", "properties"), rows)
