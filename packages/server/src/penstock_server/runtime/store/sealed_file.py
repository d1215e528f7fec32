"""One file of sealed events in a channel's store: written once (a *spindle*), or a file to which
batches are appended."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from penstock_core.columns.files.growing_segment import grown_index
from penstock_core.columns.files.segments import SegmentBatch, SegmentIndex, SegmentReader
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import Damaged

Publishers = tuple[tuple[str, Spans], ...]
"""Publishers (``user@host``), each with the spans that it published. Empty spans mean that it
published all events."""


class Damage:
    """The ids of stored events that cannot be read, and the reasons."""

    __slots__ = ("ids", "reasons")

    def __init__(self) -> None:
        self.ids = IdSet()
        self.reasons: list[str] = []

    def add(self, other: Damage) -> None:
        self.ids.add_all(other.ids)
        self.reasons += other.reasons

    def note(self, error: Damaged, span: Span) -> None:
        """Add the ids of ``span``, unreadable because of ``error``."""
        self.ids.add(span)
        if str(error) not in self.reasons[-1:]:  # reported once for many spans of one batch
            self.reasons.append(str(error))


class FilesNotOpen(Exception):
    """Raised when events must be read from files that are not open."""

    def __init__(self, files: Sequence[SealedFile]) -> None:
        super().__init__(f"not open: {', '.join(file.name for file in files)}")
        self.files = files
        """All files that the read needs, open or not."""


class SealedFile:
    """A file of sealed events: its index, and soft state about it."""

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
        """Whether batches are appended to the file. A spindle is written once (SEM S)."""
        self.live = index.rows
        """Number of events of the file that are still on the channel; see :attr:`is_stale`."""
        self.reader: SegmentReader | None = None
        self.is_damaged = False
        """Whether the file is known to fail its checksum. It is kept even without events (SEM
        S1)."""
        self.is_frozen = False
        """Soft state: whether the file may be neither extended nor dropped for now."""
        self.is_pinned = False
        """Soft state: whether the file stays open, because steps of the writer read it (SEM T7)."""
        self.is_unreadable = False
        """Soft state: whether the file could not be opened."""
        self.is_stale = False
        """Whether events were removed since :attr:`live` was counted."""

    @property
    def span(self) -> Span:
        return Span(self.index.first_id, self.index.end_id)

    @property
    def dead_bytes(self) -> int:
        """Estimated bytes of events that have left the channel."""
        return self.index.size - self.index.size * self.live // self.index.rows

    def recount(self, stored: IdSet) -> None:
        """Count the events that are still in ``stored``, the ids of the channel."""
        if self.is_stale:
            self.live = len(stored.within(self.span))
            self.is_stale = False

    @property
    def is_open(self) -> bool:
        """Whether the whole file can be read now. A file that has grown needs a new reader."""
        return self.reader is not None and self.reader.index is self.index

    def record_appended(
        self,
        added: tuple[SegmentBatch, ...],
        *,
        size: int,
        checksum: int,
        publishers: Publishers,
    ) -> None:
        """Record that the batches ``added`` were appended to the file, which now has ``size``
        bytes."""
        self.index = grown_index(self.index, added, size, checksum=checksum)
        self.publishers = merged_publishers(self.publishers, publishers)

    def batches_within(self, span: Span) -> tuple[SegmentBatch, ...]:
        """Return the record batches whose id ranges overlap ``span``. They may have gaps there."""
        # The batches are in the order of their ids, so both ends can be found by bisection.
        batches = self.index.batches
        first = bisect_right(batches, span.first, key=lambda batch: batch.end_id)
        end = bisect_right(batches, span.end - 1, key=lambda batch: batch.first_id)
        return batches[first:end]

    def publishers_of(self, span: Span) -> Publishers:
        """Return the publishers of the events of ``span``. Their spans may reach beyond it."""
        publishers = []
        for publisher, spans in self.publishers:
            first = bisect_right(spans, span.first, key=lambda published: published[1])
            end = bisect_right(spans, span.end - 1, key=lambda published: published[0])
            if overlapping := spans[first:end]:
                publishers.append((publisher, overlapping))
        return tuple(publishers)


def merged_publishers(first: Publishers, second: Publishers) -> Publishers:
    """Return the union of two sets of publishers. The ids in ``second`` must be above those in
    ``first``."""
    publishers = dict(first)
    for publisher, spans in second:
        publishers[publisher] = publishers.get(publisher, ()) + spans
    return tuple(publishers.items())


def publishers_within(publishers: Publishers, ids: IdSet) -> Publishers:
    """Return the publishers of ``ids``."""
    publishers_of_ids = []
    for publisher, spans in publishers:
        published_ids = ids.overlap(IdSet(spans))
        if published_ids:
            publishers_of_ids.append((publisher, published_ids.spans))
    return tuple(publishers_of_ids)
