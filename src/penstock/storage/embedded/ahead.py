"""Zeros written ahead of the journal's end, so that syncing a small block writes data alone.

Reserved room reads as zeros, but the file system has to note of each part of it, when it is first
written, that it has something now: a sync waits for that note, too, once in every few small
blocks, and that takes milliseconds. Zeros behind a block that is synced anyway make it one note
for hundreds of blocks. They are what was there before, to whoever reads the file.
"""

from __future__ import annotations

from typing import Final

from penstock.storage.embedded.recovery import JournalFile

ZEROS_BYTES: Final = 256 << 10
"""How much at a time."""
BLOCK_BYTES_MAX: Final = 8 << 10
"""Behind a larger block there are none: every byte of a stream of those would be written twice,
and each of them needs the note but once."""

_ZEROS: Final = memoryview(bytes(ZEROS_BYTES))


def zeros_behind(file: JournalFile, size: int, reserved: int) -> memoryview:
    """What to write behind a block of ``size`` bytes at the end of a file with room until
    ``reserved``; nothing where there are zeros, or no room."""
    end = file.end + size
    if size > BLOCK_BYTES_MAX or end <= file.zeroed:
        return _ZEROS[:0]
    zeros = _ZEROS[: max(0, reserved - end)]
    file.zeroed = end + len(zeros)
    return zeros
