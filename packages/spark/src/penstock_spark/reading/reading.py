"""Reads channels as a Spark table, once or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.archiving.losses import described, lost_events, prevention
from penstock.client.sync.sync import Queue, Session
from penstock_core.api.channels import Location
from penstock_core.columns.protobuf import fields_of
from penstock_core.columns.schema import compute as pc
from penstock_core.columns.schema.ipc import schema_bytes, schema_from
from penstock_core.columns.schema.rows import Publishers
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.errors import Damaged, DataLost, IllegalState, InvalidArgument
from penstock_spark.columns.projection import Projection, arrow_schema, extras_of
from penstock_spark.connections import ChannelLink, ask, ask_realm
from penstock_spark.errors.errors import converts_errors
from penstock_spark.options import SourceOptions
from penstock_spark.reading.binding import (
    OutstandingIds,
    binding_of,
    mask_of,
    outstanding_events,
    restrict_location,
    restrict_partition,
)
from penstock_spark.reading.channels import (
    check_not_ahead,
    end_id_to_read,
    first_id_to_read,
    links_of,
    resolve_positions,
    spans_between,
)
from penstock_spark.reading.copies import Tally, copy_at
from penstock_spark.reading.offsets import Offset, Position, Positions, decode, encode
from penstock_spark.reading.plan import EventRange, FileRows, Sizes, WireRows, partitions, rows_in
from penstock_spark.reading.progress import PropertyGrowth, newest_with_lag
from penstock_spark.reading.sealed import Absent, CopiedFile, open_part, stored_batches
from penstock_spark.session.settling import settle_down

if TYPE_CHECKING:
    from penstock_core.columns.selectors import Selector

BATCH_BYTES_MAX = 4 << 20
"""Largest size, in bytes, of the record batches that Spark receives."""


@converts_errors
class ChannelReader(DataSourceReader):
    """Spark's reader of a batch query: reads the events that are stored when it is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.with_loss_default(fails_on_loss=False)
        self._wanted = arrow_schema(schema)

    def partitions(self) -> list[InputPartition]:
        def plan(session: Session) -> list[InputPartition]:
            links = links_of(session, self._options)
            spans = {
                name: Span(
                    first_id_to_read(self._options, link, "earliest"),
                    end_id_to_read(self._options, link),
                )
                for name, link in links.items()
            }
            outstanding_ids = outstanding_events(self._options, links, spans)
            return [
                *plan_partitions(
                    self._options, links, spans, outstanding_ids=outstanding_ids, earlier=set(spans)
                )
            ]

        return ask_realm(self._options.realm, plan)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(self._options, self._wanted, partition)


