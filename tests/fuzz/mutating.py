"""Input that is nearly right: bytes of the real thing, changed in a few places.

Two ways to the same changes: drawn by Hypothesis, which makes a failing one small, and by a plain
random number generator, which is fast and goes on for hours.
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
"""What is done, where (taken modulo the length), and with what."""


def changed(content: bytes, changes: Sequence[Change]) -> bytes:
    """Bytes with these changes, one after the other."""
    found = bytearray(content)
    for what, where, value in changes:
        at = where % (len(found) + 1)
        match what % 8:
            case 0 | 1:
                found[at : at + 1] = bytes((value % 256,))
            case 2:
                found[at : at + 1] = bytes(byte ^ 1 << value % 8 for byte in found[at : at + 1])
            case 3:
                at -= at % 4
                word = ODD_WORDS[value % len(ODD_WORDS)]
                found[at : at + 4] = word.to_bytes(4, "little")
            case 4:
                del found[at : at + value % 64]
            case 5:
                del found[at:]
            case 6:
                found[at:at] = found[max(0, at - value % 64) : at]
            case _:
                found[at:at] = bytes((ODD_BYTES[value % len(ODD_BYTES)],)) * (value % 16)
    return bytes(found)


def mutated(random: Random, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds, changed; now and then bytes of any kind."""
    if random.random() < 0.05:
        return random.randbytes(random.randrange(ANY_BYTES_MAX))
    count = random.randrange(1, CHANGES_MAX + 1)
    changes = [
        (random.randrange(8), random.randrange(1 << 30), random.randrange(256))
        for _ in range(count)
    ]
    return changed(random.choice(seeds), changes)


def mutations(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Changes drawn by Hypothesis."""
    change = st.tuples(st.integers(0, 7), st.integers(0, 1 << 16), st.integers(0, 255))
    changes = st.lists(change, max_size=CHANGES_MAX)
    nearly = st.builds(changed, st.sampled_from(list(seeds)), changes)
    return st.one_of(nearly, nearly, nearly, st.binary(max_size=ANY_BYTES_MAX))
