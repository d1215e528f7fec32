"""The contents of one channel's events: the newest in memory (the tail), others in sealed segments.

The core knows *which* ids are stored; this module has their contents. Until they are sealed, events
in the tail are also in the journal, except those that live in memory only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import pyarrow as pa

from penstock_core.channel.channel_type import Home
from penstock_core.columns.files.lean_columns import lean
from penstock_core.columns.files.segments import overlapping, segment_folder
from penstock_core.columns.keys.keys import KeyIndex
from penstock_core.columns.schema.property_names import PropertyNames
from penstock_core.columns.schema.schema import ChannelSchema
from penstock_core.columns.selectors import Selector, SelectorIndex
from penstock_core.columns.selectors.frames import MessageAccess
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.errors import Damaged
from penstock_core.vocabulary.ports import PageSlot
from penstock_server.runtime.store.outgoing_batch import (
    OutgoingBatch,
    merged,
    publishers_of,
    spans_in,
)
from penstock_server.runtime.store.sealed_file import Damage, FilesNotOpen, SealedFile
from penstock_server.runtime.store.tail_batch import (
    MERGE_BELOW,
    Meter,
    ShareMeter,
    TailBatch,
    gathered,
    united,
)

JUDGED_WORK_MAX = 8_192
"""Limit on comparisons of a selector with the statistics of files in one call of
:meth:`ChannelStore.promising`. Events after the last batch that was judged count as matching."""
CRUMBS_MAX = 16
"""If a read needs at most this many spans of a batch, the rows of this batch are gathered together
with those of other batches."""
NOWHERE = Span(0, 0)
"""A span that contains no id."""
UNTOUCHED = Span(1 << 62, 0)
"""An inverted span, whose first id is above and whose end is below all ids: the first min() and
max() with real ids replace both."""
SCATTERED_MIN = 64
"""Fewer ids than this are looked up one by one."""
THINNED_PER_PIECE = 64
"""Batches are checked for emptiness once the number of removed scattered ids is this many times the
number of batches in the range of these ids."""


class ChannelStore:
    """Tail and segments of one channel. It has the bytes of events; the rules are in the core."""

    def __init__(self, meter: Meter, keys: Mapping[str, int] | None = None) -> None:
        self._realm = meter
        """Meter that counts this store among others: the realm's, or :attr:`share`."""
        self.meter = Meter()
        """Counts the bytes of this store alone."""
        self.share: ShareMeter | None = None
        """Meter of all temporary destinations of one user (SEM R4); None for other channels."""
        self.tail: list[TailBatch] = []
        self._ends: list[int] = []
        """The end of each batch in :attr:`tail`, for bisection."""
        self.files: list[SealedFile] = []
        self.sealed_end = 0
        """Persistent events with ids below this one are in files."""
        self.late = IdSet()
        """Stored events below ``sealed_end`` that are in the tail and not in a file, because
        they were passing when the events around them were sealed (SEM J7)."""
        self.columns = ChannelSchema.empty()
        self.names = PropertyNames()
        self._newest_schema: pa.Schema | None = None
        """Schema of the batch added last, if all its column names were known. Batches usually share
        one schema object, so :meth:`_include` can then return immediately."""
        self.quarantined: list[str] = []
        self.keys = KeyIndex(keys) if keys else None
        """Index of the newest event of each publish key, derived from the stored events (SEM
        K1)."""
        self.index_bytes = 0
        """Bytes of the index that the realm's meter has counted."""
        self.selectors: SelectorIndex | None = None
        """Index of the selectors in use on the channel; None until the first is used."""
        self._thinned = UNTOUCHED
        """Range around the scattered ids removed since batches were last checked for emptiness."""
        self._thinned_ids = 0
        self.freed: list[PageSlot] = []
        """Page slots of removed events. They are reused only once the removal is on disk."""

    def charge(self, share: ShareMeter) -> None:
        """Count the bytes of this store in ``share`` from now on. The store must be empty."""
        self._realm = self.share = share

    # --- changes -------------------------------------------------------------------------

    def add(self, tail_batch: TailBatch) -> None:
        self.tail.append(tail_batch)
        self._ends.append(tail_batch.end)
        self._include(tail_batch)

    def _insert(self, index: int, tail_batch: TailBatch) -> None:
        self.tail.insert(index, tail_batch)
        self._ends.insert(index, tail_batch.end)
        self._include(tail_batch)

    def _include(self, tail_batch: TailBatch) -> None:
        """Count a new batch, and add its columns and property names to those of the channel."""
        self._count(tail_batch, 1)
        # The usual case. Identity on purpose: comparing schemas costs more than all the rest here.
        if tail_batch.schema is self._newest_schema:
            return
        self._newest_schema = None if "more" in tail_batch.schema.names else tail_batch.schema
        self.columns = self.columns.grown(tail_batch.schema)
        self.names.add(tail_batch.schema, tail_batch.schema_id)
        if "more" in tail_batch.schema.names:
            self.names.add_more(tail_batch.batch)

    def came_back(self, tail_batch: TailBatch) -> None:
        """Add a batch at recovery at the position of its ids. If an existing batch overlaps the
        range of its ids, both were published together, and are united (SEM J7)."""
        index = bisect_right(self._ends, tail_batch.first)
        if index < len(self.tail) and self.tail[index].first < tail_batch.end:
            tail_batch = united(self.tail[index], tail_batch)
            self._drop(index, index + 1)
        self._insert(index, tail_batch)

    def add_restored(self, tail_batch: TailBatch) -> None:
        """Add a batch that a snapshot has, because its events were not sealed yet or are late."""
        self.came_back(tail_batch)
        if tail_batch.end <= self.sealed_end:
            self.late.add_all(tail_batch.overlap(IdSet((Span(tail_batch.first, tail_batch.end),))))

    def record_persistence(self, ids: IdSet) -> None:
        """Record that these events survive a restart from now on. Events below ``sealed_end``
        are late, because the files for their ids are already written."""
        self.late.add_all(ids.within(Span(0, self.sealed_end)))

    def keep_beside_damage(self, persistent: IdSet) -> None:
        """Keep the tail's copies of persistent events below ``sealed_end``, after a file turned
        out to be damaged: cutting the tail would leave them to the file alone (SEM S1)."""
        for tail_batch in self.tail:
            if tail_batch.first >= self.sealed_end:
                break
            self.late.add_all(
                tail_batch.overlap(persistent.within(Span(tail_batch.first, self.sealed_end)))
            )

    def drop_empty_batches(self, spans: Spans, stored: IdSet) -> None:
        """Drop the batches that are empty now that the ids of ``spans`` have left the channel.
        ``stored`` no longer has these ids."""
        if self.late:
            self.late.discard_all(IdSet(spans))
        spans = self._spans_to_search(spans)
        indexes: dict[int, None] = {}
        files: dict[SealedFile, None] = {}
        # Neighbouring spans usually lie in one batch: remember the last one to save the search.
        last_batch = last_segment = NOWHERE
        sealed_end = self.sealed_end if self.files else 0
        for first, end in spans:
            if not (last_batch.first <= first and end <= last_batch.end):
                i = bisect_right(self._ends, first)
                while i < len(self.tail) and self.tail[i].first < end:
                    indexes[i] = None
                    last_batch = Span(self.tail[i].first, self._ends[i])
                    i += 1
            if first < sealed_end and not (last_segment.first <= first and end <= last_segment.end):
                for met in self.files_for((Span(first, end),)):
                    files[met] = None
                    last_segment = met.span
        for file in files:
            file.is_stale = True
            if not file.grows:  # growing files may be large; they are counted when needed
                file.recount(stored)
        self._drop_empty([i for i in indexes if self._is_empty(self.tail[i], stored)])

    def _spans_to_search(self, spans: Spans) -> Spans:
        """Return the spans to search batches for, ascending. Many spans within few batches are
        replaced by one span around them, which is cheaper to search."""
        if len(spans) <= SCATTERED_MIN:
            return spans
        around = Span(spans[0][0], spans[-1][1])
        first = bisect_right(self._ends, around.first)
        tail_batches = bisect_right(self._ends, around.end - 1) - first
        return (around,) if tail_batches < len(spans) else spans

    def record_scattered_removal(self, ids: IdSet, stored: IdSet) -> None:
        """Record that scattered ids have left the channel. Batches are checked for emptiness only
        after many scattered ids, because a check costs time for each batch in their range."""
        lowest, highest = ids.lowest, ids.highest
        if lowest is None or highest is None:
            return
        if lowest == highest and self._drop_if_alone(lowest):
            return
        around = Span(lowest, highest + 1)
        if len(ids) < SCATTERED_MIN:
            self.drop_empty_batches(ids.spans, stored)
            return
        self._thinned = Span(min(self._thinned.first, lowest), max(self._thinned.end, around.end))
        self._thinned_ids += len(ids)
        first = bisect_right(self._ends, self._thinned.first)
        last = bisect_right(self._ends, self._thinned.end - 1)
        if self._thinned_ids >= THINNED_PER_PIECE * (last - first):
            self.drop_empty_batches((self._thinned,), stored)
            self._thinned, self._thinned_ids = UNTOUCHED, 0
        elif lowest < self.sealed_end:  # only marked: files are recounted when needed
            for file in self.files_for((around,)):
                file.is_stale = True

    def _drop_if_alone(self, event_id: int) -> bool:
        """Drop the event's batch if the event is alone in it and not in a file. Return whether it
        was dropped."""
        if event_id < self.sealed_end:
            return False
        i = bisect_right(self._ends, event_id)
        if i == len(self.tail) or self.tail[i].first != event_id or self._ends[i] > event_id + 1:
            return False
        self._drop(i, i + 1)
        return True

    def _is_empty(self, tail_batch: TailBatch, stored: IdSet) -> bool:
        """Update the count of a batch's live events; return whether it is 0."""
        span = Span(tail_batch.first, tail_batch.end)
        tail_batch.live = (
            stored.count(span) if tail_batch.is_whole else len(tail_batch.overlap(stored))
        )
        return tail_batch.live == 0

    def _drop_empty(self, indexes: list[int]) -> None:
        """Drop batches by index. Neighbours are cut out together, because a million small batches
        may expire at once and each cut moves the rest of the list."""
        while indexes:  # from the highest, so that dropping keeps the lower indexes
            stop = indexes.pop() + 1
            start = stop - 1
            while indexes and indexes[-1] == start - 1:
                start = indexes.pop()
            self._drop(start, stop)

    def _drop(self, start: int, stop: int) -> None:
        """Drop the batches with indexes from ``start`` to below ``stop``."""
        dropped = self.tail[start:stop]
        sizes: dict[Home, int] = {}
        for tail_batch in dropped:
            sizes[tail_batch.home] = sizes.get(tail_batch.home, 0) - tail_batch.weight
        for home, size in sizes.items():
            self.meter.add_bytes(home, size)
            self._realm.add_bytes(home, size)
        self.freed += [tail_batch.place for tail_batch in dropped if tail_batch.place is not None]
        del self.tail[start:stop], self._ends[start:stop]

    def _count(self, tail_batch: TailBatch, sign: int) -> None:
        """Add the weight of a batch to the meters; with ``sign`` -1, subtract it."""
        size = sign * tail_batch.weight
        self.meter.add_bytes(tail_batch.home, size)
        self._realm.add_bytes(tail_batch.home, size)

    def folder(self, name: str, number: int) -> str:
        """Return the folder for the next file of this channel, whose name is ``name``."""
        return segment_folder(name, number, self.files[-1].name if self.files else "")

    def discard(self) -> None:
        """Drop everything, because the channel was deleted."""
        self._drop(0, len(self.tail))
        self._realm.add_index_bytes(-self.index_bytes)
        self.index_bytes = 0

    # --- the index of publish keys -------------------------------------------------------

    def measure_index(self) -> int:
        """Return the memory of the index in bytes: values of publish keys."""
        return 0 if self.keys is None else self.keys.nbytes

    def count_index(self) -> None:
        """Bring the realm's meter up to date with :meth:`measure_index`."""
        size = self.measure_index()
        self._realm.add_index_bytes(size - self.index_bytes)
        self.index_bytes = size

    def index_growth(self, size: int) -> int:
        """Return the bytes that a publish of ``size`` bytes adds to the index. The values of its
        publish keys must already have been looked up."""
        return self.measure_index() - self.index_bytes

    def reclaim_index(self, stored: IdSet) -> None:
        """Drop the values of publish keys without stored events, if they are many."""
        if self.keys is not None:
            self.keys.reclaim(stored)
            self.count_index()

    def tidy_index(self, stored: IdSet) -> None:
        """Drop the values of publish keys without stored events, if they are half of all values.
        Must not be called within a publish, which uses slot numbers that this call changes."""
        if self.keys is None or len(self.keys) <= self.keys.values_max(stored):
            return
        if stored:
            self.keys.prune(stored)
        else:
            self.keys.clear()
        self.count_index()

    def record_sealing(self, end: int, file: SealedFile | None, volatile: IdSet) -> None:
        """Record that persistent events with ids below ``end`` are in files now, the newest ones in
        ``file``. The tail keeps the ``volatile`` events, which live in memory only."""
        self.sealed_end = max(self.sealed_end, end)
        if file is not None:
            self.files.append(file)
        self._forget_tail(end, volatile)

    def record_growth(self, end: int, volatile: IdSet) -> None:
        """Record that the newest file has grown and has the events with ids below ``end``."""
        self.sealed_end = max(self.sealed_end, end)
        self._forget_tail(end, volatile)

    def replace_files(self, names: Sequence[str], file: SealedFile | None) -> None:
        """Replace the files ``names`` with ``file`` (SEM S, maintenance); None removes them."""
        files = [kept for kept in self.files if kept.name not in names]
        if file is not None:
            files.append(file)
        self.files = sorted(files, key=lambda kept: kept.index.first_id)

    def _forget_tail(self, end: int, volatile: IdSet) -> None:
        """Drop the batches below ``end`` that have no volatile or late events."""
        sealed_count = bisect_right(self._ends, end)
        if self.late:
            # This is a copy, because the set belongs to the state of the channel.
            volatile = volatile.copy()
            volatile.add_all(self.late)
        if not volatile:
            self._drop(0, sealed_count)
            return
        # Backwards, so that dropping a batch does not change the indexes of the batches before it.
        for i in range(sealed_count - 1, -1, -1):
            tail_batch = self.tail[i]
            volatile_ids = volatile.within(Span(tail_batch.first, tail_batch.end))
            if not volatile_ids:
                self._drop(i, i + 1)

    def empty_files(self) -> list[SealedFile]:
        """Return the files without remaining events. The newest is never among them (SEM S,
        spindles), nor are damaged files, which are kept for inspection."""
        return [
            file
            for file in self.files[:-1]
            if file.live == 0 and not (file.is_damaged or file.is_frozen)
        ]

    def keep_damaged(self, file: SealedFile, reason: str) -> None:
        """Mark a file as damaged. It is kept for inspection (SEM S1)."""
        file.is_damaged = True
        self.quarantined.append(reason)

    def forget_file(self, name: str) -> None:
        self.files = [file for file in self.files if file.name != name]

    # --- questions -----------------------------------------------------------------------

    @property
    def sealed_bytes(self) -> int:
        return sum(file.index.size for file in self.files)

    @property
    def event_bytes(self) -> float:
        """Estimated bytes of an event, in the batch or file with the largest events."""
        if not self.files and len(self.tail) <= 1:  # the usual case on realms with many channels
            return self.tail[0].event_bytes if self.tail else 0.0
        in_files = (file.index.size / max(1, file.index.rows) for file in self.files)
        in_tail = (tail_batch.event_bytes for tail_batch in self.tail)
        return max([0.0, *in_files, *in_tail])

    def event_sizes(self) -> list[tuple[int, float]]:
        """Return the first id and the bytes per event of each stored batch, ascending."""
        sizes = [
            (batch.first_id, batch.length / max(1, batch.rows))
            for file in self.files
            for batch in file.index.batches
        ]
        sizes += [(tail_batch.first, tail_batch.event_bytes) for tail_batch in self.tail]
        sizes.sort()
        return sizes

    def recount(self, stored: IdSet) -> None:
        """Make the files' counts of remaining events exact."""
        for file in self.files:
            file.recount(stored)

    @property
    def dead_bytes(self) -> int:
        """Estimated bytes in files of events that have left the channel."""
        return sum(file.dead_bytes for file in self.files)

    def require_open(self, files: Sequence[SealedFile]) -> None:
        """Raise ``FilesNotOpen`` if some of these files are closed, apart from unreadable ones."""
        if not all([file.is_open or file.is_unreadable for file in files]):
            raise FilesNotOpen(files)

    def unsealed(self, rows_max: int, bytes_max: int) -> tuple[int, list[TailBatch]] | None:
        """Return the oldest unsealed batches if they fill a file of ``rows_max`` rows or
        ``bytes_max`` bytes: the id where the file ends, and the batches. Otherwise return None."""
        start = bisect_right(self._ends, self.sealed_end)
        if start == len(self.tail):
            return None
        rows = self.tail[-1].end - max(self.tail[start].first, self.sealed_end)
        if rows < rows_max and self.meter.tail_bytes < bytes_max:
            # Called several times a second, so the usual case does not inspect each batch.
            return None
        rows = size = 0
        for i in range(start, len(self.tail)):
            tail_batch = self.tail[i]
            first = max(tail_batch.first, self.sealed_end)
            rows += tail_batch.end - first
            size += tail_batch.weight
            # The file may end inside the last batch, so that it never has more than `rows_max`.
            if rows >= rows_max or size >= bytes_max:
                return tail_batch.end - max(0, rows - rows_max), self.tail[start : i + 1]
        return None

    def oldest_unsealed(self, bytes_max: int) -> tuple[int, list[TailBatch]] | None:
        """Return the oldest unsealed batches, of at most ``bytes_max`` bytes but at least one
        batch: the id where the last batch ends, and the batches. None if all are sealed."""
        start = bisect_right(self._ends, self.sealed_end)
        size, stop = 0, start
        while stop < len(self.tail):
            size += self.tail[stop].weight
            if size > bytes_max and stop > start:
                break
            stop += 1
        return (self.tail[stop - 1].end, self.tail[start:stop]) if stop > start else None

    def all_unsealed(self) -> list[TailBatch]:
        return self.tail[bisect_right(self._ends, self.sealed_end) :]

    def held(self) -> Sequence[TailBatch]:
        """Return all batches in memory, including those whose events are also in files."""
        return self.tail

    # --- reading -------------------------------------------------------------------------

    def read(self, spans: Spans, damage: Damage) -> list[OutgoingBatch]:
        """Read the events of ``spans`` in id order. Small batches are merged if that is cheap.

        ``spans`` are stored ids, ascending. Damaged events are left out and reported to ``damage``.
        The files with the events (:meth:`files_for`) must be open. Raises ``FilesNotOpen``.
        """
        newest = self.tail[-1] if self.tail else None
        # The usual read of a live subscription.
        if newest is not None and newest.first >= self.sealed_end and newest.has_exactly(spans):
            return [OutgoingBatch(spans, tail_batch=newest)]
        sealed, live = self._split(spans)
        if not sealed:
            return merged(self._from_tail(live), self.columns)
        rows = list(self._from_files(sealed, damage))
        tail = self._from_tail(live)
        # On mixed channels, events in memory may have lower ids than events in files.
        if tail and rows and tail[0].spans[0].first < rows[-1].spans[-1].end:
            return [self._interleaved([*rows, *tail])]
        return merged([*rows, *tail], self.columns)

    def read_lowest(
        self, ids: IdSet, bytes_max: float, damage: Damage
    ) -> tuple[IdSet, list[OutgoingBatch]]:
        """Read the lowest of ``ids``, up to ``bytes_max`` bytes of columns but at least one event.
        Return these ids and their events. Callers limit ``ids`` by estimated sizes, so this loop
        only repeats if events are larger than the average of their batch."""
        while True:
            damage_here = Damage()
            rows = self.read(ids.spans, damage_here)
            size = sum([part.batch.nbytes for part in rows])
            if size <= bytes_max or len(ids) == 1:
                damage.add(damage_here)
                return ids, rows
            ids = ids.lowest_part(max(1, int(len(ids) * bytes_max / size)))

    def promising(
        self,
        spans: Spans,
        selector: Selector,
        now_us: int,
        messages: MessageAccess | None = None,
        work_max: int = JUDGED_WORK_MAX,
    ) -> Spans:
        """Return the part of ``spans`` where ``selector`` may match, judged by the statistics of
        the files (SEM F5). These do not cover fields inside ``messages``."""
        if messages is not None:
            return spans
        if not self.files or not spans or spans[0].first >= self.sealed_end:
            return spans
        sealed, live = self._split(spans)
        matching = IdSet(sealed)
        places = (
            place
            for file in (self.files_for(tuple(sealed)) if sealed else ())
            for place in file.batches_within(Span(sealed[0].first, sealed[-1].end))
        )
        for place in islice(places, max(1, work_max // selector.work)):
            if not selector.may_match_in(place.summary, now_us=now_us):
                matching.remove(place.span)
        for span in live:
            matching.add(span)
        return matching.spans

    def _split(self, spans: Spans) -> tuple[list[Span], list[Span]]:
        """Split ``spans`` into the parts to read from files and from the tail. Each id is in one of
        the two parts. Below ``sealed_end`` the tail only has late events and events that live
        in memory only."""
        if not self.files or spans[0].first >= self.sealed_end:
            return [], list(spans)
        if spans[-1].end <= self.sealed_end <= self._tail_begins:
            return list(spans), []
        below = Span(0, self.sealed_end)
        in_files = IdSet(span.clipped(below) for span in spans)
        in_memory = IdSet()
        for tail_batch in self.tail:
            if tail_batch.first >= self.sealed_end:
                break
            in_batch = tail_batch.overlap(in_files)
            in_files.discard_all(in_batch)
            in_memory.add_all(in_batch)
        for span in spans:
            in_memory.add(span.clipped(Span(self.sealed_end, max(span.end, below.end))))
        return list(in_files.spans), list(in_memory.spans)

    @property
    def _tail_begins(self) -> int:
        return self.tail[0].first if self.tail else self.sealed_end

    def files_for(self, spans: Spans) -> Iterator[SealedFile]:
        """Yield the files whose id ranges overlap the range of ``spans``."""
        first, end = spans[0].first, spans[-1].end
        first_file = bisect_right(self.files, first, key=lambda file: file.index.end_id)
        for file in self.files[first_file:]:
            if file.index.first_id >= end:
                return
            yield file

    def _from_files(self, spans: Sequence[Span], damage: Damage) -> Iterator[OutgoingBatch]:
        """Yield the events of ``spans``, which are ascending, from the sealed files. Ids that
        cannot be read are noted in ``damage``."""
        ends = [end for _, end in spans]
        parts = {file: overlapping(spans, ends, file.span) for file in self.files_for(tuple(spans))}
        self.require_open([file for file, inside in parts.items() if inside])
        for file, inside in parts.items():
            if file.reader is None:  # unreadable: it could not be opened
                for span in inside:
                    damage.note(Damaged(f"{file.name} cannot be opened"), span.clipped(file.span))
                continue
            for read_spans, batch in file.reader.gather(inside, damage.note):
                # The file lacks some of these ids, so the ids of the rows are the right ones.
                if sum([end - first for first, end in read_spans]) > batch.num_rows:
                    read_spans = spans_in(batch)
                publishers = file.publishers_of(Span(read_spans[0].first, read_spans[-1].end))
                yield OutgoingBatch(read_spans, batch=batch, publishers=publishers)

    def _from_tail(self, spans: Sequence[Span]) -> list[OutgoingBatch]:
        """Return the events of ``spans``, which are ascending, that are not in sealed files yet."""
        runs: list[tuple[TailBatch, list[Span]]] = []
        position = 0
        for i in range(bisect_right(self._ends, spans[0].first) if spans else 0, len(self.tail)):
            tail_batch = self.tail[i]
            span = Span(tail_batch.first, tail_batch.end)
            parts = []
            while position < len(spans) and spans[position].first < span.end:
                part = spans[position].clipped(span)
                if part.size:
                    parts.append(part)
                if spans[position].end > span.end:
                    break
                position += 1
            if parts:
                runs.append((tail_batch, parts))
            if position == len(spans):
                break
        return [rows for run in _group_crumbs(runs) for rows in _read_group(run)]

    def _interleaved(self, rows: list[OutgoingBatch]) -> OutgoingBatch:
        """Merge events on disk and in memory in id order (mixed channels)."""
        table = pa.Table.from_batches(lean([part.batch for part in rows], self.columns))
        table = table.sort_by("event_id").combine_chunks()
        (batch,) = table.to_batches()
        return OutgoingBatch(spans_in(batch), batch=batch, publishers=publishers_of(rows))


def _is_crumb(tail_batch: TailBatch, parts: list[Span]) -> bool:
    """Whether a read needs so few rows of a batch that they are gathered with rows of other
    batches."""
    return (
        tail_batch.is_whole
        and len(parts) <= CRUMBS_MAX
        and parts[-1].end - parts[0].first < (tail_batch.end - tail_batch.first)
    )


def _group_crumbs(
    batches: list[tuple[TailBatch, list[Span]]],
) -> Iterator[list[tuple[TailBatch, list[Span]]]]:
    """Yield groups of batches to read together: consecutive crumbs of one schema and publisher.
    Every other batch is a separate group."""
    run: list[tuple[TailBatch, list[Span]]] = []
    for tail_batch, parts in batches:
        joins = bool(run) and len(run) < MERGE_BELOW and _is_crumb(tail_batch, parts)
        last = run[-1][0] if run else tail_batch
        if joins and (tail_batch.schema_id, tail_batch.publisher) == (
            last.schema_id,
            last.publisher,
        ):
            run.append((tail_batch, parts))
            continue
        if run:
            yield run
        run = [(tail_batch, parts)]
        if not _is_crumb(tail_batch, parts):
            yield run
            run = []
    if run:
        yield run


def _read_group(run: list[tuple[TailBatch, list[Span]]]) -> Iterator[OutgoingBatch]:
    """Yield the events of a group of batches, as one outgoing batch."""
    tail_batch, parts = run[0]
    if len(run) > 1:
        spans = [span for _, parts in run for span in parts]
        batch = gathered([(tail_batch, span) for tail_batch, parts in run for span in parts])
        yield OutgoingBatch(spans, batch=batch, publishers=tail_batch.publishers(spans))
    elif tail_batch.is_whole and parts[0] == Span(tail_batch.first, tail_batch.end):
        yield OutgoingBatch(parts, tail_batch=tail_batch)
    else:
        publishers, batch = tail_batch.publishers(parts), tail_batch.stored(parts)
        yield OutgoingBatch(parts, batch=batch, publishers=publishers, at_us=tail_batch.at_us)