@converts_errors
class ChannelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's reader of a streaming query. A position is the id of the next event of each
    channel."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options.with_loss_default(fails_on_loss=True)
        self._wanted = arrow_schema(schema)
        self._binding = binding_of(options)
        self._end_ids: dict[str, int] | None = None
        """Ids at which a query with the trigger ``availableNow`` ends, by channel; None for other
        triggers."""
        self._batch_end: Positions = {}
        """The end of the newest micro-batch."""
        self._growth = PropertyGrowth(self._wanted, options)
        """Finds the properties that appear while the query runs."""

    def initialOffset(self) -> Offset:  # noqa: N802
        def first(session: Session) -> Offset:
            links = links_of(session, self._options)
            return encode(
                {
                    name: Position(link.epoch, self._binding.first(session, link))
                    for name, link in links.items()
                }
            )

        return ask_realm(self._options.realm, first, patient=True)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        def target(session: Session) -> dict[str, int]:
            return {name: link.end for name, link in links_of(session, self._options).items()}

        self._end_ids = ask_realm(self._options.realm, target, patient=True)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        latest = ask_realm(
            self._options.realm,
            lambda session: self._latest(session, start, limit),
            patient=True,
        )
        self._batch_end = decode(latest)
        return latest

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        def newest(session: Session) -> Offset:
            links = links_of(session, self._options)
            ends = {name: Position(link.epoch, link.end) for name, link in links.items()}
            ages_ms = {
                name: links[name].age_ms(position.event_id, now)
                for name, position in self._batch_end.items()
                if name in ends and ends[name].event_id > position.event_id
            }
            return newest_with_lag(encode(ends), self._batch_end, ages_ms, later=self._growth.later)

        now = datetime.now(UTC)
        return ask_realm(self._options.realm, newest, patient=True)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        def plan(session: Session) -> list[InputPartition]:
            links = links_of(session, self._options)
            start_positions = decode(start)
            spans = spans_between(self._options, links, start_positions, end=decode(end))
            # The start of a planned micro-batch is in the checkpoint, also after a restart.
            self._binding.acknowledge(session, links, start_positions)
            outstanding_ids = self._binding.take(session, links, spans)
            planned_ranges = plan_partitions(
                self._options,
                links,
                spans,
                outstanding_ids=outstanding_ids,
                earlier=set(start_positions),
            )
            for part in planned_ranges:
                self._growth.record_schema(part.channel, part.stored)
            return [*planned_ranges]

        return ask_realm(self._options.realm, plan, patient=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_rows(self._options, self._wanted, partition)

    def commit(self, end: Offset) -> None:
        """Acknowledge the events before ``end`` at the durable, if the query is bound to one. Spark
        stores the position itself in its checkpoint."""
        self._binding.commit(decode(end))

    def stop(self) -> None:
        """Do nothing: Spark ends the process, and the realm notices the end of the session."""

    def _latest(self, session: Session, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next micro-batch. If all events were read, wait for new ones, up to
        the long-poll time of the options."""
        links = links_of(session, self._options)
        committed = decode(start)
        positions = resolve_positions(self._options, committed, links)
        self._binding.acknowledge(session, links, positions)
        extents = {name: link.extent() for name, link in links.items()}
        check_not_ahead(self._options, positions, extents)
        if self._end_ids is None and all(
            extents[name].end <= positions[name].event_id for name in positions
        ):
            next_id_by_store = {
                links[name].store: position.event_id for name, position in positions.items()
            }
            if session.wait_for_events(next_id_by_store, self._options.long_poll_s):
                extents = {name: link.extent() for name, link in links.items()}
        elif self._end_ids is not None:
            extents = {
                name: Span(extent.first, self._end_ids.get(name, 0))
                for name, extent in extents.items()
            }
        spans_to_read = {
            # Skip events removed at the front, so that they cost no micro-batches.
            name: Span(max(position.event_id, extents[name].first), extents[name].end)
            for name, position in positions.items()
        }
        ends = batch_ends(spans_to_read, _events_max(limit))
        if self._options.bytes_per_trigger is not None:
            limited_spans = {
                name: Span(span.first, ends[name]) for name, span in spans_to_read.items()
            }
            ends |= ends_within_bytes(links, limited_spans, self._options.bytes_per_trigger)
        return encode(
            {
                name: msgspec.structs.replace(position, event_id=max(position.event_id, ends[name]))
                for name, position in positions.items()
                # A new channel joins the position with its first event.
                if name in committed or ends[name] > position.event_id
            }
        )


def _events_max(limit: ReadLimit) -> int | None:
    """Return the largest number of events of a micro-batch; None for a limit that allows all."""
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    if isinstance(limit, ReadAllAvailable):
        return None
    raise InvalidArgument(
        f"the read limit {limit} is not supported; use the option maxEventsPerTrigger"
    )


def ends_within_bytes(
    links: Mapping[str, ChannelLink], spans: Mapping[str, Span], bytes_max: int
) -> dict[str, int]:
    """Return the end of a micro-batch of about ``bytes_max`` stored bytes in all, for each channel
    that has events in ``spans``."""
    sizes = {}
    for name, span in spans.items():
        if span.size > 0:
            store = links[name].store
            location, info = store.locate(*span), store.info()
            event_bytes = info.storage.tail_bytes + info.storage.sealed_bytes
            if rows_in(location):
                sizes[name] = Sizes(location, event_bytes / max(1, info.events))
    shares = fair_shares(
        {name: channel_sizes.total for name, channel_sizes in sizes.items()}, bytes_max
    )
    return {name: channel_sizes.end_within(shares[name]) for name, channel_sizes in sizes.items()}


def plan_partitions(
    options: SourceOptions,
    links: Mapping[str, ChannelLink],
    spans: Mapping[str, Span],
    outstanding_ids: OutstandingIds | None = None,
    *,
    earlier: Container[str],
) -> list[EventRange]:
    """Return partitions with the events of ``spans`` that are stored now and may match the
    selector.

    If ``outstanding_ids`` is given, partitions contain only these events. Channels in ``earlier``
    were part of the read before; only these are checked for lost events. Raises ``DataLost`` if
    events were lost and ``failOnDataLoss`` is true.
    """
    locations = {
        name: links[name].store.locate(*span, publishers=options.include_headers)
        for name, span in spans.items()
        if span.size > 0
    }
    if options.fail_on_data_loss:
        checked = {name: place for name, place in locations.items() if name in earlier}
        check_front(links, spans, checked, bound=bool(options.durable))
    if outstanding_ids is not None:
        locations = {
            name: restrict_location(location, outstanding_ids[name])
            for name, location in locations.items()
        }
    shares = partitions_min_of(
        options.partitions_min, {name: rows_in(location) for name, location in locations.items()}
    )
    now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
    ranges: list[EventRange] = []
    for name, location in locations.items():
        store = links[name].store
        stored = schema_bytes(store.columns())
        descriptors = store.info().definition.descriptors if options.selector else b""
        parts_of_partitions = partitions(
            location,
            parts_min=shares[name],
            access=options.access,
            # Summaries do not cover fields inside messages.
            may_match=_batch_filter("" if descriptors else options.selector, now_us),
        )
        for parts in parts_of_partitions:
            part = EventRange(
                name,
                parts,
                stored,
                epoch=links[name].epoch,
                now_us=now_us,
                descriptors=descriptors,
                files=location.files,
            )
            ranges.append(
                part if outstanding_ids is None else restrict_partition(part, outstanding_ids[name])
            )
    return ranges


def _batch_filter(selector: str, now_us: int) -> Callable[[bytes], bool]:
    """Return a function that returns, from the summary of a record batch, whether an event of the
    batch may match the selector."""
    if not selector:
        return lambda summary: True
    return partial(_compiled(selector).may_match_in, now_us=now_us)


def _compiled(selector: str) -> Selector:
    # Imported here because most reads have no selector, and the compiler is a tenth of the modules
    # that the process of a task loads.
    from penstock_core.columns.selectors import Selector

    return Selector(selector)


def read_rows(
    options: SourceOptions, wanted: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a partition, with the columns of the schema ``wanted``. Runs in a
    task."""
    if not isinstance(partition, EventRange):  # Spark's placeholder for a read without partitions
        return
    settle_down()
    selector = _compiled(options.selector) if options.selector else None
    projection = Projection(
        schema_from(partition.stored),
        wanted,
        extras=extras_of(options),
        channel=partition.channel,
        by_type=not options.choice.is_one,
    )
    for batch, mask, publishers in _read_parts(options, partition, selector):
        rows = projection.project(batch, publishers)
        if mask is not None:
            rows = rows.filter(mask)
        yield from _cut(rows)


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in slices of about :data:`BATCH_BYTES_MAX`; nothing for an empty batch."""
    if not batch.num_rows:
        return
    # Slices share the batch's buffers, so cutting copies nothing.
    rows = max(1, batch.num_rows * BATCH_BYTES_MAX // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


_ReadBatches = Iterator[tuple[pa.RecordBatch, pa.BooleanArray | None, Publishers]]
"""Stored batches, each with a mask of the rows to read (None for all rows) and the publishers."""


def read_whole_batches(options: SourceOptions, partition: EventRange) -> _ReadBatches:
    """Yield the stored batches of a partition with all columns. Runs in a task."""
    selector = _compiled(options.selector) if options.selector else None
    return _read_parts(options, partition, selector)


def _read_parts(
    options: SourceOptions, partition: EventRange, selector: Selector | None
) -> _ReadBatches:
    """Yield the stored batches of a partition, from files if possible, otherwise over the wire.

    Raises ``InvalidArgument`` if ``access`` is "local" and a file cannot be read.
    """
    files = options.files or partition.files
    copy = copy_at(files) if files else None
    with Tally(partition.channel, partition.span, copy) as tally:
        for part in partition.parts:
            if isinstance(part, WireRows):
                yield from tally.count_tail(_from_wire(options, partition, part.span))
                continue
            source = open_part(part, copy)
            if isinstance(source, Absent) and options.access == "local":
                raise InvalidArgument(
                    f'access is "local", but {source.reason}; use "auto", or run the '
                    "tasks where the realm's data directory or, with the option files, a copy of "
                    "it can be read"
                )
            if not isinstance(source, Absent) and part.publishers is not None:
                yield from _from_file(
                    options, partition, part, source=source, selector=selector, tally=tally
                )
            else:
                why = source.reason if isinstance(source, Absent) else "it has too many publishers"
                span = Span(part.spans[0].first, part.spans[-1].end)
                yield from tally.count_wire(_from_wire(options, partition, span), why)


def _from_file(
    options: SourceOptions,
    partition: EventRange,
    part: FileRows,
    source: CopiedFile | None,
    selector: Selector | None,
    tally: Tally,
) -> _ReadBatches:
    """Yield the stored batches of one file. If the file is lost or damaged, continue over the
    wire, unless ``access`` is "local"."""
    next_id = part.spans[0].first
    messages = fields_of(partition.descriptors)
    try:
        for batch, rows, span in stored_batches(part, source):
            mask: Any = None if rows is None else pa.array(rows)
            if selector is not None:
                selected = selector.mask(batch, now_us=partition.now_us, messages=messages)
                mask = selected if mask is None else pc.and_(mask, selected)
            tally.count_file(batch, rows)
            yield batch, mask, part.publishers or ()
            next_id = span.end
    except (Damaged, OSError) as error:
        if options.access == "local":
            raise
        # The file was removed after planning, or is damaged. The realm may still have the events:
        # read the ids that were not yielded yet over the wire.
        first = next(
            (max(next_id, span.first) for span in part.spans if span.end > next_id), next_id
        )
        remaining_span = Span(first, part.spans[-1].end)
        yield from tally.count_wire(_from_wire(options, partition, remaining_span), str(error))


def _from_wire(options: SourceOptions, partition: EventRange, span: Span) -> _ReadBatches:
    """Yield the stored batches of ``span``, read from the realm. Raises ``DataLost`` if events were
    lost after planning and ``failOnDataLoss`` is true."""
    if not span.size:
        return
    where = options.where_is(partition.channel)
    first_id = span.end
    for batch in ask(
        where, lambda link: _browse(link, options.selector, partition.epoch, span=span)
    ):
        rows = batch.to_arrow()
        first_id = min(first_id, rows.column("event_id")[0].as_py())
        mask = (
            None if partition.outstanding_ids is None else mask_of(partition.outstanding_ids, rows)
        )
        yield rows, mask, batch.publishers
    # The check at planning cannot find events that are removed between planning and reading.
    if options.fail_on_data_loss and first_id > span.first:
        ask(where, lambda link: check_first(link, span, first_id, bound=bool(options.durable)))


def _browse(link: ChannelLink, selector: str, epoch: str, span: Span) -> Any:
    """Start to browse the events of ``span``; return an iterator over the batches.

    Raises ``IllegalState`` if the channel no longer has the epoch of the plan.
    """
    if link.epoch != epoch:
        raise IllegalState(
            f"channel {link.name} was deleted and created again after this read was planned, or "
            f"its ids restarted with the realm"
        )
    reading = link.store.browse(start=span.first, end=span.end - 1, selector=selector)
    reading.open()
    return _closing(reading)


def _closing(reading: Any) -> Iterator[Any]:
    """Yield the batches of ``reading``, and close it at the end or when the iterator is closed."""
    with reading:
        yield from reading.batches()


# --- fair shares of a micro-batch ---------------------------------------------------------


def batch_ends(waiting: Mapping[str, Span], events_max: int | None) -> dict[str, int]:
    """Return the id at which a micro-batch ends in each channel.

    ``waiting`` has the unread ids of each channel. ``events_max`` is the largest number of events
    of all channels together; None means no limit. Channels get equal shares; if a channel has fewer
    events, the others share the remainder.
    """
    sizes = {name: max(0, span.size) for name, span in waiting.items()}
    shares = sizes if events_max is None else fair_shares(sizes, events_max)
    return {name: span.first + shares[name] for name, span in waiting.items()}


def fair_shares(wanted: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide ``total`` into max-min fair shares: equal shares, except that no share exceeds the
    number in ``wanted``. Shares may differ by one because they are whole numbers."""
    shares = {}
    remaining = total
    # Smallest first: what such a channel does not need is divided among all channels after it.
    for index, (name, size) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        shares[name] = min(size, -(-remaining // (len(wanted) - index)))
        remaining -= shares[name]
    return shares


def partitions_min_of(parts_min: int | None, rows: Mapping[str, int]) -> dict[str, int | None]:
    """Return the smallest number of partitions of each channel, in proportion to its rows.

    None means that the size of the channel determines the number.
    """
    total = sum(rows.values())
    if parts_min is None or not total:
        return dict.fromkeys(rows)
    return {name: max(1, -(-parts_min * count // total)) for name, count in rows.items()}


# --- losses -------------------------------------------------------------------------------


def check_front(
    links: Mapping[str, ChannelLink],
    spans: Mapping[str, Span],
    locations: Mapping[str, Location],
    *,
    bound: bool,
) -> None:
    """Raise ``DataLost`` if events at the start of a span were removed before the reader got them.

    ``locations`` has the stored events of each span. ``bound`` states whether the reader is bound
    to a durable. The error names the channel, the ids and the causes.
    """
    for name, location in locations.items():
        span = spans[name]
        check_losses(links[name], Span(span.first, _first_of(location, span.end)), bound=bound)


def check_first(link: ChannelLink, span: Span, first_id: int, *, bound: bool) -> None:
    """Raise ``DataLost`` if events were lost between the start of ``span`` and ``first_id``.

    ``first_id`` is the first event that was read. The event at the start of ``span`` was stored
    when the read was planned, so the rest is only checked if this event was lost.
    """
    if first_id > span.first and lost_events(
        link.store, Span(span.first, span.first + 1), bound=bound
    ):
        check_losses(link, Span(span.first, first_id), bound=bound)


def check_losses(link: ChannelLink, span: Span, *, bound: bool = False) -> None:
    """Raise ``DataLost`` if events of ``span`` were removed before they could be read.

    ``bound`` states whether the reader is bound to a durable, which acknowledges events itself.
    """
    if not span.size > 0:
        return
    lost = lost_events(link.store, span, bound=bound)
    if not lost:
        return
    kind = "queue" if isinstance(link.store, Queue) else "channel"
    raise DataLost(
        f"{kind} {link.name}: before this query read them, {described(lost)}. "
        f"Set failOnDataLoss to false to continue without them{prevention(lost, kind)}"
    )


def _first_of(location: Location, end: int) -> int:
    """Return the first id in ``location``; ``end`` if it has no events."""
    firsts = [part.spans[0].first for part in location.sealed if part.spans]
    return min([*firsts, *(span.first for span in location.tail[:1]), end])
