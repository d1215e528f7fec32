"""Almost valid input: valid bytes, changed in a few places.

The same changes come from two sources: Hypothesis, which minimizes a failing input, and a plain
random number generator, fast enough for runs of hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from hypothesis import strategies as st

ODD_BYTES: Final = (0, 1, 0x7F, 0x80, 0xFF)
ODD_WORDS: Final = (0, 1, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
CHANGES_MAX: Final = 6
ANY_BYTES_MAX: Final = 400

Change = tuple[int, int, int]
"""Kind of change, position (modulo the length), and value."""


def changed(content: bytes, changes: Sequence[Change]) -> bytes:
    """Apply changes one after the other."""
    data = bytearray(content)
    for kind, position, value in changes:
        offset = position % (len(data) + 1)
        match kind % 8:
            case 0 | 1:
                data[offset : offset + 1] = bytes((value % 256,))
            case 2:
                data[offset : offset + 1] = bytes(
                    byte ^ 1 << value % 8 for byte in data[offset : offset + 1]
                )
            case 3:
                offset -= offset % 4
                word = ODD_WORDS[value % len(ODD_WORDS)]
                data[offset : offset + 4] = word.to_bytes(4, "little")
            case 4:
                del data[offset : offset + value % 64]
            case 5:
                del data[offset:]
            case 6:
                data[offset:offset] = data[max(0, offset - value % 64) : offset]
            case _:
                data[offset:offset] = bytes((ODD_BYTES[value % len(ODD_BYTES)],)) * (value % 16)
    return bytes(data)


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Return a changed seed; sometimes arbitrary bytes."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(ANY_BYTES_MAX))
    count = random.randrange(1, CHANGES_MAX + 1)
    changes = [
        (random.randrange(8), random.randrange(1 << 30), random.randrange(256))
        for _ in range(count)
    ]
    return changed(random.choice(seeds), changes)


def mutations(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Return a strategy for changes drawn by Hypothesis."""
    change = st.tuples(st.integers(0, 7), st.integers(0, 1 << 16), st.integers(0, 255))
    changes = st.lists(change, max_size=CHANGES_MAX)
    nearly = st.builds(changed, st.sampled_from(list(seeds)), changes)
    return st.one_of(nearly, nearly, nearly, st.binary(max_size=ANY_BYTES_MAX))
