"""Reading a channel as a Spark table, once or as a stream."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.columns.ipc import schema_bytes, schema_from
from penstock.columns.protobuf import fields_of
from penstock.columns.selectors import Selector
from penstock.core.errors import Damaged, IllegalState, InvalidArgument
from penstock.core.ids import Span
from penstock.spark.connections import Link, ask
from penstock.spark.offsets import Offset, decode, encode, first_stored, first_wanted
from penstock.spark.options import SourceOptions
from penstock.spark.plan import EventRange, FileRows, WireRows, partitions
from penstock.spark.projection import Projection, arrow_schema
from penstock.spark.sealed import is_here, stored_batches

BATCH_BYTES_MAX = 4 << 20
"""Record batches handed to Spark are cut to about this size."""

LONG_POLL_S = 1.0
"""How long a stream without news waits for some before it tells Spark that there are none."""

_frozen: list[bool] = []


class ChannelReader(DataSourceReader):
    """The events of a channel that are stored when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        def plan(link: Link) -> list[InputPartition]:
            first = first_wanted(self._options, link, "earliest")
            end = link.end
            if isinstance(self._options.ending, int):
                end = min(end, self._options.ending)
            return planned(self._options, link, Span(first, end))

        return ask(self._options.where, plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._options, self._wanted, partition)


class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A channel as an endless table; a position is the id of the next event."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._wanted = arrow_schema(schema)
        self._target: int | None = None
        """Where to stop, for a query that reads what is there and ends."""

    def initialOffset(self) -> Offset:  # noqa: N802
        def first(link: Link) -> Offset:
            return self._offset(link, first_wanted(self._options, link, "latest"))

        return ask(self._options.where, first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = ask(self._options.where, lambda link: link.end)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        return ask(self._options.where, lambda link: self._latest(link, start, limit))

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return ask(self._options.where, lambda link: self._offset(link, link.end))

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        def plan(link: Link) -> list[InputPartition]:
            span = Span(self._event_id(link, start), self._event_id(link, end))
            return planned(self._options, link, span)

        return ask(self._options.where, plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._options, self._wanted, partition)

    def commit(self, end: Offset) -> None:
        """The checkpoint is what counts; the realm keeps events by its own rules."""

    def stop(self) -> None:
        """Spark ends the process; nothing is held that the realm would not notice."""

    def _offset(self, link: Link, event_id: int) -> Offset:
        return encode(self._options.where.channel, link.epoch, event_id)

    def _event_id(self, link: Link, offset: Offset) -> int:
        return decode(offset, self._options.where.channel, link.epoch)

    def _latest(self, link: Link, start: Offset, limit: ReadLimit) -> Offset:
        at = self._event_id(link, start)
        newest = link.end
        if newest < at != self._options.starting:
            raise IllegalState(
                f"the checkpoint of this query is at event {at}, but the next event of channel "
                f"{self._options.where.channel} will be {newest}: were older data restored?"
            )
        if newest <= at and self._target is None:
            _wait_for_events(link, at)
            newest = link.end
        end = max(at, newest if self._target is None else self._target)
        if isinstance(limit, ReadMaxRows) and end - at > limit.max_rows:
            # What was removed at the front costs no micro-batches.
            end = min(end, max(at, first_stored(link.channel)) + limit.max_rows)
        elif not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise InvalidArgument(f"read limit {limit}; use the option maxEventsPerTrigger")
        return self._offset(link, end)


def _wait_for_events(link: Link, event_id: int) -> None:
    with link.channel.subscribe(start=event_id) as subscription:
        subscription.next_batch(LONG_POLL_S)


def planned(options: SourceOptions, link: Link, span: Span) -> list[InputPartition]:
    """The partitions for the events of ``span`` that are stored now and may match."""
    if not span.size > 0:
        return []
    location = link.channel.locate(*span)
    stored = schema_bytes(link.channel.columns())
    now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
    descriptors = link.channel.info().definition.descriptors if options.selector else b""
    found = partitions(
        location,
        parts_min=options.partitions_min,
        access=options.access,
        # What is inside messages is in no summary.
        passes=_passes("" if descriptors else options.selector, now_us),
    )
    return [EventRange(parts, stored, link.epoch, now_us, descriptors) for parts in found]


def _passes(selector: str, now_us: int) -> Callable[[bytes], bool]:
    if not selector:
        return lambda summary: True
    return partial(Selector(selector).may_match_in, now_us=now_us)


def rows_of(
    options: SourceOptions, wanted: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The events of a partition in the columns that are wanted. Runs in a task."""
    if not isinstance(partition, EventRange):  # Spark's stand-in where there is none
        return
    if not _frozen:
        # The worker collects garbage after each task; what it has imported is none.
        gc.freeze()
        _frozen.append(True)
    selector = Selector(options.selector) if options.selector else None
    projection = Projection(
        schema_from(partition.stored), wanted, include_headers=options.include_headers
    )
    for batch, mask in _stored(options, partition, selector):
        found = projection.of(batch)
        if mask is not None:
            found = found.filter(mask)
        yield from _cut(found)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


_Found = Iterator[tuple[pa.RecordBatch, pa.BooleanArray | None]]


def _stored(options: SourceOptions, partition: EventRange, selector: Selector | None) -> _Found:
    """Stored batches, and which of their rows are wanted; None: all."""
    for part in partition.parts:
        if isinstance(part, WireRows):
            yield from _from_wire(options, partition.epoch, part.span)
        elif is_here(part):
            yield from _from_file(options, partition, part, selector)
        elif options.access == "local":
            raise InvalidArgument(
                f'access is "local", but {part.path} cannot be read here; use "auto", or run the '
                "tasks where the realm's data directory is"
            )
        else:
            span = Span(part.spans[0].first, part.spans[-1].end)
            yield from _from_wire(options, partition.epoch, span)


def _from_file(
    options: SourceOptions, partition: EventRange, part: FileRows, selector: Selector | None
) -> _Found:
    done = part.spans[0].first
    messages = fields_of(partition.descriptors)
    try:
        for batch, rows, span in stored_batches(part):
            mask: Any = None if rows is None else pa.array(rows)
            if selector is not None:
                selected = selector.mask(batch, now_us=partition.now_us, messages=messages)
                mask = selected if mask is None else pa.compute.and_(mask, selected)
            yield batch, mask
            done = span.end
    except (Damaged, OSError):
        if options.access == "local":
            raise
        # Gone since it was planned, or damaged: the realm knows what is left of it.
        yield from _from_wire(options, partition.epoch, Span(done, part.spans[-1].end))


def _from_wire(options: SourceOptions, epoch: str, span: Span) -> _Found:
    if not span.size:
        return
    for batch in ask(options.where, lambda link: _browse(link, options, epoch, span)):
        yield batch.to_arrow(), None


def _browse(link: Link, options: SourceOptions, epoch: str, span: Span) -> Any:
    if link.epoch != epoch:
        raise IllegalState(
            f"channel {options.where.channel} was deleted and created again since this was planned"
        )
    reading = link.channel.browse(start=span.first, end=span.end - 1, selector=options.selector)
    reading.open()
    return _closing(reading)


def _closing(reading: Any) -> Iterator[Any]:
    with reading:
        yield from reading.batches()
