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
LAST = BLOCK - 1
FULL = (1 << BLOCK) - 1

_ALONE_MAX = 8
"""Up to this number of ids in a block, which are rarely in runs, they are read one by one."""
_FEW_PLACES = 32
"""Up to this number of set bits, taking the lowest bit repeatedly is faster than reading every
byte."""

_FEW_KEYS = 40
"""Up to this number of keys, deleting them one by one from their list is faster."""

_BYTES = BLOCK // 8 + 1
_IN_BYTE = [[place for place in range(8) if byte >> place & 1] for byte in range(256)]


def _places(bits: int, base: int) -> list[int]:
    """Return the positions of the set bits, counted from ``base``."""
    if bits.bit_count() <= _FEW_PLACES:
        positions = []
        while bits:
            lowest = bits & -bits
            positions.append(base + lowest.bit_length() - 1)
            bits ^= lowest
        return positions
    octets = bits.to_bytes(_BYTES, "little")
    offsets = compress(range(base, base + 8 * _BYTES, 8), octets)
    used = zip(offsets, filter(None, octets), strict=True)
    return [offset + place for offset, octet in used for place in _IN_BYTE[octet]]


def runs_of(bits: int, base: int) -> Runs:
    """Return the runs of one bitmap whose lowest bit stands for the id ``base``."""
    if bits & (bits << 1):
        edges = _places(bits ^ (bits << 1), base)
        return edges[::2], edges[1::2]
    alone = _places(bits, base)
    return alone, [place + 1 for place in alone]


