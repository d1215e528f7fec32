"""Plans a read: each task reads a range of events, and the ranges have about the same size.

Tasks read sealed events from their files if they can reach them, and all other events over the
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
"""Fewest events of a task, unless ``minPartitions`` says otherwise."""
PARTITION_BYTES_MAX: Final = 512 << 20
"""A task costs about 20 ms of processor time; reading so many bytes takes half a second."""
WIRE_EVENTS_MAX: Final = 16_384
"""Maximum number of events of the smallest unit of a plan on the wire; in files it is a record
batch."""

Spans = tuple[Span, ...]


class FileRows(Struct, frozen=True):
    """Events to be read from a sealed file."""

    path: str
    size: int
    """Bytes of the file at planning; a smaller file is another one."""
    schema: bytes
    batches: tuple[SegmentBatch, ...]
    spans: Spans
    """The wanted events; others in these batches were removed, or belong to another task."""
    publishers: Publishers | None = ()
    """The publishers of the events; None: too many, so the events are read from the realm."""
    name: str = ""
    """Name of the file in copies of the data directory."""


class WireRows(Struct, frozen=True):
    """Events to be read from the realm: all stored events of a range."""

    span: Span


@dataclass(frozen=True)
class EventRange(InputPartition):
    """The events that one task reads, in id order."""

    channel: str
    """Name of the channel or queue."""
    parts: tuple[FileRows | WireRows, ...]
    stored: bytes
    """The channel's schema, at least as new as these events."""
    epoch: str
    """Epoch of the channel that the ids belong to."""
    now_us: int
    """The time for selectors."""
    descriptors: bytes = b""
    """The message types whose fields a selector can test (SEM P1)."""
    files: str = ""
    """URI of the place where a cluster keeps its files; empty: on the realm's machine."""
    outstanding_ids: Ids | None = None
    """Outstanding ids of the durable; None: the read has no durable."""

    @property
    def span(self) -> Span:
        spans = [
            span
            for part in self.parts
            for span in (part.spans if isinstance(part, FileRows) else (part.span,))
        ]
        return Span(spans[0].first, spans[-1].end)


class _Unit(Struct, frozen=True):
    """Adjacent events: of one record batch in a file, or of one range on the wire."""

    spans: Spans
    rows: int
    size: int
    """Stored bytes; 0 if unknown."""
    file: SealedPart | None = None
    index: SegmentIndex | None = None
    batch: SegmentBatch | None = None


def partitions(
    location: Location,
    *,
    parts_min: int | None,
    access: str = "auto",
    may_match: Callable[[bytes], bool] = lambda summary: True,
) -> list[tuple[FileRows | WireRows, ...]]:
    """Return the parts of each partition.

    ``parts_min`` is the least number of partitions, if the events suffice; None: one for each core
    of the machine, if the events are many. With ``access`` "remote" no file is read.
    ``may_match`` gets the summary of each record batch in a file; if it returns False, the batch
    is left out.
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
    """Stored sizes, in bytes, of the events of a location."""

    def __init__(self, location: Location, event_bytes: float) -> None:
        """``event_bytes`` is the average size of events that are not in a file yet."""
        self._units = [
            unit if unit.file is not None else _resize(unit, unit.spans, unit.rows, size=size)
            for unit in _units(location, "auto", lambda summary: True)
            for size in (int(unit.rows * event_bytes),)
        ]
        self.total = sum(unit.size for unit in self._units)

    def end_within(self, bytes_max: int) -> int:
        """Return the end of the ids of the first events with about ``bytes_max`` bytes; the range
        has at least one event."""
        bytes_left, end = bytes_max, self._units[0].spans[0].first + 1
        for unit in self._units:
            if unit.size > bytes_left:
                head, _ = _split(unit, max(1, unit.rows * bytes_left // unit.size))
                return head.spans[-1].end if bytes_left > 0 else end
            bytes_left -= unit.size
            end = unit.spans[-1].end
        return end


# --- the stored events of a location --------------------------------------------------------


def _units(location: Location, access: str, may_match: Callable[[bytes], bool]) -> list[_Unit]:
    """Return all events of the location in small units, in id order."""
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
    index = msgspec.msgpack.decode(part.index, type=SegmentIndex)
    span_index = 0
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
    """Yield ranges to request: adjacent spans are joined, unless a file's events lie between
    them."""
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
    for span in spans:
        for first in range(span.first, span.end, WIRE_EVENTS_MAX):
            yield Span(first, min(span.end, first + WIRE_EVENTS_MAX))


# --- their distribution over partitions -----------------------------------------------------


def _runs(units: list[_Unit], rows_max: int) -> Iterator[list[_Unit]]:
    """Yield runs of up to ``rows_max`` events; a unit that does not fit is split."""
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
    """Return the first ``rows`` events of a unit, and the rest."""
    if unit.rows <= rows:
        return unit, None
    head: list[Span] = []
    rows_left = rows
    for number, span in enumerate(unit.spans):
        if span.size > rows_left:
            rest_spans = (Span(span.first + rows_left, span.end), *unit.spans[number + 1 :])
            if rows_left:
                head.append(Span(span.first, span.first + rows_left))
            size = unit.size * rows // unit.rows
            return (
                _resize(unit, tuple(head), rows, size=size),
                _resize(unit, rest_spans, unit.rows - rows, size=unit.size - size),
            )
        head.append(span)
        rows_left -= span.size
    raise AssertionError("a unit has as many events as its spans")


def _resize(unit: _Unit, spans: Spans, rows: int, size: int) -> _Unit:
    return msgspec.structs.replace(unit, spans=spans, rows=rows, size=size)


def _parts(run: list[_Unit]) -> tuple[FileRows | WireRows, ...]:
    """Return the parts of a task: units of one file together, ranges on the wire joined."""
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
