"""Keeps the newest event ids of each value of a publish key. Values are identified by slot, the
number that :mod:`.key_values` gives them (SEM K1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_core.columns.events.batch import Int64s
from penstock_core.ids.id_lists import WIDE, gap_bytes, head, remember, short
from penstock_core.ids.ids import IdSet, Span

Bools = npt.NDArray[np.bool_]

_SLOTS_MIN: Final = 64
"""Number of slots that the first arrays have room for."""
_SCATTERED: Final = 64
"""An id set with more gaps than this is built from bitmaps instead of ranges."""
_BLOCK_SHIFT: Final = 10
"""Number of low bits of an id inside a bitmap of :meth:`IdSet.of_bitmaps`. Ids with equal higher
bits share a bitmap."""
_BLOCK: Final = 1 << _BLOCK_SHIFT


def is_first(slots: Int64s) -> Bools:
    """Return a mask of the rows whose slot does not occur in an earlier row."""
    rows = np.arange(len(slots))
    first = np.empty(int(slots.max(initial=-1)) + 2, dtype=np.int64)
    first[slots[::-1]] = rows[::-1]  # reversed, because the last write to a cell wins
    mask: Bools = first[slots] == rows
    return mask


class NewestByKey:
    """Retention of depth 1: one id per value, computed by columns."""

    __slots__ = ("_end", "_last", "_newest", "_verified_from")

    def __init__(self) -> None:
        self._newest: Int64s = np.full(_SLOTS_MIN, -1, dtype=np.int64)
        """The newest id of each slot; -1 for a slot without an event."""
        self._last: Int64s = np.empty(_SLOTS_MIN, dtype=np.int64)
        """Working memory for the last id of each slot in a publish."""
        self._end = 0
        """The newest appended id plus one."""
        self._verified_from = 0
        """Newest ids at or above this id are stored for certain, without a lookup."""

    def grow(self, slots: int) -> None:
        """Make room for slots below ``slots``."""
        capacity = len(self._newest)
        if slots > capacity:
            # At least double the capacity, so that growing costs constant time per slot on average.
            added = np.full(max(slots - capacity, capacity), -1, dtype=np.int64)
            self._newest = np.concatenate((self._newest, added))
            self._last = np.empty(len(self._newest), dtype=np.int64)

    def mark_unverified(self) -> None:
        """Record that events may have been removed, so that ids appended so far must be looked up
        again."""
        self._verified_from = self._end

    def reset(self) -> None:
        """Forget the result of an unfinished :meth:`superseded`. This class stores no such
        result; :class:`NewestFew` does."""

    def superseded(self, slots: Int64s, ids: Int64s, stored: IdSet) -> IdSet:
        """Return the ids to remove when events with these slots and ascending ids are appended."""
        self._last[slots] = ids  # the last write to a cell wins
        is_last = self._last[slots] == ids
        older = self._newest.take(slots[is_last])
        older.sort()
        # Sorted ids begin with -1 for slots without an event; then follow ids to be looked up.
        unverified, verified = np.searchsorted(older, (0, self._verified_from)).tolist()
        removed = _set_of_ascending(np.concatenate((older[verified:], ids[~is_last])))
        if unverified < verified:
            removed.add_all(stored.overlap(IdSet.from_ids(older[unverified:verified].tolist())))
        return removed

    def superseded_by_one(self, slot: int, stored: IdSet) -> IdSet:
        """Return the id to remove when one event with this slot is appended."""
        older = int(self._newest[slot])
        if older < 0 or (older < self._verified_from and older not in stored):
            return IdSet()
        return IdSet((Span(older, older + 1),))

    def append_one(self, slot: int, event_id: int) -> None:
        """Record that an event with this slot is stored."""
        self._newest[slot] = event_id
        self._end = event_id + 1

    def newest_of(self, slot: int, stored: IdSet) -> int | None:
        """Return the id of the newest event with this slot, or None if it is not stored."""
        event_id = int(self._newest[slot])
        return event_id if event_id >= 0 and event_id in stored else None

    def stored_of(self, slot: int, stored: IdSet) -> list[int]:
        """Return the id of the newest event with this slot, if it is stored."""
        event_id = self.newest_of(slot, stored)
        return [] if event_id is None else [event_id]

    def are_stored(self, slots: Int64s, stored: IdSet) -> Bools:
        """Return a mask of the slots whose newest event is stored on the channel."""
        ids = self._newest[slots]
        mask: Bools = ids >= 0
        unverified = np.flatnonzero(mask & (ids < self._verified_from))
        if len(unverified):
            mask[unverified] = [event_id in stored for event_id in ids[unverified].tolist()]
        return mask

    def append(self, slots: Int64s, ids: Int64s) -> None:
        """Record that events with these slots and ids are stored."""
        self._newest[slots] = ids
        if len(ids):
            self._end = int(ids[-1]) + 1

    def prune(self, slots: int, stored: IdSet) -> Bools:
        """Drop slots without a stored event and renumber the rest. Return the mask of the kept
        slots."""
        newest = self._newest[:slots]
        alive = np.fromiter((event_id in stored for event_id in newest.tolist()), np.bool_, slots)
        self.keep(alive)
        return alive

    def keep(self, alive: Bools) -> None:
        """Drop all slots that are not ``alive`` and renumber the rest in their order."""
        self.grow(len(alive))
        newest = self._newest[: len(alive)][alive]
        self._newest = np.full(max(len(newest), _SLOTS_MIN), -1, dtype=np.int64)
        self._newest[: len(newest)] = newest
        self._last = np.empty(len(self._newest), dtype=np.int64)


def _set_of_ascending(ids: Int64s) -> IdSet:
    """Return ascending ids as a set, in the form that suits the number of gaps."""
    if not len(ids):
        return IdSet()
    gaps = ids[1:] - ids[:-1]
    breaks = np.flatnonzero(gaps != 1)
    if len(breaks) > _SCATTERED:
        id_set = _set_of_scattered(ids)
        # The removal is written as these bytes. Reading them back returns this set without parsing.
        remember(_encoded(ids, gaps), id_set)
        return id_set
    firsts = np.concatenate((ids[:1], ids[breaks + 1]))
    ends = np.concatenate((ids[breaks], ids[-1:])) + 1
    return IdSet.of_runs(firsts.tolist(), ends.tolist())


def _encoded(ids: Int64s, gaps: Int64s) -> bytes:
    """Return the bytes of :func:`penstock_core.ids.id_lists.listed`, computed by columns."""
    wide = np.flatnonzero(gaps >= WIDE)
    widest = int(gaps[wide].max()) if len(wide) else 0
    size = gap_bytes(widest, len(gaps), len(wide))
    first = int(ids[0])
    if not size:
        return ids.astype("<i8", copy=False).tobytes()
    if size > 1:
        return head(size, first) + gaps.astype(f"<u{size}").tobytes()
    return short(first, len(gaps), _narrow(gaps, wide))


def _narrow(gaps: Int64s, wide: Int64s) -> bytes:
    """Return the gaps as bytes: one byte each, three bytes for the gaps in ``wide``."""
    narrow = gaps.astype(np.uint8)
    if not len(wide):
        return narrow.tobytes()
    narrow[wide] = WIDE
    steps = np.ones(len(gaps), dtype=np.int64)
    steps[wide] = 3
    places = np.cumsum(steps) - steps
    encoded = np.empty(len(gaps) + 2 * len(wide), dtype=np.uint8)
    encoded[places] = narrow
    encoded[places[wide] + 1] = gaps[wide] & 0xFF
    encoded[places[wide] + 2] = gaps[wide] >> 8
    return encoded.tobytes()


def _set_of_scattered(ids: Int64s) -> IdSet:
    """Return an id set of scattered ascending ids, built from one bitmap per block."""
    blocks = ids >> _BLOCK_SHIFT
    begins = np.empty(len(ids), dtype=np.bool_)
    begins[0] = True
    np.not_equal(blocks[1:], blocks[:-1], out=begins[1:])
    starts = np.flatnonzero(begins)
    # of_bitmaps() does not accept a full block.
    if len(ids) >= _BLOCK and (np.diff(starts, append=len(ids)) == _BLOCK).any():
        return IdSet.from_ids(ids.tolist())
    # NumPy packs one byte for each id of the blocks into bits, which needs no loop over the ids.
    bits = np.zeros(len(starts) << _BLOCK_SHIFT, dtype=np.bool_)
    rows = np.cumsum(begins) - 1
    bits[(rows << _BLOCK_SHIFT) + (ids & (_BLOCK - 1))] = True
    packed = np.packbits(bits, bitorder="little").tobytes()
    size = _BLOCK // 8
    bitmaps = [
        int.from_bytes(packed[start : start + size], "little")
        for start in range(0, len(packed), size)
    ]
    return IdSet.of_bitmaps(blocks[starts].tolist(), bitmaps)


class _Cut(NamedTuple):
    """The removals of a publish from one slot."""

    live: list[int]
    """The stored ids of the slot, ascending."""
    older: int
    """Number of stored ids that are removed; they are the lowest ones of the slot."""
    new: int
    """Number of the lowest new ids that are removed immediately, because the publish has more
    events of the slot than its depth."""


class NewestFew:
    """Retention of any depth: a list of the newest ids of each value, without spare memory.

    While only this class removes events, all ids in a slot are stored for certain. After
    :meth:`mark_unverified`, a slot is checked against the stored ids once, when it next exceeds its
    depth.
    """

    __slots__ = ("_checked", "_cuts", "_depth", "_epoch", "_ids", "_sizes")

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._ids: list[list[int]] = []
        """The newest ids of each slot, ascending."""
        self._sizes: Int64s = np.zeros(_SLOTS_MIN, dtype=np.int64)
        """Number of ids of each slot, to find the full slots of a publish by columns."""
        self._epoch = 0
        """Number of times that events may have been removed by other code."""
        self._checked: list[int] = []
        """The epoch in which all ids of a slot were last known to be stored, by slot."""
        self._cuts: dict[int, _Cut] = {}
        """The removals of the publish that is not appended yet, by slot."""

    def grow(self, slots: int) -> None:
        """Make room for slots below ``slots``."""
        capacity = len(self._sizes)
        if slots > capacity:
            # At least double the capacity, so that growing costs constant time per slot on average.
            added = np.zeros(max(slots - capacity, capacity), dtype=np.int64)
            self._sizes = np.concatenate((self._sizes, added))
        missing = slots - len(self._ids)
        self._ids.extend([] for _ in range(missing))
        self._checked.extend([self._epoch] * missing)

    def mark_unverified(self) -> None:
        """Record that events may have been removed: no id is verified to be stored any more."""
        self._epoch += 1

    def reset(self) -> None:
        """Forget the result of an unfinished :meth:`superseded`."""
        self._cuts = {}

    def superseded(self, slots: Int64s, ids: Int64s, stored: IdSet) -> IdSet:
        """Return the ids to remove when events with these slots and ascending ids are appended."""
        self._cuts = {}
        groups = _Groups(slots)
        full = self._sizes[groups.slots] + groups.counts > self._depth
        removed: list[int] = []
        for slot, start, count in groups.slot_groups(full):
            cut = self._cut(slot, count, stored)
            removed += cut.live[: cut.older]
            if cut.new:
                removed += ids[groups.order[start : start + cut.new]].tolist()
        return IdSet.from_ids(removed)

    def superseded_by_one(self, slot: int, stored: IdSet) -> IdSet:
        """Return the ids to remove when one event with this slot is appended."""
        if len(self._ids[slot]) < self._depth:
            return IdSet()
        cut = self._cut(slot, 1, stored)
        return IdSet.from_ids(cut.live[: cut.older])

    def stored_of(self, slot: int, stored: IdSet) -> list[int]:
        """Return the ids of the stored events with this slot, ascending."""
        return [event_id for event_id in self._ids[slot] if event_id in stored]

    def append_one(self, slot: int, event_id: int) -> None:
        """Record that an event with this slot is stored, and drop the ids that
        :meth:`superseded_by_one` returned for it."""
        slot_ids = self._ids[slot]
        cut = self._cuts.get(slot)
        if cut is not None:
            if cut.live is not slot_ids:
                slot_ids = self._ids[slot] = cut.live
                self._checked[slot] = self._epoch
            del slot_ids[: cut.older]
        slot_ids.append(event_id)
        self._sizes[slot] = len(slot_ids)
        self._cuts = {}

    def _cut(self, slot: int, count: int, stored: IdSet) -> _Cut:
        """Compute and remember the removals from a slot that gets ``count`` new events."""
        live = self._ids[slot]
        if self._checked[slot] != self._epoch:
            live = [event_id for event_id in live if event_id in stored]
        excess = max(len(live) + count - self._depth, 0)
        older = min(excess, len(live))
        cut = self._cuts[slot] = _Cut(live, older, excess - older)
        return cut

    def append(self, slots: Int64s, ids: Int64s) -> None:
        """Record stored events and drop the ids that :meth:`superseded` returned for them."""
        groups = _Groups(slots)
        sorted_ids = ids[groups.order].tolist()
        for slot, start, count in groups.slot_groups():
            slot_ids = self._ids[slot]
            cut = self._cuts.get(slot)
            skipped = 0
            if cut is not None:
                if cut.live is not slot_ids:
                    slot_ids = self._ids[slot] = cut.live
                    self._checked[slot] = self._epoch
                del slot_ids[: cut.older]
                skipped = cut.new
            slot_ids += sorted_ids[start + skipped : start + count]
            self._sizes[slot] = len(slot_ids)
        self._cuts = {}

    def prune(self, slots: int, stored: IdSet) -> Bools:
        """Drop slots without a stored event and renumber the rest. Return the mask of the kept
        slots."""
        live_ids = [
            [event_id for event_id in ids if event_id in stored] for ids in self._ids[:slots]
        ]
        self._ids = [ids for ids in live_ids if ids]
        self._checked = [self._epoch] * len(self._ids)
        self._sizes = np.zeros(max(len(self._ids), _SLOTS_MIN), dtype=np.int64)
        self._sizes[: len(self._ids)] = [len(ids) for ids in self._ids]
        self._cuts = {}
        return np.array([bool(ids) for ids in live_ids], dtype=np.bool_)


class _Groups:
    """Events grouped by slot: ``order`` sorts rows by slot, then by id."""

    __slots__ = ("counts", "order", "slots", "starts")

    def __init__(self, slots: Int64s) -> None:
        self.order: Int64s = np.argsort(slots, kind="stable")
        self.slots, self.starts, self.counts = np.unique(
            slots[self.order], return_index=True, return_counts=True
        )

    def slot_groups(self, picked: Bools | slice = slice(None)) -> Iterator[tuple[int, int, int]]:
        """Return, for each slot, its number, the start of its events in ``order``, and their
        count."""
        return zip(
            self.slots[picked].tolist(),
            self.starts[picked].tolist(),
            self.counts[picked].tolist(),
            strict=True,
        )
