"""Scattered ids: the id space in blocks of 1,024, with one bitmap for each partly filled block.

A set with a million gaps takes one bit per id instead of two list entries per gap, and a change of
one id touches one block, whatever the size of the set. Full blocks are kept as ranges of block
numbers, so that a long range stays one entry. Empty blocks are not kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import compress

from penstock_core.ids.ranges import Runs, cut, part, put, size

SHIFT = 10
"""Ids per block, as a power of two. Larger blocks make operations on whole sets cheaper. Smaller
ones make changes of single ids cheaper, and bound the memory for an id that is alone in its
block."""

BLOCK = 1 << SHIFT
"""Number of ids per block."""
LAST = BLOCK - 1
"""Mask of the position of an id in its block."""
FULL = (1 << BLOCK) - 1
"""Bitmap of a block that has all its ids."""

_ALONE_MAX = 8
"""A bitmap with at most this number of ids is read id by id, because so few ids are rarely in
runs."""
_FEW_BITS = 32
"""Maximum number of set bits that are read by taking the lowest bit repeatedly; for more bits,
reading every byte is faster."""

_FEW_KEYS = 40
"""Up to this number of keys are deleted from their list one by one; above it, building the list
again is faster."""

# One byte more than a block, because the edges of its runs include the position behind its end.
_BYTES = BLOCK // 8 + 1
_IN_BYTE = [[place for place in range(8) if byte >> place & 1] for byte in range(256)]
"""Positions of the set bits of a byte, by the value of the byte."""


def _bit_positions(bits: int, base: int) -> list[int]:
    """Return the positions of the set bits, counted from ``base``."""
    if bits.bit_count() <= _FEW_BITS:
        positions = []
        while bits:
            lowest = bits & -bits
            positions.append(base + lowest.bit_length() - 1)
            bits ^= lowest
        return positions
    # `compress` and `filter` skip the zero bytes without a loop in Python.
    octets = bits.to_bytes(_BYTES, "little")
    offsets = compress(range(base, base + 8 * _BYTES, 8), octets)
    used = zip(offsets, filter(None, octets), strict=True)
    return [offset + place for offset, octet in used for place in _IN_BYTE[octet]]


def runs_of(bits: int, base: int) -> Runs:
    """Return the runs of one bitmap whose lowest bit stands for the id ``base``."""
    if bits & (bits << 1):
        # A bit that differs from the bit below it begins a run or ends one, in turn.
        edges = _bit_positions(bits ^ (bits << 1), base)
        return edges[::2], edges[1::2]
    single_ids = _bit_positions(bits, base)
    return single_ids, [event_id + 1 for event_id in single_ids]


def run_count(bits: int) -> int:
    """Return the number of runs in one bitmap."""
    # A run begins at each bit that is set while the bit below it is not.
    return (bits & ~(bits << 1)).bit_count()


class Blocks:
    """A set of ids, by block. It does not count its ids; each edit returns how many ids changed."""

    __slots__ = ("bits", "highs", "keys", "lows")

    def __init__(self) -> None:
        self.bits: dict[int, int] = {}
        """Block number to bitmap, for blocks neither empty nor full."""
        self.keys: list[int] = []
        """The numbers in ``bits``, sorted."""
        self.lows: list[int] = []
        """First block number of each run of full blocks, ascending."""
        self.highs: list[int] = []
        """The block number after the last block of each run in ``lows``."""

    @classmethod
    def of_runs(cls, runs: Runs) -> Blocks:
        """Return the set of sorted, disjoint runs."""
        new_set = cls()
        bits, lows, highs = new_set.bits, new_set.lows, new_set.highs
        current, pending = -1, 0
        for first, end in zip(*runs, strict=True):
            key, last = first >> SHIFT, end >> SHIFT
            # Runs ascend, so no later run changes the previous block.
            if key != current:
                if pending:
                    bits[current] = pending
                current, pending = key, 0
            if key == last:
                pending |= ((1 << (end - first)) - 1) << (first & LAST)
                continue
            if offset := first & LAST:
                bits[key] = pending | (FULL >> offset << offset)
                key += 1
            if key < last:
                lows.append(key)
                highs.append(last)
            # The next run may begin in the block in which this one ends.
            current, pending = last, (1 << (end & LAST)) - 1
        if pending:
            bits[current] = pending
        new_set.keys = list(bits)
        return new_set

    @classmethod
    def of_ids(cls, ids: list[int]) -> Blocks:
        """Return the set of ``ids``, which are sorted."""
        new_set = cls()
        current, pending = -1, 0
        for event_id in ids:
            if event_id >> SHIFT != current:
                new_set._append_block(current, pending)
                current, pending = event_id >> SHIFT, 0
            pending |= 1 << (event_id & LAST)
        new_set._append_block(current, pending)
        new_set.keys = list(new_set.bits)
        return new_set

    def _append_block(self, key: int, bits: int) -> None:
        """Add the next block of a set that is built in ascending order. The caller sets ``keys``
        at the end."""
        if bits == FULL:
            put(self.lows, self.highs, key, key + 1)
        elif bits:
            self.bits[key] = bits

    @classmethod
    def union(cls, many: list[Blocks]) -> Blocks:
        """Return the ids that are in any of the sets. This method takes a third of the time of
        adding one set after the other, because it does not count the new ids."""
        new_set = cls()
        bits, bits_of = new_set.bits, new_set.bits.get
        for blocks in many:
            for key, own_bits in blocks.bits.items():
                bits[key] = bits_of(key, 0) | own_bits
        # Full blocks become runs before `keys` is set, which lists partly filled blocks only.
        for key in sorted(key for key, own_bits in bits.items() if own_bits == FULL):
            del bits[key]
            put(new_set.lows, new_set.highs, key, key + 1)
        new_set.keys = sorted(bits)
        for blocks in many:
            for low, high in zip(blocks.lows, blocks.highs, strict=True):
                new_set.add(low << SHIFT, high << SHIFT)
        return new_set

    def copy(self) -> Blocks:
        twin = Blocks()
        twin.bits, twin.keys = self.bits.copy(), self.keys[:]
        twin.lows, twin.highs = self.lows[:], self.highs[:]
        return twin

    def without(self, keys: list[int]) -> Blocks:
        """Return a copy without the partly filled blocks of ``keys``."""
        remaining = self.copy()
        for key in keys:
            del remaining.bits[key]
        remaining.keys = [key for key in self.keys if key in remaining.bits]
        return remaining

    # --- one range -------------------------------------------------------------------------

    def add(self, first: int, end: int) -> int:
        """Add a range that is not empty; return how many ids are new."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            return self._add_bits(key, ((1 << (end - first)) - 1) << (first & LAST))
        new = 0
        if offset := first & LAST:
            new += self._add_bits(key, FULL >> offset << offset)
            key += 1
        if offset := end & LAST:
            new += self._add_bits(last, (1 << offset) - 1)
        if key < last:
            # Bitmaps of blocks that are full from now on must not stay in `bits`.
            present = self._empty_blocks(key, last)
            put(self.lows, self.highs, key, last)
            new += ((last - key) << SHIFT) - present
        return new

    def discard(self, first: int, end: int) -> int:
        """Remove a range that is not empty; return how many of its ids were in the set."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            mask = ((1 << (end - first)) - 1) << (first & LAST)
            return self.clear(key, mask).bit_count()
        removed = 0
        if offset := first & LAST:
            removed += self.clear(key, FULL >> offset << offset).bit_count()
            key += 1
        if offset := end & LAST:
            removed += self.clear(last, (1 << offset) - 1).bit_count()
        return removed + self._empty_blocks(key, last)

    def clear(self, key: int, mask: int) -> int:
        """Remove the ids of ``mask`` from one block; return those that were in the set, as a
        bitmap. ``mask`` must not cover the whole block."""
        own_bits = self.bits.get(key)
        if own_bits is None:
            if not self._is_full(key):
                return 0
            cut(self.lows, self.highs, key, key + 1)
            self.bits[key] = FULL ^ mask
            self._insert_key(key)
            return mask
        removed_bits = own_bits & mask
        if removed_bits:
            if removed_bits == own_bits:
                self._drop_key(key)
            else:
                self.bits[key] = own_bits ^ removed_bits
        return removed_bits

    def _add_bits(self, key: int, mask: int) -> int:
        """Add the ids of ``mask`` to one block; return how many are new."""
        own_bits = self.bits.get(key, 0)
        if not own_bits:
            if self._is_full(key):
                return 0
            self._insert_key(key)
        merged_bits = own_bits | mask
        if merged_bits == FULL:
            self._drop_key(key)
            put(self.lows, self.highs, key, key + 1)
        else:
            self.bits[key] = merged_bits
        return (merged_bits ^ own_bits).bit_count()

    def _is_full(self, key: int) -> bool:
        i = bisect_right(self.lows, key)
        return i > 0 and key < self.highs[i - 1]

    def _insert_key(self, key: int) -> None:
        keys = self.keys
        # Ids grow, so a new block is usually the last one.
        if not keys or key > keys[-1]:
            keys.append(key)
        else:
            insort(keys, key)

    def _drop_key(self, key: int) -> None:
        # A block that becomes full with its first ids has a key, but no bitmap yet.
        self.bits.pop(key, None)
        del self.keys[bisect_left(self.keys, key)]

    def _empty_blocks(self, key: int, last: int) -> int:
        """Empty the blocks from ``key`` to before ``last``; return how many ids they held."""
        start, stop = bisect_left(self.keys, key), bisect_left(self.keys, last)
        removed = sum(self.bits.pop(k).bit_count() for k in self.keys[start:stop])
        del self.keys[start:stop]
        return removed + (size(cut(self.lows, self.highs, key, last)) << SHIFT)

    # --- another set -----------------------------------------------------------------------

    def add_all(self, other: Blocks) -> int:
        """Add every id of ``other``; return how many are new."""
        new = 0
        for low, high in zip(other.lows, other.highs, strict=True):
            new += self.add(low << SHIFT, high << SHIFT)
        bits, fresh, full = self.bits, [], []
        for key, other_bits in other.bits.items():
            own_bits = bits.get(key)
            if own_bits is None:
                if not self._is_full(key):
                    bits[key] = other_bits
                    fresh.append(key)
                    new += other_bits.bit_count()
            elif extra := other_bits & ~own_bits:
                new += extra.bit_count()
                merged_bits = own_bits | extra
                if merged_bits == FULL:
                    del bits[key]
                    full.append(key)
                else:
                    bits[key] = merged_bits
        self._update_keys(fresh, full)
        for key in full:
            put(self.lows, self.highs, key, key + 1)
        return new

    def discard_all(self, other: Blocks) -> int:
        """Remove every id of ``other``; return how many were in the set."""
        # The loop below visits each block of the removals, so a much larger set is cut first.
        is_large = len(other.bits) > 2 * len(self.bits)
        removals = self.overlap(other) if is_large else other
        removed = 0
        for low, high in zip(removals.lows, removals.highs, strict=True):
            removed += self._empty_blocks(low, high)
        bits, fresh, empty = self.bits, [], []
        for key, other_bits in removals.bits.items():
            own_bits = bits.get(key)
            if own_bits is None:
                if self._is_full(key):
                    cut(self.lows, self.highs, key, key + 1)
                    bits[key] = FULL ^ other_bits
                    fresh.append(key)
                    removed += other_bits.bit_count()
            elif removed_bits := own_bits & other_bits:
                removed += removed_bits.bit_count()
                if removed_bits == own_bits:
                    del bits[key]
                    empty.append(key)
                else:
                    bits[key] = own_bits ^ removed_bits
        self._update_keys(fresh, empty)
        return removed

    def _update_keys(self, fresh: list[int], removed: list[int]) -> None:
        """Update ``keys`` after many blocks were added or removed."""
        if len(removed) > _FEW_KEYS:
            self.keys = [key for key in self.keys if key in self.bits]
        else:
            for key in removed:
                del self.keys[bisect_left(self.keys, key)]
        if fresh:
            self.keys += fresh
            self.keys.sort()

    def overlap(self, other: Blocks) -> Blocks:
        """Return the ids that are in both sets."""
        common = Blocks()
        small, large = (self, other) if len(self.bits) < len(other.bits) else (other, self)
        bits, other_bits = common.bits, large.bits
        for key, own_bits in small.bits.items():
            if common_bits := own_bits & other_bits.get(key, 0):
                bits[key] = common_bits
        # Where one set has full blocks, the result has the blocks of the other set.
        for low, high in zip(self.lows, self.highs, strict=True):
            bits.update(other._bits_within(low, high))
            lows, highs = part(other.lows, other.highs, low, high)
            common.lows += lows
            common.highs += highs
        for low, high in zip(other.lows, other.highs, strict=True):
            bits.update(self._bits_within(low, high))
        common.keys = sorted(bits)
        return common

    def _bits_within(self, low: int, high: int) -> dict[int, int]:
        """Return the bitmaps of the blocks from ``low`` to ``high``. The caller must not change
        them."""
        keys = self._keys_within(low, high)
        if len(keys) == len(self.keys):
            # This is not a copy, because the callers only read it.
            return self.bits
        return {key: self.bits[key] for key in keys}

    def _keys_within(self, low: int, high: int) -> list[int]:
        return self.keys[bisect_left(self.keys, low) : bisect_left(self.keys, high)]

    # --- questions -------------------------------------------------------------------------

    def within(self, first: int, end: int) -> Blocks:
        """Return the ids inside a range that is not empty."""
        inside = Blocks()
        low, high = first >> SHIFT, ((end - 1) >> SHIFT) + 1
        inside.keys = self._keys_within(low, high)
        inside.bits = {key: self.bits[key] for key in inside.keys}
        inside.lows, inside.highs = part(self.lows, self.highs, low, high)
        if offset := first & LAST:
            inside.clear(low, (1 << offset) - 1)
        if offset := end & LAST:
            inside.clear(high - 1, FULL >> offset << offset)
        return inside

    def bits_at(self, key: int) -> int:
        """Return the bitmap of any block, including empty and full ones."""
        own_bits = self.bits.get(key)
        if own_bits is None:
            return FULL if self._is_full(key) else 0
        return own_bits

    @property
    def size(self) -> int:
        """The number of ids, counted on each access."""
        full = size((self.lows, self.highs))
        return sum(map(int.bit_count, self.bits.values())) + (full << SHIFT)

    def count(self, first: int, end: int) -> int:
        """Return the number of ids in a range that is not empty."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            return (self.bits_at(key) >> (first & LAST) & ((1 << (end - first)) - 1)).bit_count()
        count = 0
        if offset := first & LAST:
            count += (self.bits_at(key) >> offset).bit_count()
            key += 1
        if offset := end & LAST:
            count += (self.bits_at(last) & ((1 << offset) - 1)).bit_count()
        count += sum(self.bits[k].bit_count() for k in self._keys_within(key, last))
        return count + (size(part(self.lows, self.highs, key, last)) << SHIFT)

    def end_of(self, count: int) -> int:
        """Return the id after the lowest ``count`` ids. Raises ``ValueError`` if the set has
        fewer."""
        # Blocks with bitmaps and runs of full blocks are visited together, in the order of ids.
        full_index = 0
        for key in self.keys:
            while full_index < len(self.lows) and self.lows[full_index] < key:
                block_size = (self.highs[full_index] - self.lows[full_index]) << SHIFT
                if block_size >= count:
                    return (self.lows[full_index] << SHIFT) + count
                count -= block_size
                full_index += 1
            own_bits = self.bits[key]
            if (block_size := own_bits.bit_count()) >= count:
                # The number of set bits below a position grows with it, so a binary search works.
                ends = range(1, BLOCK + 1)
                index = bisect_left(
                    ends, count, key=lambda end: (own_bits & ((1 << end) - 1)).bit_count()
                )
                return (key << SHIFT) + ends[index]
            count -= block_size
        for low, high in zip(self.lows[full_index:], self.highs[full_index:], strict=True):
            if (block_size := (high - low) << SHIFT) >= count:
                return (low << SHIFT) + count
            count -= block_size
        raise ValueError("the set has fewer ids")

    def next_run(self, at_or_after: int, limit: int) -> tuple[int, int] | None:
        """Return the first id and the end of the lowest run at or after an id, cut to ``limit``
        ids; None if the set has no such id."""
        first = self._first(at_or_after)
        if first is None:
            return None
        end, end_max = first, first + limit
        while end < end_max:
            key, offset = end >> SHIFT, end & LAST
            own_bits = self.bits.get(key)
            if own_bits is not None:
                # The lowest zero bit of `own_bits`: so many ids in a row are in the set.
                own_bits >>= offset
                end += (~own_bits & (own_bits + 1)).bit_length() - 1
                if end >> SHIFT == key:
                    break
                continue  # the run reaches the end of the block, and may continue in the next one
            i = bisect_right(self.lows, key) - 1
            if i < 0 or self.highs[i] <= key:
                break
            end = self.highs[i] << SHIFT
        return first, min(end, end_max)

    def _first(self, at_or_after: int) -> int | None:
        """Return the lowest id of the set at or after ``at_or_after``; None if all are lower."""
        key, offset = at_or_after >> SHIFT, at_or_after & LAST
        if own_bits := self.bits.get(key, 0) >> offset:
            return at_or_after + (own_bits & -own_bits).bit_length() - 1
        i = bisect_right(self.highs, key)
        full = self.lows[i] if i < len(self.lows) else None
        # The id is in a run of full blocks, whose ids are all in the set.
        if full is not None and full <= key:
            return at_or_after
        j = bisect_right(self.keys, key)
        if j == len(self.keys):
            return None if full is None else full << SHIFT
        mixed = self.keys[j]
        if full is not None and full < mixed:
            return full << SHIFT
        own_bits = self.bits[mixed]
        return (mixed << SHIFT) + (own_bits & -own_bits).bit_length() - 1

    @property
    def lowest(self) -> int:
        """The lowest id of a set that is not empty."""
        if self.keys and (not self.lows or self.keys[0] < self.lows[0]):
            own_bits = self.bits[self.keys[0]]
            return (self.keys[0] << SHIFT) + (own_bits & -own_bits).bit_length() - 1
        return self.lows[0] << SHIFT

    @property
    def highest(self) -> int:
        """The highest id of a set that is not empty."""
        if self.keys and (not self.highs or self.keys[-1] >= self.highs[-1]):
            return (self.keys[-1] << SHIFT) + self.bits[self.keys[-1]].bit_length() - 1
        return (self.highs[-1] << SHIFT) - 1

    def is_down_to(self, runs: int) -> bool:
        """Whether the set has at most ``runs`` runs."""
        # Each of these entries holds at least one run, so most sets need no counting. Two of them
        # may touch and be one run, but then the next call finds fewer entries.
        if len(self.keys) + len(self.lows) > runs:
            return False
        return len(self.lows) + sum(map(run_count, self.bits.values())) <= runs

    def runs(self) -> Runs:
        """Return all ids as runs."""
        firsts: list[int] = []
        ends: list[int] = []
        full_index = 0
        for key in self.keys:
            while full_index < len(self.lows) and self.lows[full_index] < key:
                _join(
                    firsts,
                    ends,
                    [self.lows[full_index] << SHIFT],
                    [self.highs[full_index] << SHIFT],
                )
                full_index += 1
            own_bits = self.bits[key]
            if own_bits.bit_count() > _ALONE_MAX:
                _join(firsts, ends, *runs_of(own_bits, key << SHIFT))
                continue
            position = key << SHIFT
            while own_bits:  # few ids, read one by one
                ahead = (own_bits & -own_bits).bit_length()
                position += ahead
                own_bits >>= ahead
                if ends and ends[-1] == position - 1:
                    ends[-1] = position
                else:
                    firsts.append(position - 1)
                    ends.append(position)
        for low, high in zip(self.lows[full_index:], self.highs[full_index:], strict=True):
            _join(firsts, ends, [low << SHIFT], [high << SHIFT])
        return firsts, ends

    def __eq__(self, other: object) -> bool:
        # `keys` follows from `bits`, so it need not be compared.
        return (
            isinstance(other, Blocks)
            and self.bits == other.bits
            and self.lows == other.lows
            and self.highs == other.highs
        )

    __hash__ = None  # type: ignore[assignment]  # mutable


def _join(firsts: list[int], ends: list[int], more_firsts: list[int], more_ends: list[int]) -> None:
    """Append runs; the first of them may touch the last existing run."""
    if ends and ends[-1] == more_firsts[0]:
        ends.pop()
        del more_firsts[0]
    firsts += more_firsts
    ends += more_ends
