"""Writes zeros behind the end of the journal, so that syncing a small block writes only data.

Reserved space reads as zeros, but on the first write to a part of it the file system has to
update its metadata. A sync waits for that update, once every few small blocks, for milliseconds.
Zeros written behind a block that is synced anyway reduce this to one update per hundreds of
blocks. Readers see no difference, because the reserved space read as zeros before.
"""

from __future__ import annotations

from typing import Final

from penstock_server.storage.embedded.recovery import JournalFile

ZEROS_BYTES: Final = 256 << 10
"""Bytes of zeros to write at a time."""
BLOCK_BYTES_MAX: Final = 8 << 10
"""Bytes of the largest block with zeros behind it.

A stream of larger blocks would write every byte twice, to save few metadata updates.
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
