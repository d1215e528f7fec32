"""Headers and padding between the files of a tar that is written as a stream."""

from __future__ import annotations

from typing import Final

BLOCK: Final = 512
"""Bytes of a block: headers have one, and files are padded to whole blocks."""
END: Final = bytes(2 * BLOCK)
"""The bytes at the end of a tar."""


def header(name: str, size: int, at_us: int) -> bytes:
    """Return the header before a file that only its owner may read."""
    import tarfile  # here, because only exports and backups need it

    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = size, 0o600, at_us // 1_000_000
    return entry.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """Return the bytes after a file of ``size`` bytes."""
    return bytes(-size % BLOCK)


def room(size: int) -> int:
    """Return the number of bytes that a tar archive needs for a file of ``size`` bytes with a short
    name."""
    return BLOCK + size + len(padding(size))
