"""Plans a read: divides the events into partitions of about equal size, one for each task.

Tasks read sealed events from their files if they can reach the files, and all other events over the
wire. A partition is a range of ids, and partitions are in id order, so that events are ordered by
partition and row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct
from pyspark.sql.datasource import InputPartition

from penstock_core.api.channels import Location, SealedPart
from penstock_core.columns.files.segments import SegmentBatch, SegmentIndex
from penstock_core.columns.schema.rows import Publishers
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.stored_ids import Ids

PARTITION_EVENTS_MIN: Final = 50_000
"""Smallest number of events in a task, unless ``minPartitions`` requires more partitions."""
PARTITION_BYTES_MAX: Final = 512 << 20
"""Largest size of a partition, in bytes. Reading this many bytes takes half a second, so that the
20 ms of processor time that a task itself costs do not matter."""
WIRE_EVENTS_MAX: Final = 16_384
"""Largest number of events in one unit of a plan that is read over the wire. In files, a unit is a
record batch."""

Spans = tuple[Span, ...]


class FileRows(Struct, frozen=True):
    """The events that a task reads from one sealed file."""

    path: str
    """Path of the file on the realm's machine; empty if only a copy can be read."""
    size: int
    """Size of the file in bytes when the read was planned. A file with fewer bytes is incomplete or
    another file."""
    schema: bytes
    """The Arrow schema of the file."""
    batches: tuple[SegmentBatch, ...]
    """Places of the record batches to read."""
    spans: Spans
    """Ids of the events to read. Other events of the batches were removed, or belong to another
    task."""
    publishers: Publishers | None = ()
    """Publishers of the events; None means that they are too many for the plan, so that the task
    reads the events from the realm."""
    name: str = ""
    """Name of the file in copies of the data directory."""


class WireRows(Struct, frozen=True):
    """The stored events of a range of ids, which a task reads from the realm."""

    span: Span


@dataclass(frozen=True)
class EventRange(InputPartition):
    """The events that one task reads, in id order."""

    channel: str
    """Name of the channel or queue."""
    parts: tuple[FileRows | WireRows, ...]
    stored: bytes
    """The channel's Arrow schema, at least as new as these events."""
    epoch: str
    """Epoch of the channel when the read was planned."""
    now_us: int
    """Current time for selectors, in microseconds since 1970. All tasks of a read use one time."""
    descriptors: bytes = b""
    """Descriptors of the Protocol Buffers messages whose fields a selector can test (SEM P1)."""
    files: str = ""
    """URI of the object store with the files of a cluster; empty if the files are on the realm's
    machine."""
    outstanding_ids: Ids | None = None
    """Ids in the range that are outstanding at the durable; None means that all events are read."""

    @property
    def span(self) -> Span:
        """The ids from the first event to the last."""
        spans = [
            span
            for part in self.parts
            for span in (part.spans if isinstance(part, FileRows) else (part.span,))
        ]
        return Span(spans[0].first, spans[-1].end)


class _Unit(Struct, frozen=True):
    """The smallest amount of events that a plan assigns, unless it splits one: the events of one
    record batch of a file, or of one range on the wire."""

    spans: Spans
    """Ids of the events."""
    rows: int
    """Number of events."""
    size: int
    """Stored bytes; 0 if unknown, as for events on the wire."""
    file: SealedPart | None = None
    """The sealed file; None for events on the wire, whose next two fields are also None."""
    index: SegmentIndex | None = None
    """The index of the file."""
    batch: SegmentBatch | None = None
    """The record batch that contains the events."""


