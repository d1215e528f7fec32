"""A journal handles damaged bytes: torn tails, flipped bits, gaps, foreign files (SEM S1)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock_core.vocabulary.errors import StorageFailed
from penstock_core.vocabulary.ports import Block, DamagedBlock, Journal
from penstock_server.storage.embedded import Embedded
from penstock_server.storage.embedded.frames import BLOCK_HEADER_SIZE, FILE_HEADER_SIZE, padded
from penstock_testing.disk import FaultyDisk
from penstock_testing.stores import open_store
from tests.loops import on_a_loop

LOG = "/realm/journal/00000000000000000001.log"
BLOCKS = [b"first", b"second block", b"third", b"the fourth and last"]

pytestmark = pytest.mark.spec("S1")


def open_it(disk: FaultyDisk, *, file_bytes_max: int = 1 << 20) -> Embedded:
    return open_store("/realm", disk, file_bytes_max=file_bytes_max, allocation_bytes=0)


def written(
    blocks: Sequence[bytes] = BLOCKS,
    *,
    file_bytes_max: int = 1 << 20,
    close: bool = False,
    sync: bool = True,
) -> FaultyDisk:
    """A disk with a journal of these blocks whose process ended, orderly or not."""
    disk = FaultyDisk()
    journal = open_it(disk, file_bytes_max=file_bytes_max).journal
    write(journal, blocks, sync=sync)
    if close:
        asyncio.run(journal.close())
    disk.kill()
    return disk


@on_a_loop
async def write(journal: Journal, blocks: Sequence[bytes], *, sync: bool = True) -> None:
    for number, block in enumerate(blocks):
        await journal.append(number, [block], sync=sync)


def read(store: Embedded) -> list[Block | DamagedBlock]:
    return asyncio.run(store.journal.read(store.journal.info().floor + 1, 10**9))


def served(store: Embedded) -> dict[int, bytes]:
    return {block.seq: bytes(block.data) for block in read(store) if isinstance(block, Block)}


def damaged(store: Embedded) -> list[tuple[int, int]]:
    return [(hurt.seq, hurt.count) for hurt in read(store) if isinstance(hurt, DamagedBlock)]


def start_of(number: int, blocks: Sequence[bytes] = BLOCKS) -> int:
    """Return the offset of block ``number`` in its file."""
    return FILE_HEADER_SIZE + sum(padded(len(block)) for block in blocks[: number - 1])


def quarantined(disk: FaultyDisk) -> dict[str, bytes]:
    try:
        entries = disk.list("/realm/quarantine")
    except FileNotFoundError:
        return {}
    return {entry.name: disk.content(f"/realm/quarantine/{entry.name}") for entry in entries}


def everything(number: int) -> dict[int, bytes]:
    return dict(enumerate(BLOCKS[:number], 1))


@pytest.mark.slow
@pytest.mark.parametrize("size", range(start_of(4), start_of(5)))
def test_a_tail_torn_at_any_byte_is_cut_to_the_last_whole_block(size: int) -> None:
    disk = written()
    content = disk.content(LOG)
    disk.shorten(LOG, size)

    store = open_it(disk)

    padding = size >= start_of(4) + BLOCK_HEADER_SIZE + len(BLOCKS[3])
    kept = 4 if padding else 3
    assert served(store) == everything(kept)
    assert damaged(store) == []
    assert asyncio.run(store.journal.append(kept, [b"next"])) == kept + 1
    torn = content[start_of(4) : size].rstrip(b"\0")
    aside = b"".join(quarantined(disk).values())
    assert aside == (b"" if kept == 4 else torn)


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(start_of(4), start_of(5) - 5))
def test_a_flipped_bit_in_a_tail_that_may_be_unsynced_cuts_it(offset: int) -> None:
    disk = written()
    disk.flip(LOG, offset)
    hurt = disk.content(LOG)[start_of(4) :].rstrip(b"\0")

    store = open_it(disk)

    assert served(store) == everything(3)
    assert store.journal.info().cut >= len(hurt)
    assert list(quarantined(disk).values()) == [hurt]


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(start_of(4), start_of(5) - 5, 3))
def test_after_an_orderly_close_the_last_block_is_damage_not_a_tail(offset: int) -> None:
    disk = written(close=True)
    disk.flip(LOG, offset)

    store = open_it(disk)

    assert served(store) == everything(3)
    assert damaged(store) == [(4, 1)]
    assert store.journal.info().cut == 0
    assert asyncio.run(store.journal.append(4, [b"next"])) == 5
    disk.kill()
    again = open_it(disk)
    assert served(again) == everything(3) | {5: b"next"}
    assert damaged(again) == [(4, 1)]
    assert len(quarantined(disk)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_flipped_bit_anywhere_in_a_block_hides_that_block_only(number: int) -> None:
    start = start_of(number)
    for offset in range(start, start + BLOCK_HEADER_SIZE + len(BLOCKS[number - 1])):
        disk = written()
        disk.flip(LOG, offset, bit=offset % 8)
        before = disk.content(LOG)

        store = open_it(disk)

        rest = everything(4)
        del rest[number]
        assert served(store) == rest, offset
        assert damaged(store) == [(number, 1)], offset
        assert disk.content(LOG) == before, "damaged bytes stay where they are"
        assert list(quarantined(disk).values()) == [before[start : start_of(number + 1)]]
        disk.kill()
        assert served(open_it(disk)) == rest
        assert len(quarantined(disk)) == 1, "they are copied once"


def test_damage_has_its_position_and_reason() -> None:
    disk = written()
    disk.flip(LOG, start_of(2) + BLOCK_HEADER_SIZE)

    (hurt,) = open_it(disk).journal.damage

    assert hurt.where == f"{LOG} bytes {start_of(2)}-{start_of(3)}"
    assert hurt.reason == "the payload fails its checksum"
    assert hurt.size == padded(len(BLOCKS[1]))


def test_two_damaged_headers_in_a_row_are_one_report() -> None:
    disk = written()
    disk.flip(LOG, start_of(2))
    disk.flip(LOG, start_of(3))

    store = open_it(disk)

    assert damaged(store) == [(2, 2)]
    (inner,) = asyncio.run(store.journal.read(3, 1))
    assert isinstance(inner, DamagedBlock)
    assert (inner.seq, inner.count) == (3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(FILE_HEADER_SIZE))
def test_a_damaged_file_header_hides_nothing(offset: int) -> None:
    disk = written()
    disk.flip(LOG, offset)

    store = open_it(disk)

    assert served(store) == everything(4)
    assert asyncio.run(store.journal.append(4, [b"next"])) == 5


def test_unsynced_blocks_behind_a_torn_one_go_with_it() -> None:
    disk = written(sync=False)
    disk.flip(LOG, start_of(2) + BLOCK_HEADER_SIZE)

    store = open_it(disk)

    assert served(store) == everything(1)
    assert damaged(store) == []
    aside = b"".join(quarantined(disk).values())
    assert BLOCKS[3] in aside, "cut bytes are kept"
    assert len(disk.content(LOG)) == start_of(2), "and gone from the file"


def test_a_block_from_another_history_breaks_the_chain() -> None:
    second_history = written([b"first", b"SECOND BLOCK", b"third", b"the fourth and last"])
    disk = written(close=True)
    swapped = second_history.content(LOG)[start_of(2) : start_of(3)]
    file = disk.open(LOG)
    disk.pwrite(file, [swapped], start_of(2))
    disk.datasync(file)
    disk.close(file)

    store = open_it(disk)

    (hurt,) = store.journal.damage
    assert hurt.seq == 3
    assert "chain" in hurt.reason


def test_published_bytes_that_look_like_a_block_are_not_taken_for_one() -> None:
    elsewhere = FaultyDisk()
    second_journal = open_store("/realm", elsewhere, identity=4711).journal
    for number, block in enumerate(BLOCKS):
        asyncio.run(second_journal.append(number, [block]))
    blocks = [b"x", elsewhere.content(LOG), b"y"]
    disk = written(blocks)
    disk.flip(LOG, start_of(2, blocks))

    store = open_it(disk)

    assert served(store) == {1: b"x", 3: b"y"}
    assert damaged(store) == [(2, 1)]


def small_files() -> FaultyDisk:
    """Six blocks, one a file."""
    return written([b"block %d" % n for n in range(1, 7)], file_bytes_max=100)


def test_a_missing_file_is_damage_in_its_place() -> None:
    disk = small_files()
    disk.unlink("/realm/journal/00000000000000000003.log")
    disk.unlink("/realm/journal/00000000000000000004.log")

    store = open_it(disk)

    assert sorted(served(store)) == [1, 2, 5, 6]
    assert damaged(store) == [(3, 2)]


def test_missing_first_and_last_files_are_damage_too() -> None:
    disk = written([b"block %d" % n for n in range(1, 7)], file_bytes_max=100, close=True)
    disk.unlink("/realm/journal/00000000000000000001.log")
    disk.unlink("/realm/journal/00000000000000000006.log")

    store = open_it(disk)

    assert sorted(served(store)) == [2, 3, 4, 5]
    assert damaged(store) == [(1, 1), (6, 1)]
    assert asyncio.run(store.journal.append(6, [b"next"])) == 7


def test_a_shortened_file_in_the_middle_loses_only_its_blocks() -> None:
    disk = small_files()
    disk.shorten("/realm/journal/00000000000000000003.log", FILE_HEADER_SIZE + 10)

    store = open_it(disk)

    assert sorted(served(store)) == [1, 2, 4, 5, 6]
    assert damaged(store) == [(3, 1)]


def test_foreign_files_are_not_changed() -> None:
    disk = written()
    for name in ("notes.txt", "7.log", "0000000000000000000x.log"):
        disk.close(disk.open(f"/realm/journal/{name}", create=True))

    store = open_it(disk)

    assert served(store) == everything(4)
    assert "notes.txt" in [entry.name for entry in disk.list("/realm/journal")]


def test_a_file_of_garbage_is_quarantined_and_counts_as_damage() -> None:
    disk = small_files()
    path = "/realm/journal/00000000000000000002.log"
    file = disk.open(path)
    disk.truncate(file, 0)
    disk.pwrite(file, [b"\xa5" * 300], 0)
    disk.datasync(file)

    store = open_it(disk)

    assert sorted(served(store)) == [1, 3, 4, 5, 6]
    assert damaged(store) == [(2, 1)]
    assert b"\xa5" * (300 - FILE_HEADER_SIZE) in quarantined(disk).values()


def test_a_page_that_cannot_be_read_hides_the_blocks_in_it() -> None:
    blocks = [bytes([n]) * 4096 for n in range(1, 6)]
    disk = written(blocks)
    disk.make_unreadable(LOG, 3 * 4096)

    store = open_it(disk)

    lost = sum(count for _, count in damaged(store))
    assert 1 <= lost <= 2
    assert len(served(store)) == 5 - lost
    assert served(store)[5] == blocks[4]


def test_damage_after_the_start_is_detected_when_it_is_read() -> None:
    disk = written()
    store = open_it(disk)
    disk.flip(LOG, start_of(2) + BLOCK_HEADER_SIZE + 3)
    disk.flip(LOG, start_of(3) + 1)

    assert served(store) == {1: BLOCKS[0], 4: BLOCKS[3]}
    assert damaged(store) == [(2, 1), (3, 1)]


def test_a_page_that_turns_unreadable_later_hides_only_its_blocks() -> None:
    blocks = [bytes([n]) * 4096 for n in range(1, 6)]
    disk = written(blocks)
    store = open_it(disk)
    disk.make_unreadable(LOG, 3 * 4096)

    assert served(store)[5] == blocks[4]
    assert [seq for seq, _ in damaged(store)] == [3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_a_block_whose_sync_failed_and_that_was_served_after_a_restart_outlives_a_power_cut(
    seed: int,
) -> None:
    disk = FaultyDisk(seed)
    journal = open_it(disk).journal

    write(journal, [b"safe"])
    disk.fail_syncs(1)
    with pytest.raises(StorageFailed, match="could not be synced"):
        asyncio.run(journal.append(1, [b"nobody was told"]))
    disk.kill()  # the system has the bytes, and takes them for written
    again = open_it(disk)
    assert served(again) == {1: b"safe", 2: b"nobody was told"}
    asyncio.run(again.journal.append(2, [b"next"]))
    disk.power_cut()

    last = open_it(disk)
    assert served(last) == {1: b"safe", 2: b"nobody was told", 3: b"next"}
    assert damaged(last) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spoiled", [False, True])
def test_blocks_that_were_never_synced_are_on_disk_once_they_were_read(
    seed: int, spoiled: bool
) -> None:
    disk = FaultyDisk(seed)
    journal = open_it(disk).journal

    write(journal, BLOCKS, sync=False)
    disk.kill()
    if spoiled:  # the last one is torn: it is cut off, and the others stay
        disk.flip(LOG, disk.content(LOG).rindex(BLOCKS[-1]))
    blocks = served(open_it(disk))
    disk.power_cut()

    assert served(open_it(disk)) == blocks
    assert len(blocks) == len(BLOCKS) - spoiled
