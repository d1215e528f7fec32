"""Zeros written ahead: a small block that is synced finds room the file system knows of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import Buffer
from penstock_server.storage.embedded.ahead import BLOCK_BYTES_MAX, ZEROS_BYTES, zeros_behind
from penstock_server.storage.embedded.frames import FILE_HEADER_SIZE
from penstock_server.storage.embedded.recovery import JournalFile
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store
from tests.loops import on_a_loop

ROOM = 1 << 30


def empty_file() -> JournalFile:
    return JournalFile("path", 0, 1)


def test_zeros_are_written_once_for_many_blocks() -> None:
    file, written = empty_file(), []
    for _ in range(3 * ZEROS_BYTES // 512):
        written.append(len(zeros_behind(file, 512, ROOM)))
        file.end += 512

    assert [size for size in written if size] == [ZEROS_BYTES] * 3
    assert bytes(zeros_behind(empty_file(), 512, ROOM)) == bytes(ZEROS_BYTES)


def test_zeros_stay_within_the_reserved_space() -> None:
    file = empty_file()
    end = FILE_HEADER_SIZE + 512

    assert len(zeros_behind(file, 512, end + 100)) == 100
    assert file.zeroed == end + 100
    assert not zeros_behind(empty_file(), 512, end)
    assert not zeros_behind(empty_file(), 512, 0)  # nothing is reserved at all


@pytest.mark.parametrize("size", [BLOCK_BYTES_MAX + 8, ZEROS_BYTES])
def test_no_zeros_are_written_after_a_large_block(size: int) -> None:
    file = empty_file()

    assert not zeros_behind(file, size, ROOM)
    file.end += size
    assert len(zeros_behind(file, 512, ROOM)) == ZEROS_BYTES


class Recording(FaultyDisk):
    """A disk that notes how much was written at a time, from now on."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[int] = []

    def pwrite(self, file: int, chunks: Sequence[Buffer], offset: int) -> None:
        self.written.append(sum(len(chunk) for chunk in chunks))
        super().pwrite(file, chunks, offset)


@on_a_loop
async def test_the_journal_writes_zeros_after_synced_small_blocks() -> None:
    disk = Recording()
    journal = open_store("/realm", disk, allocation_bytes=1 << 19).journal

    disk.written.clear()
    tail = await journal.append(0, [b"not synced"], sync=False)
    for block in (b"small", b"small", bytes(BLOCK_BYTES_MAX)):
        tail = await journal.append(tail, [block])
    disk.fail_writes()
    with pytest.raises(StorageFailed):
        await journal.append(tail, [b"small"])
    await journal.append(tail, [b"small"])  # behind it the file was cut off
    sizes = [size // 1_024 for size in disk.written]

    assert sizes == [0, 256, 0, BLOCK_BYTES_MAX // 1_024, 0, 256]
    disk.kill()
    assert open_store("/realm", disk).journal.info().tail == 5
