"""Writes zeros after the end of the journal, so that syncing a small block writes only data.

Reserved space reads as zeros, but on the first write to a part of it the file system has to update
its metadata. So every few small blocks, a sync waits some milliseconds for such an update. Zeros
that are written after a block, and synced together with it, reduce this to one update for hundreds
of blocks. Readers see no difference, because they read zeros before and after.
"""

from __future__ import annotations

from typing import Final

from penstock_server.storage.embedded.recovery import JournalFile

ZEROS_BYTES: Final = 256 << 10
"""Number of zero bytes to write at a time."""
BLOCK_BYTES_MAX: Final = 8 << 10
"""Size in bytes of the largest block that is followed by zeros.

With larger blocks every byte would be written twice, in order to save few metadata updates.
"""

_ZEROS: Final = memoryview(bytes(ZEROS_BYTES))


def zeros_behind(file: JournalFile, size: int, reserved: int) -> memoryview:
    """Return the zeros to write after a block of ``size`` bytes at the end of a file.

    Space is reserved up to offset ``reserved``. The result is empty if the zeros were written
    before, or if no space is reserved.
    """
    end = file.end + size
    if size > BLOCK_BYTES_MAX or end <= file.zeroed:
        return _ZEROS[:0]
    zeros = _ZEROS[: max(0, reserved - end)]
    file.zeroed = end + len(zeros)
    return zeros
