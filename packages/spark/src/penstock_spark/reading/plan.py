"""The plan of a read: each task reads a range of events, all of about one size.

Events that are sealed are read from their files, where a task can reach these; all others come over
the wire. A partition is a range of ids, and partitions are in id order, so that the order of events
is that of partition and row.
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
"""A task costs about 20 ms of processor time, and half a second for so many bytes."""
WIRE_EVENTS_MAX: Final = 16_384
"""Events that are cut no further, as record batches of sealed files are."""

Spans = tuple[Span, ...]


class FileRows(Struct, frozen=True):
    """Events to be read from a sealed file."""

    path: str
    size: int
    """Bytes the file has, if it is still the one that is meant."""
    schema: bytes
    batches: tuple[SegmentBatch, ...]
    spans: Spans
    """The events wanted; others in these batches are removed, or another task's."""
    publishers: Publishers | None = ()
    """The publishers of the events; None: they have to be read from the realm."""
    name: str = ""
    """Name of the file in copies of the data directory."""


class WireRows(Struct, frozen=True):
    """Events to be read from the realm: all that are stored in a range."""

    span: Span


@dataclass(frozen=True)
class EventRange(InputPartition):
    """The events that one task reads, in id order."""

    channel: str
    """Or queue: the name."""
    parts: tuple[FileRows | WireRows, ...]
    stored: bytes
    """The channel's schema, at least as new as these events."""
    epoch: str
    """Epoch of the channel that the ids belong to."""
    now_us: int
    """The time for selectors."""
    descriptors: bytes = b""
    """The message types whose fields a selector sees (SEM P1)."""
    files: str = ""
    """URI of the place where a cluster keeps its files; empty: on the realm's machine."""
    owed: Ids | None = None
    """The ids that a bound durable has not seen; None: all."""

    @property
    def span(self) -> Span:
        spans = [
            span
            for part in self.parts
            for span in (part.spans if isinstance(part, FileRows) else (part.span,))
        ]
        return Span(spans[0].first, spans[-1].end)


class _Unit(Struct, frozen=True):
    """Events that lie together: of one record batch, or of one place in the tail."""

    spans: Spans
    rows: int
    size: int
    """Bytes, as far as they are known."""
    file: SealedPart | None = None
    index: SegmentIndex | None = None
    batch: SegmentBatch | None = None