def run_count(bits: int) -> int:
    """Return the number of runs in one bitmap."""
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
        """Runs of full blocks by number, with ``highs``."""
        self.highs: list[int] = []

    @classmethod
    def of_runs(cls, runs: Runs) -> Blocks:
        """Return the set of sorted, disjoint runs."""
        made = cls()
        bits, lows, highs = made.bits, made.lows, made.highs
        current, pending = -1, 0
        for first, end in zip(*runs, strict=True):
            key, last = first >> SHIFT, end >> SHIFT
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
            current, pending = last, (1 << (end & LAST)) - 1
        if pending:
            bits[current] = pending
        made.keys = list(bits)
        return made

    @classmethod
    def of_ids(cls, ids: list[int]) -> Blocks:
        """Return the set of ``ids``, which are sorted."""
        made = cls()
        current, pending = -1, 0
        for event_id in ids:
            if event_id >> SHIFT != current:
                made._filled(current, pending)
                current, pending = event_id >> SHIFT, 0
            pending |= 1 << (event_id & LAST)
        made._filled(current, pending)
        made.keys = list(made.bits)
        return made

    def _filled(self, key: int, bits: int) -> None:
        """Add the next block while building in ascending order; ``keys`` are set at the end."""
        if bits == FULL:
            put(self.lows, self.highs, key, key + 1)
        elif bits:
            self.bits[key] = bits

    @classmethod
    def union(cls, many: list[Blocks]) -> Blocks:
        """Return the ids that are in any of the sets. This takes a third of the time of adding one
        set after the other, because it does not count."""
        made = cls()
        bits, bits_of = made.bits, made.bits.get
        for blocks in many:
            for key, held in blocks.bits.items():
                bits[key] = bits_of(key, 0) | held
        for key in sorted(key for key, held in bits.items() if held == FULL):
            del bits[key]
            put(made.lows, made.highs, key, key + 1)
        made.keys = sorted(bits)
        for blocks in many:
            for low, high in zip(blocks.lows, blocks.highs, strict=True):
                made.add(low << SHIFT, high << SHIFT)
        return made

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
            return self._set(key, ((1 << (end - first)) - 1) << (first & LAST))
        new = 0
        if offset := first & LAST:
            new += self._set(key, FULL >> offset << offset)
            key += 1
        if offset := end & LAST:
            new += self._set(last, (1 << offset) - 1)
        if key < last:
            present = self._emptied(key, last)
            put(self.lows, self.highs, key, last)
            new += ((last - key) << SHIFT) - present
        return new

    def discard(self, first: int, end: int) -> int:
        """Remove a range that is not empty; return how many of its ids were in the set."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            mask = ((1 << (end - first)) - 1) << (first & LAST)
            return self.cleared(key, mask).bit_count()
        removed = 0
        if offset := first & LAST:
            removed += self.cleared(key, FULL >> offset << offset).bit_count()
            key += 1
        if offset := end & LAST:
            removed += self.cleared(last, (1 << offset) - 1).bit_count()
        return removed + self._emptied(key, last)

    def cleared(self, key: int, mask: int) -> int:
        """Remove the ids of ``mask``, which is not a whole block, from one block; return those that
        were in it."""
        held = self.bits.get(key)
        if held is None:
            if not self._is_whole(key):
                return 0
            cut(self.lows, self.highs, key, key + 1)
            self.bits[key] = FULL ^ mask
            self._keyed(key)
            return mask
        hit = held & mask
        if hit:
            if hit == held:
                self._dropped(key)
            else:
                self.bits[key] = held ^ hit
        return hit

    def _set(self, key: int, mask: int) -> int:
        """Add the ids of ``mask`` to one block; return how many are new."""
        held = self.bits.get(key, 0)
        if not held:
            if self._is_whole(key):
                return 0
            self._keyed(key)
        merged_bits = held | mask
        if merged_bits == FULL:
            self._dropped(key)
            put(self.lows, self.highs, key, key + 1)
        else:
            self.bits[key] = merged_bits
        return (merged_bits ^ held).bit_count()

    def _is_whole(self, key: int) -> bool:
        i = bisect_right(self.lows, key)
        return i > 0 and key < self.highs[i - 1]

    def _keyed(self, key: int) -> None:
        keys = self.keys
        if not keys or key > keys[-1]:
            keys.append(key)
        else:
            insort(keys, key)

    def _dropped(self, key: int) -> None:
        self.bits.pop(key, None)
        del self.keys[bisect_left(self.keys, key)]

    def _emptied(self, key: int, last: int) -> int:
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
        for key, theirs in other.bits.items():
            held = bits.get(key)
            if held is None:
                if not self._is_whole(key):
                    bits[key] = theirs
                    fresh.append(key)
                    new += theirs.bit_count()
            elif extra := theirs & ~held:
                new += extra.bit_count()
                merged_bits = held | extra
                if merged_bits == FULL:
                    del bits[key]
                    full.append(key)
                else:
                    bits[key] = merged_bits
        self._rekeyed(fresh, full)
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
            removed += self._emptied(low, high)
        bits, fresh, empty = self.bits, [], []
        for key, theirs in removals.bits.items():
            held = bits.get(key)
            if held is None:
                if self._is_whole(key):
                    cut(self.lows, self.highs, key, key + 1)
                    bits[key] = FULL ^ theirs
                    fresh.append(key)
                    removed += theirs.bit_count()
            elif hit := held & theirs:
                removed += hit.bit_count()
                if hit == held:
                    del bits[key]
                    empty.append(key)
                else:
                    bits[key] = held ^ hit
        self._rekeyed(fresh, empty)
        return removed

    def _rekeyed(self, fresh: list[int], removed: list[int]) -> None:
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
        bits, theirs = common.bits, large.bits
        for key, held in small.bits.items():
            if common_bits := held & theirs.get(key, 0):
                bits[key] = common_bits
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
            inside.cleared(low, (1 << offset) - 1)
        if offset := end & LAST:
            inside.cleared(high - 1, FULL >> offset << offset)
        return inside

    def bits_at(self, key: int) -> int:
        """Return the bitmap of any block, including empty and full ones."""
        held = self.bits.get(key)
        if held is None:
            return FULL if self._is_whole(key) else 0
        return held

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
        """Return the id behind the lowest ``count`` ids. Raises ``ValueError`` if the set has
        fewer."""
        full_index = 0
        for key in self.keys:
            while full_index < len(self.lows) and self.lows[full_index] < key:
                block_size = (self.highs[full_index] - self.lows[full_index]) << SHIFT
                if block_size >= count:
                    return (self.lows[full_index] << SHIFT) + count
                count -= block_size
                full_index += 1
            held = self.bits[key]
            if (block_size := held.bit_count()) >= count:
                ends = range(1, BLOCK + 1)
                index = bisect_left(
                    ends, count, key=lambda end: (held & ((1 << end) - 1)).bit_count()
                )
                return (key << SHIFT) + ends[index]
            count -= block_size
        for low, high in zip(self.lows[full_index:], self.highs[full_index:], strict=True):
            if (block_size := (high - low) << SHIFT) >= count:
                return (low << SHIFT) + count
            count -= block_size
        raise ValueError("the set has fewer ids")

    def next_run(self, at_or_after: int, limit: int) -> tuple[int, int] | None:
        """Return the lowest run at or after an id, cut to ``limit`` ids."""
        first = self._first(at_or_after)
        if first is None:
            return None
        end, most = first, first + limit
        while end < most:
            key, offset = end >> SHIFT, end & LAST
            held = self.bits.get(key)
            if held is not None:
                # The lowest zero bit of `held`: so many ids in a row are in the set.
                held >>= offset
                end += (~held & (held + 1)).bit_length() - 1
                if end >> SHIFT == key:
                    break
                continue
            i = bisect_right(self.lows, key) - 1
            if i < 0 or self.highs[i] <= key:
                break
            end = self.highs[i] << SHIFT
        return first, min(end, most)

    def _first(self, at_or_after: int) -> int | None:
        """Return the lowest id at or after ``at_or_after``."""
        key, offset = at_or_after >> SHIFT, at_or_after & LAST
        if held := self.bits.get(key, 0) >> offset:
            return at_or_after + (held & -held).bit_length() - 1
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
        held = self.bits[mixed]
        return (mixed << SHIFT) + (held & -held).bit_length() - 1

    @property
    def lowest(self) -> int:
        """The lowest id of a set that is not empty."""
        if self.keys and (not self.lows or self.keys[0] < self.lows[0]):
            held = self.bits[self.keys[0]]
            return (self.keys[0] << SHIFT) + (held & -held).bit_length() - 1
        return self.lows[0] << SHIFT

    @property
    def highest(self) -> int:
        """The highest id of a set that is not empty."""
        if self.keys and (not self.highs or self.keys[-1] >= self.highs[-1]):
            return (self.keys[-1] << SHIFT) + self.bits[self.keys[-1]].bit_length() - 1
        return (self.highs[-1] << SHIFT) - 1

    def is_down_to(self, runs: int) -> bool:
        """Whether at most ``runs`` runs are left. Cheap if the blocks alone are more than that."""
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
            held = self.bits[key]
            if held.bit_count() > _ALONE_MAX:
                _join(firsts, ends, *runs_of(held, key << SHIFT))
                continue
            position = key << SHIFT
            while held:  # few ids, read one by one
                ahead = (held & -held).bit_length()
                position += ahead
                held >>= ahead
                if ends and ends[-1] == position - 1:
                    ends[-1] = position
                else:
                    firsts.append(position - 1)
                    ends.append(position)
        for low, high in zip(self.lows[full_index:], self.highs[full_index:], strict=True):
            _join(firsts, ends, [low << SHIFT], [high << SHIFT])
        return firsts, ends

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Blocks)
            and self.bits == other.bits
            and self.lows == other.lows
            and self.highs == other.highs
        )

    __hash__ = None  # type: ignore[assignment]  # mutable


def _join(firsts: list[int], ends: list[int], more_firsts: list[int], more_ends: list[int]) -> None:
    """Append runs, the first of which may touch the last existing one."""
    if ends and ends[-1] == more_firsts[0]:
        ends.pop()
        del more_firsts[0]
    firsts += more_firsts
    ends += more_ends
