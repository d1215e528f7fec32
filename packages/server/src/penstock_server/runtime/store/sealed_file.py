"""One file of sealed events, as a channel's store knows it: a spindle, or a file that grows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock_core.columns.files.growing_segment import grown_index
from penstock_core.columns.files.segments import SegmentBatch, SegmentIndex, SegmentReader
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import Damaged

Publishers = tuple[tuple[str, Spans], ...]
"""By publisher (``user@host``): ids it published; no ids: all there are."""


class Damage:
    """Stored events that turned out to be unreadable: their ids, and why."""

    __slots__ = ("ids", "reasons")

    def __init__(self) -> None:
        self.ids = IdSet()
        self.reasons: list[str] = []

    def add(self, other: Damage) -> None:
        self.ids.add_all(other.ids)
        self.reasons += other.reasons

    def note(self, error: Damaged, span: Span) -> None:
        self.ids.add(span)
        if str(error) not in self.reasons[-1:]:  # reported once for many spans of one batch
            self.reasons.append(str(error))


class FilesNotOpen(Exception):
    """Events are to be read from files that are not open."""

    def __init__(self, files: Sequence[SealedFile]) -> None:
        super().__init__(f"not open: {', '.join(file.name for file in files)}")
        self.files = files
        """The files with these events, open or not."""


class SealedFile:
    __slots__ = (
        "grows",
        "index",
        "is_damaged",
        "is_frozen",
        "is_pinned",
        "is_stale",
        "is_unreadable",
        "live",
        "name",
        "publishers",
        "reader",
    )

    def __init__(
        self,
        name: str,
        index: SegmentIndex,
        publishers: Publishers = (),
        *,
        grows: bool = False,
    ) -> None:
        self.publishers = publishers
        self.name = name
        self.index = index
        self.grows = grows
        """Batches are added to it; a spindle is written once (SEM S)."""
        self.live = index.rows
        self.reader: SegmentReader | None = None
        self.is_damaged = False
        """Known to fail its checksum: kept, though none of its events is left (SEM S1)."""
        self.is_frozen = False
        """Soft: nothing is added to it for now, and it is not dropped."""
        self.is_pinned = False
        """Soft: it stays open, for it is read in the middle of a step (SEM T7)."""
        self.is_unreadable = False
        """Soft: it could not even be opened."""
        self.is_stale = False
        """Whether events have left it since :attr:`live` was counted."""

    @property
    def span(self) -> Span:
        return Span(self.index.first_id, self.index.end_id)

    @property
    def dead_bytes(self) -> int:
        """About how many of its bytes are events that have left the channel."""
        return self.index.size - self.index.size * self.live // self.index.rows

    def recount(self, stored: IdSet) -> None:
        """Count how many of its events are still in the channel's ``stored``."""
        if self.is_stale:
            self.live = len(stored.within(self.span))
            self.is_stale = False

    @property
    def is_open(self) -> bool:
        """Whether it can be read right now, to its end."""
        return self.reader is not None and self.reader.index is self.index

    def extended(
        self,
        added: tuple[SegmentBatch, ...],
        *,
        size: int,
        checksum: int,
        publishers: Publishers,
    ) -> None:
        """The file with more batches at its end."""
        self.index = grown_index(self.index, added, size, checksum=checksum)
        self.publishers = merged_publishers(self.publishers, publishers)

    def batches_within(self, span: Span) -> tuple[SegmentBatch, ...]:
        """The record batches that hold some of ``span``, or have a gap there."""
        batches = self.index.batches
        first = bisect_right(batches, span.first, key=lambda own: own.end_id)
        end = bisect_right(batches, span.end - 1, key=lambda own: own.first_id)
        return batches[first:end]

    def publishers_of(self, span: Span) -> Publishers:
        """The publishers of the events of ``span``; may name some around it."""
        found = []
        for publisher, spans in self.publishers:
            first = bisect_right(spans, span.first, key=lambda own: own[1])
            end = bisect_right(spans, span.end - 1, key=lambda own: own[0])
            if own := spans[first:end]:
                found.append((publisher, own))
        return tuple(found)


def merged_publishers(first: Publishers, second: Publishers) -> Publishers:
    """Both, where ``second`` speaks of later ids."""
    found = dict(first)
    for publisher, spans in second:
        found[publisher] = found.get(publisher, ()) + spans
    return tuple(found.items())


def publishers_within(publishers: Publishers, ids: IdSet) -> Publishers:
    """The publishers of ``ids``."""
    found = []
    for publisher, spans in publishers:
        own = ids.overlap(IdSet(spans))
        if own:
            found.append((publisher, own.spans))
    return tuple(found)