def partitions(
    location: Location,
    *,
    parts_min: int | None,
    access: str = "auto",
    passes: Callable[[bytes], bool] = lambda summary: True,
) -> list[tuple[FileRows | WireRows, ...]]:
    """The parts of each partition.

    ``parts_min`` partitions at least, as far as there are events; None: as many as the machine
    has cores, where there is enough to read. ``access`` is ``remote`` to read no file.
    ``passes`` is asked of the summary of each record batch in a file that is read here; where it
    says no, the batch is left out.
    """
    units = _units(location, access, passes)
    rows = sum(unit.rows for unit in units)
    size = sum(unit.size for unit in units)
    if parts_min is None:
        parts_min = min(os.cpu_count() or 1, rows // PARTITION_EVENTS_MIN)
    wanted = max(parts_min, size // PARTITION_BYTES_MAX + 1, 1)
    rows_max = -(-rows // wanted)
    return [_parts(run) for run in _runs(units, rows_max)]


def rows_in(location: Location) -> int:
    """Number of events in the range."""
    spans = [*location.tail, *(span for part in location.sealed for span in part.spans)]
    return sum(span.size for span in spans)


class Sizes:
    """The stored size in bytes of events of a location."""

    def __init__(self, location: Location, event_bytes: float) -> None:
        """``event_bytes`` is for events that are in no file yet."""
        self._units = [
            unit if unit.file is not None else _of_unit(unit, unit.spans, unit.rows, size=size)
            for unit in _units(location, "auto", lambda summary: True)
            for size in (int(unit.rows * event_bytes),)
        ]
        self.total = sum(unit.size for unit in self._units)

    def end_within(self, bytes_max: int) -> int:
        """The id behind the events that have about so many bytes; at least one event is
        included."""
        left, end = bytes_max, self._units[0].spans[0].first + 1
        for unit in self._units:
            if unit.size > left:
                head, _ = _split(unit, max(1, unit.rows * left // unit.size))
                return head.spans[-1].end if left > 0 else end
            left -= unit.size
            end = unit.spans[-1].end
        return end


# --- what there is ------------------------------------------------------------------------


def _units(location: Location, access: str, passes: Callable[[bytes], bool]) -> list[_Unit]:
    """All events of the location in small portions, in id order."""
    found: list[_Unit] = []
    over_the_wire: list[Span] = list(location.tail)
    for part in location.sealed:
        around = Span(part.spans[0].first, part.spans[-1].end)
        # Events in memory between those of the file: the realm puts them in order.
        mixed = any(span.clipped(around).size for span in location.tail)
        is_out_of_reach = not part.path and not (location.files and part.name)
        if access == "remote" or is_out_of_reach or mixed:
            over_the_wire += part.spans
        else:
            found += _of_file(part)
    found += _of_wire(sorted(over_the_wire), found)
    found = [unit for unit in found if unit.batch is None or passes(unit.batch.summary)]
    return sorted(found, key=lambda unit: unit.spans[0])


def _of_file(part: SealedPart) -> Iterator[_Unit]:
    index = msgspec.msgpack.decode(part.index, type=SegmentIndex)
    at = 0
    for batch in index.batches:
        while at < len(part.spans) and part.spans[at].end <= batch.first_id:
            at += 1
        spans = []
        for span in part.spans[at:]:
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


def _of_wire(spans: Sequence[Span], files: Sequence[_Unit]) -> Iterator[_Unit]:
    """Ranges to ask for: neighbours together, unless a file's events lie between them."""
    borders = sorted(unit.spans[0].first for unit in files)
    at = 0
    run: list[Span] = []
    rows = 0
    for span in _cut(spans):
        while at < len(borders) and run and borders[at] < run[-1].end:
            at += 1
        between = bool(run) and at < len(borders) and borders[at] < span.first
        if run and (between or rows + span.size > WIRE_EVENTS_MAX):
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


# --- who reads it -------------------------------------------------------------------------


def _runs(units: list[_Unit], rows_max: int) -> Iterator[list[_Unit]]:
    """Portions of up to ``rows_max`` events, cut inside a unit where one does not fit."""
    run: list[_Unit] = []
    room = rows_max
    for whole in units:
        unit: _Unit | None = whole
        while unit is not None:
            head, unit = _split(unit, room)
            run.append(head)
            room -= head.rows
            if not room:
                yield run
                run, room = [], rows_max
    if run:
        yield run


def _split(unit: _Unit, rows: int) -> tuple[_Unit, _Unit | None]:
    """The first ``rows`` events of a unit, and the rest."""
    if unit.rows <= rows:
        return unit, None
    head: list[Span] = []
    left = rows
    for number, span in enumerate(unit.spans):
        if span.size > left:
            rest = (Span(span.first + left, span.end), *unit.spans[number + 1 :])
            if left:
                head.append(Span(span.first, span.first + left))
            size = unit.size * rows // unit.rows
            return (
                _of_unit(unit, tuple(head), rows, size=size),
                _of_unit(unit, rest, unit.rows - rows, size=unit.size - size),
            )
        head.append(span)
        left -= span.size
    raise AssertionError("a unit has as many events as its spans")


def _of_unit(unit: _Unit, spans: Spans, rows: int, size: int) -> _Unit:
    return msgspec.structs.replace(unit, spans=spans, rows=rows, size=size)


def _parts(run: list[_Unit]) -> tuple[FileRows | WireRows, ...]:
    """Units as a task reads them: those of one file together, ranges on the wire joined."""
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