def partitions(
    location: Location,
    *,
    parts_min: int | None,
    access: str = "auto",
    may_match: Callable[[bytes], bool] = lambda summary: True,
) -> list[tuple[FileRows | WireRows, ...]]:
    """Divide the events of ``location`` into partitions; return the parts of each.

    ``parts_min`` is the smallest number of partitions, provided that the events suffice. None means
    one partition for each core of the machine, but none with fewer than
    :data:`PARTITION_EVENTS_MIN` events. With ``access`` "remote", all events are read over the
    wire. ``may_match`` receives the summary of each record batch in a file; if it returns False,
    the batch is left out.
    """
    units = _units(location, access, may_match)
    rows = sum(unit.rows for unit in units)
    size = sum(unit.size for unit in units)
    if parts_min is None:
        parts_min = min(os.cpu_count() or 1, rows // PARTITION_EVENTS_MIN)
    partition_count = max(parts_min, size // PARTITION_BYTES_MAX + 1, 1)
    # Rounded up, so that at most `partition_count` partitions result.
    rows_max = -(-rows // partition_count)
    return [_parts(run) for run in _runs(units, rows_max)]


def rows_in(location: Location) -> int:
    """Return the number of events in a location."""
    spans = [*location.tail, *(span for part in location.sealed for span in part.spans)]
    return sum(span.size for span in spans)


class Sizes:
    """The stored sizes of the events of a location, which limit a micro-batch by bytes."""

    def __init__(self, location: Location, event_bytes: float) -> None:
        """``event_bytes`` is the average size, in bytes, of events that are not in a file yet."""
        self._units = [
            unit if unit.file is not None else _resize(unit, unit.spans, unit.rows, size=size)
            for unit in _units(location, "auto", lambda summary: True)
            for size in (int(unit.rows * event_bytes),)
        ]
        self.total = sum(unit.size for unit in self._units)
        """Size of all events, in bytes."""

    def end_within(self, bytes_max: int) -> int:
        """Return the id after the longest run of first events that has about ``bytes_max`` bytes.

        The run has at least one event.
        """
        bytes_left, end = bytes_max, self._units[0].spans[0].first + 1
        for unit in self._units:
            if unit.size > bytes_left:
                head, _ = _split(unit, max(1, unit.rows * bytes_left // unit.size))
                return head.spans[-1].end if bytes_left > 0 else end
            bytes_left -= unit.size
            end = unit.spans[-1].end
        return end


# --- units of a location --------------------------------------------------------------------


def _units(location: Location, access: str, may_match: Callable[[bytes], bool]) -> list[_Unit]:
    """Return the events of the location as units, in id order, without batches that cannot
    match."""
    units: list[_Unit] = []
    over_the_wire: list[Span] = list(location.tail)
    for part in location.sealed:
        part_span = Span(part.spans[0].first, part.spans[-1].end)
        # Events in memory lie between those of the file, and only the realm can merge them by id.
        is_mixed = any(span.clipped(part_span).size for span in location.tail)
        is_out_of_reach = not part.path and not (location.files and part.name)
        if access == "remote" or is_out_of_reach or is_mixed:
            over_the_wire += part.spans
        else:
            units += _units_of_file(part)
    units += _units_of_wire(sorted(over_the_wire), units)
    units = [unit for unit in units if unit.batch is None or may_match(unit.batch.summary)]
    return sorted(units, key=lambda unit: unit.spans[0])


def _units_of_file(part: SealedPart) -> Iterator[_Unit]:
    """Yield one unit for each record batch of the file that has events to read."""
    index = msgspec.msgpack.decode(part.index, type=SegmentIndex)
    span_index = 0
    # Batches and spans both ascend, so one pass over the two finds all overlaps.
    for batch in index.batches:
        while span_index < len(part.spans) and part.spans[span_index].end <= batch.first_id:
            span_index += 1
        spans = []
        for span in part.spans[span_index:]:
            if span.first >= batch.end_id:
                break
            spans.append(span.clipped(batch.span))
        if spans:
            rows = sum(span.size for span in spans)
            yield _Unit(
                tuple(spans),
                rows,
                batch.length * rows // batch.rows,
                file=part,
                index=index,
                batch=batch,
            )


def _units_of_wire(spans: Sequence[Span], files: Sequence[_Unit]) -> Iterator[_Unit]:
    """Yield one unit for each request over the wire. ``spans`` are ascending; a unit joins several
    of them, up to :data:`WIRE_EVENTS_MAX` events, unless events of ``files`` lie in between."""
    borders = sorted(unit.spans[0].first for unit in files)
    border_index = 0
    run: list[Span] = []
    rows = 0
    for span in _cut(spans):
        while border_index < len(borders) and run and borders[border_index] < run[-1].end:
            border_index += 1
        # The parts of a partition must be in id order, so a range never spans events of a file.
        is_file_between = (
            bool(run) and border_index < len(borders) and borders[border_index] < span.first
        )
        if run and (is_file_between or rows + span.size > WIRE_EVENTS_MAX):
            yield _Unit(tuple(run), rows, 0)
            run, rows = [], 0
        run.append(span)
        rows += span.size
    if run:
        yield _Unit(tuple(run), rows, 0)


def _cut(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield ``spans`` in pieces of at most :data:`WIRE_EVENTS_MAX` ids."""
    for span in spans:
        for first in range(span.first, span.end, WIRE_EVENTS_MAX):
            yield Span(first, min(span.end, first + WIRE_EVENTS_MAX))


# --- distribution of units over partitions --------------------------------------------------


def _runs(units: list[_Unit], rows_max: int) -> Iterator[list[_Unit]]:
    """Yield the units of each partition: all have ``rows_max`` events, except that the last may
    have fewer. A unit that does not fit is split."""
    run: list[_Unit] = []
    rows_left = rows_max
    for next_unit in units:
        unit: _Unit | None = next_unit
        while unit is not None:
            head, unit = _split(unit, rows_left)
            run.append(head)
            rows_left -= head.rows
            if not rows_left:
                yield run
                run, rows_left = [], rows_max
    if run:
        yield run


def _split(unit: _Unit, rows: int) -> tuple[_Unit, _Unit | None]:
    """Split a unit after its first ``rows`` events; return both parts. The second is None if the
    unit has no further events."""
    if unit.rows <= rows:
        return unit, None
    head: list[Span] = []
    rows_left = rows
    for span_index, span in enumerate(unit.spans):
        if span.size > rows_left:
            tail = (Span(span.first + rows_left, span.end), *unit.spans[span_index + 1 :])
            if rows_left:
                head.append(Span(span.first, span.first + rows_left))
            size = unit.size * rows // unit.rows
            return (
                _resize(unit, tuple(head), rows, size=size),
                _resize(unit, tail, unit.rows - rows, size=unit.size - size),
            )
        head.append(span)
        rows_left -= span.size
    raise AssertionError("the rows of a unit must be the number of ids in its spans")


def _resize(unit: _Unit, spans: Spans, rows: int, size: int) -> _Unit:
    return msgspec.structs.replace(unit, spans=spans, rows=rows, size=size)


def _parts(run: list[_Unit]) -> tuple[FileRows | WireRows, ...]:
    """Return the parts of a partition: adjacent units of one file, or of the wire, become one
    part."""
    parts: list[FileRows | WireRows] = []
    group: list[_Unit] = []
    for unit in run:
        if group and unit.file is not group[-1].file:
            parts.append(_part(group))
            group = []
        group.append(unit)
    parts.append(_part(group))
    return tuple(parts)


def _part(group: list[_Unit]) -> FileRows | WireRows:
    """Return one part for units of the same file, or for units on the wire."""
    first = group[0]
    if first.file is None or first.index is None:
        return WireRows(Span(first.spans[0].first, group[-1].spans[-1].end))
    return FileRows(
        first.file.path,
        first.file.size,
        first.index.schema,
        batches=tuple(unit.batch for unit in group if unit.batch is not None),
        spans=tuple(span for unit in group for span in unit.spans),
        publishers=first.file.publishers,
        name=first.file.name,
    )
