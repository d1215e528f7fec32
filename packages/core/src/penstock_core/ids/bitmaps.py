"""Scattered ids: the id space in blocks of 1,024, one bitmap for each block partly filled.

A set with a million gaps costs a bit an id instead of two list entries a gap, and one id changes
in one block, whatever the size of the set. Blocks filled to the last id are kept as ranges of
block numbers, so that a long range stays one entry; empty blocks are not kept at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import compress

from penstock_core.ids.ranges import Runs, cut, part, put, size

SHIFT = 10
"""Ids per block, as a power of two. Larger blocks make whole-set operations cheaper; smaller ones
make single ids cheaper, and bound what an id alone in its block can cost."""

BLOCK = 1 << SHIFT
LAST = BLOCK - 1
FULL = (1 << BLOCK) - 1

_ALONE_MAX = 8
"""Up to this number of ids of a block, which are hardly in runs, they are taken one by one."""
_FEW_PLACES = 32
"""Up to this number of places, taking the lowest bit repeatedly is faster than reading every
byte."""

_FEW_KEYS = 40
"""Up to this number of keys, deleting one by one from their list is faster."""

_BYTES = BLOCK // 8 + 1
_IN_BYTE = [[place for place in range(8) if byte >> place & 1] for byte in range(256)]


def _places(bits: int, base: int) -> list[int]:
    """The set bits, the lowest counted from ``base``."""
    if bits.bit_count() <= _FEW_PLACES:
        found = []
        while bits:
            lowest = bits & -bits
            found.append(base + lowest.bit_length() - 1)
            bits ^= lowest
        return found
    octets = bits.to_bytes(_BYTES, "little")
    offsets = compress(range(base, base + 8 * _BYTES, 8), octets)
    used = zip(offsets, filter(None, octets), strict=True)
    return [offset + place for offset, octet in used for place in _IN_BYTE[octet]]


def runs_of(bits: int, base: int) -> Runs:
    """The runs of one bitmap whose lowest bit stands for the id ``base``."""
    if bits & (bits << 1):
        edges = _places(bits ^ (bits << 1), base)
        return edges[::2], edges[1::2]
    alone = _places(bits, base)
    return alone, [place + 1 for place in alone]


def run_count(bits: int) -> int:
    """The number of runs in one bitmap."""
    return (bits & ~(bits << 1)).bit_count()


class Blocks:
    """A set of ids, by block. It does not keep count: each edit returns how many ids changed."""

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
        made = cls()
        bits, lows, highs = made.bits, made.lows, made.highs
        at, pending = -1, 0
        for first, end in zip(*runs, strict=True):
            key, last = first >> SHIFT, end >> SHIFT
            if key != at:
                if pending:
                    bits[at] = pending
                at, pending = key, 0
            if key == last:
                pending |= ((1 << (end - first)) - 1) << (first & LAST)
                continue
            if offset := first & LAST:
                bits[key] = pending | (FULL >> offset << offset)
                key += 1
            if key < last:
                lows.append(key)
                highs.append(last)
            at, pending = last, (1 << (end & LAST)) - 1
        if pending:
            bits[at] = pending
        made.keys = list(bits)
        return made

    @classmethod
    def of_ids(cls, ids: list[int]) -> Blocks:
        """The set of ``ids``, which are sorted."""
        made = cls()
        at, pending = -1, 0
        for event_id in ids:
            if event_id >> SHIFT != at:
                made._filled(at, pending)
                at, pending = event_id >> SHIFT, 0
            pending |= 1 << (event_id & LAST)
        made._filled(at, pending)
        made.keys = list(made.bits)
        return made

    def _filled(self, key: int, bits: int) -> None:
        """The next block while building in order; ``keys`` follow at the end."""
        if bits == FULL:
            put(self.lows, self.highs, key, key + 1)
        elif bits:
            self.bits[key] = bits

    @classmethod
    def union(cls, many: list[Blocks]) -> Blocks:
        """The ids that are in any of them, uncounted: a third of what adding one by one takes."""
        made = cls()
        bits, found = made.bits, made.bits.get
        for each in many:
            for key, held in each.bits.items():
                bits[key] = found(key, 0) | held
        for key in sorted(key for key, held in bits.items() if held == FULL):
            del bits[key]
            put(made.lows, made.highs, key, key + 1)
        made.keys = sorted(bits)
        for each in many:
            for low, high in zip(each.lows, each.highs, strict=True):
                made.add(low << SHIFT, high << SHIFT)
        return made

    def copy(self) -> Blocks:
        twin = Blocks()
        twin.bits, twin.keys = self.bits.copy(), self.keys[:]
        twin.lows, twin.highs = self.lows[:], self.highs[:]
        return twin

    def without(self, keys: list[int]) -> Blocks:
        """A copy without the blocks of ``keys``, which are partly filled."""
        left = self.copy()
        for key in keys:
            del left.bits[key]
        left.keys = [key for key in self.keys if key in left.bits]
        return left

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
            known = self._emptied(key, last)
            put(self.lows, self.highs, key, last)
            new += ((last - key) << SHIFT) - known
        return new

    def discard(self, first: int, end: int) -> int:
        """Take out a range that is not empty; return how many ids of it were in."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            mask = ((1 << (end - first)) - 1) << (first & LAST)
            return self.cleared(key, mask).bit_count()
        gone = 0
        if offset := first & LAST:
            gone += self.cleared(key, FULL >> offset << offset).bit_count()
            key += 1
        if offset := end & LAST:
            gone += self.cleared(last, (1 << offset) - 1).bit_count()
        return gone + self._emptied(key, last)

    def cleared(self, key: int, mask: int) -> int:
        """Take the ids of ``mask``, not all of the block, out of one block; return those it had."""
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
        held = self.bits.get(key, 0)
        if not held:
            if self._is_whole(key):
                return 0
            self._keyed(key)
        both = held | mask
        if both == FULL:
            self._dropped(key)
            put(self.lows, self.highs, key, key + 1)
        else:
            self.bits[key] = both
        return (both ^ held).bit_count()

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
        left, right = bisect_left(self.keys, key), bisect_left(self.keys, last)
        gone = sum(self.bits.pop(k).bit_count() for k in self.keys[left:right])
        del self.keys[left:right]
        return gone + (size(cut(self.lows, self.highs, key, last)) << SHIFT)

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
                both = held | extra
                if both == FULL:
                    del bits[key]
                    full.append(key)
                else:
                    bits[key] = both
        self._rekeyed(fresh, full)
        for key in full:
            put(self.lows, self.highs, key, key + 1)
        return new

    def discard_all(self, other: Blocks) -> int:
        """Take every id of ``other`` out; return how many were in."""
        if len(other.bits) > 2 * len(self.bits):
            other = self.overlap(other)
        gone = 0
        for low, high in zip(other.lows, other.highs, strict=True):
            gone += self._emptied(low, high)
        bits, fresh, empty = self.bits, [], []
        for key, theirs in other.bits.items():
            held = bits.get(key)
            if held is None:
                if self._is_whole(key):
                    cut(self.lows, self.highs, key, key + 1)
                    bits[key] = FULL ^ theirs
                    fresh.append(key)
                    gone += theirs.bit_count()
            elif hit := held & theirs:
                gone += hit.bit_count()
                if hit == held:
                    del bits[key]
                    empty.append(key)
                else:
                    bits[key] = held ^ hit
        self._rekeyed(fresh, empty)
        return gone

    def _rekeyed(self, fresh: list[int], gone: list[int]) -> None:
        """Keep ``keys`` in step after many blocks were made or dropped."""
        if len(gone) > _FEW_KEYS:
            self.keys = [key for key in self.keys if key in self.bits]
        else:
            for key in gone:
                del self.keys[bisect_left(self.keys, key)]
        if fresh:
            self.keys += fresh
            self.keys.sort()

    def overlap(self, other: Blocks) -> Blocks:
        """The ids in both sets."""
        found = Blocks()
        small, large = (self, other) if len(self.bits) < len(other.bits) else (other, self)
        bits, theirs = found.bits, large.bits
        for key, held in small.bits.items():
            if both := held & theirs.get(key, 0):
                bits[key] = both
        for low, high in zip(self.lows, self.highs, strict=True):
            bits.update(other._bits_within(low, high))
            lows, highs = part(other.lows, other.highs, low, high)
            found.lows += lows
            found.highs += highs
        for low, high in zip(other.lows, other.highs, strict=True):
            bits.update(self._bits_within(low, high))
        found.keys = sorted(bits)
        return found

    def _bits_within(self, low: int, high: int) -> dict[int, int]:
        keys = self._keys_within(low, high)
        if len(keys) == len(self.keys):
            return self.bits
        return {key: self.bits[key] for key in keys}

    def _keys_within(self, low: int, high: int) -> list[int]:
        return self.keys[bisect_left(self.keys, low) : bisect_left(self.keys, high)]

    # --- questions -------------------------------------------------------------------------

    def within(self, first: int, end: int) -> Blocks:
        """The ids inside a range that is not empty."""
        found = Blocks()
        low, high = first >> SHIFT, ((end - 1) >> SHIFT) + 1
        found.keys = self._keys_within(low, high)
        found.bits = {key: self.bits[key] for key in found.keys}
        found.lows, found.highs = part(self.lows, self.highs, low, high)
        if offset := first & LAST:
            found.cleared(low, (1 << offset) - 1)
        if offset := end & LAST:
            found.cleared(high - 1, FULL >> offset << offset)
        return found

    def bits_at(self, key: int) -> int:
        """The bitmap of one block, empty and full ones too."""
        held = self.bits.get(key)
        if held is None:
            return FULL if self._is_whole(key) else 0
        return held

    @property
    def size(self) -> int:
        """The number of ids, counted."""
        full = size((self.lows, self.highs))
        return sum(map(int.bit_count, self.bits.values())) + (full << SHIFT)

    def count(self, first: int, end: int) -> int:
        """The number of ids in a range that is not empty."""
        key, last = first >> SHIFT, end >> SHIFT
        if key == last:
            return (self.bits_at(key) >> (first & LAST) & ((1 << (end - first)) - 1)).bit_count()
        found = 0
        if offset := first & LAST:
            found += (self.bits_at(key) >> offset).bit_count()
            key += 1
        if offset := end & LAST:
            found += (self.bits_at(last) & ((1 << offset) - 1)).bit_count()
        found += sum(self.bits[k].bit_count() for k in self._keys_within(key, last))
        return found + (size(part(self.lows, self.highs, key, last)) << SHIFT)

    def end_of(self, count: int) -> int:
        """The id behind the lowest ``count`` ids; there are at least as many."""
        whole = 0
        for key in self.keys:
            while whole < len(self.lows) and self.lows[whole] < key:
                there = (self.highs[whole] - self.lows[whole]) << SHIFT
                if there >= count:
                    return (self.lows[whole] << SHIFT) + count
                count -= there
                whole += 1
            held = self.bits[key]
            if (there := held.bit_count()) >= count:
                ends = range(1, BLOCK + 1)
                at = bisect_left(ends, count, key=lambda end: (held & ((1 << end) - 1)).bit_count())
                return (key << SHIFT) + ends[at]
            count -= there
        for low, high in zip(self.lows[whole:], self.highs[whole:], strict=True):
            if (there := (high - low) << SHIFT) >= count:
                return (low << SHIFT) + count
            count -= there
        raise ValueError("there are not so many ids")

    def next_run(self, at_or_after: int, limit: int) -> tuple[int, int] | None:
        """The lowest run at or after an id, cut to ``limit`` ids."""
        first = self._first(at_or_after)
        if first is None:
            return None
        end, most = first, first + limit
        while end < most:
            key, offset = end >> SHIFT, end & LAST
            held = self.bits.get(key)
            if held is not None:
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
        """The lowest id at or after one."""
        key, offset = at_or_after >> SHIFT, at_or_after & LAST
        if held := self.bits.get(key, 0) >> offset:
            return at_or_after + (held & -held).bit_length() - 1
        i = bisect_right(self.highs, key)
        whole = self.lows[i] if i < len(self.lows) else None
        if whole is not None and whole <= key:
            return at_or_after
        j = bisect_right(self.keys, key)
        if j == len(self.keys):
            return None if whole is None else whole << SHIFT
        mixed = self.keys[j]
        if whole is not None and whole < mixed:
            return whole << SHIFT
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
        """Whether at most ``runs`` runs are left, blocks counted one by one. Cheap when not."""
        if len(self.keys) + len(self.lows) > runs:
            return False
        return len(self.lows) + sum(map(run_count, self.bits.values())) <= runs

    def runs(self) -> Runs:
        """All ids as runs."""
        firsts: list[int] = []
        ends: list[int] = []
        whole = 0
        for key in self.keys:
            while whole < len(self.lows) and self.lows[whole] < key:
                _join(firsts, ends, [self.lows[whole] << SHIFT], [self.highs[whole] << SHIFT])
                whole += 1
            held = self.bits[key]
            if held.bit_count() > _ALONE_MAX:
                _join(firsts, ends, *runs_of(held, key << SHIFT))
                continue
            at = key << SHIFT
            while held:  # a few, one by one
                ahead = (held & -held).bit_length()
                at += ahead
                held >>= ahead
                if ends and ends[-1] == at - 1:
                    ends[-1] = at
                else:
                    firsts.append(at - 1)
                    ends.append(at)
        for low, high in zip(self.lows[whole:], self.highs[whole:], strict=True):
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
