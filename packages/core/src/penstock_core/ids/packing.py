"""The packed form of a set of ids in stored facts and snapshots: format 1.

One byte with the version, then pieces in the order of their ids. Each piece begins with a number
that holds its kind in the lowest bit and, in the higher bits, the distance from the end of the
previous piece. Numbers are unsigned LEB128.

- kind 0, a run: the distance in ids, then the number of ids.
- kind 1, bitmaps: the distance in blocks of 1,024 ids (from the first block that begins at or
  after the end of the previous piece), then the number of blocks, then 128 bytes for each,
  little-endian.

A block is a bitmap exactly if it has more than 48 runs, which would take more bytes than the
bitmap. Runs are cut only where such a block begins, so equal sets have equal bytes.
"""

from __future__ import annotations

from bisect import bisect_left

from penstock_core.ids.bitmaps import BLOCK, SHIFT, Blocks, run_count

_VERSION = 1
_RUN, _BITMAPS = 0, 1
"""Kinds of pieces."""
_DENSE_RUNS = 48
"""A block with more runs than this is written as a bitmap."""
_BYTES = BLOCK // 8
"""Number of bytes of a bitmap."""
_END = 1 << 63
"""Ids are below this number, because they fit a signed 64-bit column."""


def pack(blocks: Blocks) -> bytes:
    """Return the packed form of a set. Raises ``ValueError`` if it has a negative id."""
    dense = [key for key in blocks.keys if run_count(blocks.bits[key]) > _DENSE_RUNS]
    sparse = blocks.without(dense) if dense else blocks
    firsts, ends = sparse.runs()
    out = bytearray((_VERSION,))
    position = i = 0
    for low, high in _ranges_of_keys(dense):
        stop = bisect_left(firsts, low << SHIFT, i)
        position = _write_runs(out, position, firsts[i:stop], ends[i:stop])
        i = stop
        # The distance counts from the first block behind the previous piece, rounded up.
        _write(out, (low - (position + BLOCK - 1 >> SHIFT)) << 1 | _BITMAPS)
        _write(out, high - low)
        out += b"".join(blocks.bits[key].to_bytes(_BYTES, "little") for key in range(low, high))
        position = high << SHIFT
    _write_runs(out, position, firsts[i:], ends[i:])
    return bytes(out)


def _ranges_of_keys(keys: list[int]) -> list[tuple[int, int]]:
    """Return sorted block numbers as ranges: the first number, and the number after the last."""
    ranges: list[tuple[int, int]] = []
    low = high = -1
    for key in keys:
        if key != high:
            if high > low:
                ranges.append((low, high))
            low = key
        high = key + 1
    return [*ranges, (low, high)] if high > low else ranges


def _write_runs(out: bytearray, position: int, firsts: list[int], ends: list[int]) -> int:
    """Append runs; return the end of the last one."""
    append = out.append
    for first, end in zip(firsts, ends, strict=True):
        gap, size = (first - position) << 1, end - first  # kind 0
        # The frequent lengths of numbers are written here, without the call of `_write`.
        if 127 < gap < 16_384:
            append(gap & 127 | 128)
            append(gap >> 7)
        else:
            _write(out, gap)
        if size < 128:
            append(size)
        else:
            _write(out, size)
        position = end
    return position


def _write(out: bytearray, number: int) -> None:
    """Append an unsigned LEB128 number. Raises ``ValueError`` if it is negative."""
    if number < 0:
        raise ValueError("a set with negative ids has no packed form")
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def unpack(packed: bytes) -> Blocks:
    """Return the set whose packed form is ``packed``. Raises ``ValueError``, with the reason, for
    bytes that :func:`pack` does not write."""
    if not packed or packed[0] != _VERSION:
        raise ValueError(f"not a packed set of ids of version {_VERSION}")
    reader = _PackedReader(packed)
    while reader.offset < len(packed):
        reader.read_piece()
    blocks = Blocks.of_runs((reader.firsts, reader.ends))
    # Such a block should be a bitmap: otherwise a set would have two packed forms.
    if any(run_count(bits) > _DENSE_RUNS for bits in blocks.bits.values()):
        raise ValueError("a packed block of ids is in runs where a bitmap is shorter")
    blocks.bits.update(reader.bitmaps)
    blocks.keys = sorted(blocks.bits)
    return blocks


class _PackedReader:
    """Reads the pieces of a packed set one after the other, into runs and bitmaps."""

    __slots__ = ("at", "bitmaps", "ends", "firsts", "kind", "offset", "packed")

    def __init__(self, packed: bytes) -> None:
        self.packed = packed
        self.offset = 1
        """Offset of the next byte to read; the first byte is the version."""
        self.at = 0
        """The id after the last id of the previous piece."""
        self.kind: int | None = None
        """Kind of the previous piece."""
        self.firsts: list[int] = []
        self.ends: list[int] = []
        self.bitmaps: dict[int, int] = {}

    def read_piece(self) -> None:
        """Read the next piece. Raises ``ValueError``."""
        head, amount = self._number(), self._number()
        kind, distance = head & 1, head >> 1
        if not amount:
            raise ValueError("a piece of a packed set of ids is empty")
        if not distance and kind == self.kind:
            # Otherwise a set would have several packed forms, but equal sets have equal bytes.
            raise ValueError("two pieces of a packed set of ids should be one")
        if kind == _RUN:
            self.firsts.append(self.at + distance)
            self.at += distance + amount
            self.ends.append(self.at)
        else:
            low = (self.at + BLOCK - 1 >> SHIFT) + distance
            self._bitmaps(low, amount)
            self.at = (low + amount) << SHIFT
        if self.at > _END:
            raise ValueError("a packed set of ids goes beyond 64 bits")
        self.kind = kind

    def _bitmaps(self, low: int, amount: int) -> None:
        """Read the bitmaps of ``amount`` blocks from ``low`` on. Raises ``ValueError``."""
        # Checked before the loop, which a damaged number would make very long.
        if amount * _BYTES > len(self.packed) - self.offset:
            raise ValueError("a packed set of ids is cut short")
        for key in range(low, low + amount):
            end = self.offset + _BYTES
            bits = int.from_bytes(self.packed[self.offset : end], "little")
            if run_count(bits) <= _DENSE_RUNS:
                raise ValueError("a packed block of ids is a bitmap where runs are shorter")
            self.bitmaps[key] = bits
            self.offset = end

    def _number(self) -> int:
        """Read an unsigned LEB128 number. Raises ``ValueError``."""
        number = shift = 0
        # A 64-bit number takes at most ten bytes of seven bits.
        for byte in self.packed[self.offset : self.offset + 10]:
            self.offset += 1
            number |= (byte & 127) << shift
            if byte < 128:
                if not byte and shift:
                    # Only one form of a number is valid, so that equal sets have equal bytes.
                    raise ValueError("a number in a packed set of ids is written too long")
                return number
            shift += 7
        raise ValueError("a packed set of ids is cut short")
