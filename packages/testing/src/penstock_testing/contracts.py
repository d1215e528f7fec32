"""Contracts of the storage ports, as checks to run on every adapter.

Subclass a kit, implement how your adapter is opened, and run every ``check_*``::

    class TestMine:
        @pytest.mark.parametrize("check", checks(JournalContract))
        def test_keeps_the_contract(self, check: str) -> None:
            asyncio.run(run(MyJournalKit(), check))
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import cast

from penstock_core.vocabulary.errors import (
    Conflict,
    Deposed,
    IllegalState,
    InvalidArgument,
    InvalidName,
    NameDoesNotExist,
    PenstockError,
    StorageFailed,
    Trimmed,
)
from penstock_core.vocabulary.ports import (
    Blobs,
    Block,
    Change,
    Journal,
    Registry,
    VersionedRecord,
)


class JournalContract(ABC):
    """A journal appends only at the expected position, returns blocks as they were written, and can
    be trimmed."""

    @abstractmethod
    async def open(self) -> Journal:
        """Return a new, empty journal."""

    async def check_a_new_journal_is_empty(self) -> None:
        journal = await self.open()
        info = journal.info()
        assert (info.floor, info.tail, info.cut) == (0, 0, 0)
        assert await journal.read(1, 10) == []

    async def check_blocks_are_dense_and_read_back_as_written(self) -> None:
        journal = await self.open()
        written = [b"", b"a", bytes(range(256)) * 40, b"\0" * 9]
        for number, block in enumerate(written):
            assert await journal.append(number, [block[:3], memoryview(block)[3:]]) == number + 1
        assert await blocks_of(journal, 1) == list(enumerate(written, 1))
        assert journal.info().tail == len(written)

    async def check_a_block_may_have_thousands_of_chunks(self) -> None:
        journal = await self.open()
        chunks = [bytes([number % 251]) for number in range(5_000)]
        await journal.append(0, chunks)
        assert await blocks_of(journal, 1) == [(1, b"".join(chunks))]

    async def check_blocks_may_be_empty_and_large(self) -> None:
        journal = await self.open()
        for number, size in enumerate((0, 1 << 20, 60 << 20, 0, 7)):
            assert await journal.append(number, [b"%d" % number * size]) == number + 1
        for number, size in enumerate((0, 1 << 20, 60 << 20, 0, 7), 1):
            (block,) = await journal.read(number, 1)
            assert isinstance(block, Block), block
            assert block.seq == number
            assert len(block.data) == size, f"{len(block.data)} bytes of {size}"
            assert block.data == b"%d" % (number - 1) * size

    async def check_a_read_is_limited_in_bytes_but_returns_a_block(self) -> None:
        journal = await self.open()
        for number in range(6):
            await journal.append(number, [b"x" * 1_000], sync=False)
        assert [b.seq for b in await journal.read(2, 9, 10)] == [2]
        assert [b.seq for b in await journal.read(2, 2, 1 << 20)] == [2, 3]
        blocks = await journal.read(1, 9, 3_500)
        assert [b.seq for b in blocks] == list(range(1, len(blocks) + 1))
        assert 1 <= len(blocks) <= 3

    async def check_read_honours_first_and_limit(self) -> None:
        journal = await self.open()
        for number in range(9):
            await journal.append(number, [b"%d" % number], sync=False)
        assert [b.seq for b in await journal.read(4, 3)] == [4, 5, 6]
        assert [b.seq for b in await journal.read(8, 10**9)] == [8, 9]
        assert await journal.read(10, 5) == []
        await raises(InvalidArgument, journal.read(1, 0))

    async def check_only_the_tail_may_be_appended_to(self) -> None:
        journal = await self.open()
        await journal.append(0, [b"one"])
        await raises(Deposed, journal.append(0, [b"other"]))
        await raises(Deposed, journal.append(2, [b"too far"]))
        assert journal.info().tail == 1

    async def check_the_same_append_again_gives_the_same_answer(self) -> None:
        journal = await self.open()
        await journal.append(0, [b"one"], sync=False)
        await journal.append(1, [b"two"])
        assert await journal.append(0, [b"o", b"ne"]) == 1
        assert await journal.append(1, [b"two"]) == 2
        assert journal.info().tail == 2

    async def check_trimmed_blocks_are_gone(self) -> None:
        journal = await self.open()
        for number in range(5):
            await journal.append(number, [b"%d" % number])
        await journal.trim(3)
        assert journal.info().floor == 3
        await raises(Trimmed, journal.read(3, 1))
        assert [b.seq for b in await journal.read(4, 9)] == [4, 5]
        await raises(Deposed, journal.append(2, [b"2"]))

    async def check_trim_never_goes_back_nor_beyond_the_tail(self) -> None:
        journal = await self.open()
        for number in range(3):
            await journal.append(number, [b"%d" % number])
        await journal.trim(2)
        await journal.trim(1)
        assert journal.info().floor == 2
        await raises(InvalidArgument, journal.trim(4))

    async def check_a_journal_trimmed_to_its_tail_goes_on(self) -> None:
        journal = await self.open()
        await journal.append(0, [b"one"])
        await journal.trim(1)
        assert (journal.info().floor, journal.info().tail) == (1, 1)
        assert await journal.append(1, [b"two"]) == 2
        assert await blocks_of(journal, 2) == [(2, b"two")]

    async def check_reserving_room_changes_nothing_else(self) -> None:
        journal = await self.open()
        await journal.append(0, [b"one"])
        for size in (0, 10, 100_000):
            await journal.reserve(size)
            assert (journal.info().tail, journal.info().floor) == (1, 0)
        assert await journal.append(1, [b"x" * 100_000]) == 2
        assert [len(data) for _, data in await blocks_of(journal, 1)] == [3, 100_000]
        await raises(InvalidArgument, journal.reserve(-1))

    async def check_sync_without_changes_succeeds(self) -> None:
        journal = await self.open()
        await journal.sync()
        await journal.append(0, [b"one"], sync=False)
        await journal.sync()
        assert journal.info().tail == 1

    async def check_a_closed_journal_refuses_all_calls(self) -> None:
        journal = await self.open()
        await journal.append(0, [b"one"])
        await journal.close()
        await journal.close()
        await raises(StorageFailed, journal.append(1, [b"two"]))
        await raises(StorageFailed, journal.read(1, 1))
        await raises(StorageFailed, journal.reserve(1))


class BlobsContract(ABC):
    """Blobs are named bytes that never change but may grow."""

    @abstractmethod
    async def open(self) -> Blobs:
        """Return a store without blobs."""

    async def check_bytes_come_back_whole_and_in_ranges(self) -> None:
        blobs = await self.open()
        await blobs.put("segments/a/1.arrow", [b"0123", bytearray(b"4567"), memoryview(b"89")])
        assert bytes(await blobs.get("segments/a/1.arrow")) == b"0123456789"
        assert bytes(await blobs.get("segments/a/1.arrow", 3)) == b"3456789"
        assert bytes(await blobs.get("segments/a/1.arrow", 3, 4)) == b"3456"

    async def check_an_empty_blob_is_a_blob(self) -> None:
        blobs = await self.open()
        await blobs.put("snapshots/none", [])
        assert bytes(await blobs.get("snapshots/none")) == b""

    async def check_ranges_outside_are_refused(self) -> None:
        blobs = await self.open()
        await blobs.put("segments/a", [b"0123"])
        await raises(InvalidArgument, blobs.get("segments/a", 3, 2))
        await raises(InvalidArgument, blobs.get("segments/a", 5))
        await raises(InvalidArgument, blobs.get("segments/a", -1, 1))

    async def check_a_name_is_written_once(self) -> None:
        blobs = await self.open()
        await blobs.put("segments/a", [b"one"])
        await blobs.put("segments/a", [b"o", b"ne"])
        await raises(Conflict, blobs.put("segments/a", [b"two"]))
        await raises(Conflict, blobs.put("segments/a", [b"one more"]))
        await raises(Conflict, blobs.put("segments/a", [b"on"]))
        assert bytes(await blobs.get("segments/a")) == b"one"

    async def check_a_blob_grows_from_the_given_offset(self) -> None:
        blobs = await self.open()
        await blobs.put("segments/a", [b"0123", b"end"])
        if not blobs.grows:
            await raises(IllegalState, blobs.extend("segments/a", 7, [b"more"]))
            assert bytes(await blobs.get("segments/a")) == b"0123end"
            return
        view = await blobs.get("segments/a", 0, 4)
        await blobs.extend("segments/a", 4, [b"45", memoryview(b"67"), b"end"])
        assert bytes(await blobs.get("segments/a")) == b"01234567end"
        assert bytes(view) == b"0123"
        await blobs.extend("segments/a", 11, [b"!"])
        await blobs.extend("segments/a", 2, [b"end"])
        assert bytes(await blobs.get("segments/a")) == b"01end"
        assert [(blob.name, blob.size) for blob in await blobs.list()] == [("segments/a", 5)]
        await raises(InvalidArgument, blobs.extend("segments/a", 6, [b"x"]))
        await raises(InvalidArgument, blobs.extend("segments/a", -1, [b"x"]))
        await raises(NameDoesNotExist, blobs.extend("segments/b", 0, [b"x"]))

    async def check_errors_name_the_missing_blob(self) -> None:
        blobs = await self.open()
        error = await raises(NameDoesNotExist, blobs.get("segments/none"))
        assert "segments/none" in str(error)

    async def check_list_is_ordered_and_by_prefix(self) -> None:
        blobs = await self.open()
        names = ["segments/b/2", "segments/a/1", "snapshots/1", "segments/b/1", "segments/b-c/1"]
        for name in names:
            await blobs.put(name, [name.encode()])
        assert [blob.name for blob in await blobs.list()] == sorted(names)
        blob_infos = await blobs.list("segments/b/")
        assert [(blob.name, blob.size) for blob in blob_infos] == [
            ("segments/b/1", 12),
            ("segments/b/2", 12),
        ]

    async def check_deleted_names_are_free_again(self) -> None:
        blobs = await self.open()
        await blobs.put("segments/a", [b"one"])
        view = await blobs.get("segments/a")
        await blobs.delete("segments/a")
        await blobs.delete("segments/a")
        await raises(NameDoesNotExist, blobs.get("segments/a"))
        assert await blobs.list() == []
        await blobs.put("segments/a", [b"two"])
        assert bytes(await blobs.get("segments/a")) == b"two"
        assert bytes(view) == b"one"

    async def check_names_cannot_leave_the_store(self) -> None:
        blobs = await self.open()
        names = ("../a", "segments/../LOCK", "/etc/a", "a", "", "segments/", "segments//a",
                 "segments/./a", "LOCK", "registry/format", "segments/.put-1", "segments/a\0b",
                 "segments\\a")  # fmt: skip
        for name in names:
            await raises(InvalidName, blobs.put(name, [b"x"]))
            await raises(InvalidName, blobs.get(name))
            await raises(InvalidName, blobs.delete(name))


class RegistryContract(ABC):
    """A registry stores small records and changes them by compare-and-set."""

    @abstractmethod
    async def open(self) -> Registry:
        """Return a registry without keys that start with ``test/``."""

    async def check_versions_count_changes(self) -> None:
        registry = await self.open()
        assert await registry.get("test/a") is None
        assert await registry.cas("test/a", 0, b"one") == 1
        assert await registry.cas("test/a", 1, b"") == 2
        assert await registry.get("test/a") == VersionedRecord(2, b"")

    async def check_a_stale_version_changes_nothing(self) -> None:
        registry = await self.open()
        await registry.cas("test/a", 0, b"one")
        for expected in (0, 2):
            await raises(Conflict, registry.cas("test/a", expected, b"two"))
        await raises(Conflict, registry.cas("test/b", 1, b"two"))
        assert await registry.get("test/a") == VersionedRecord(1, b"one")
        assert await registry.get("test/b") is None

    async def check_a_key_is_deleted_only_with_its_version(self) -> None:
        registry = await self.open()
        await registry.cas("test/a", 0, b"one")
        await registry.cas("test/b", 0, b"stays")
        for expected in (0, 2):
            await raises(Conflict, registry.delete("test/a", expected))
        await raises(Conflict, registry.delete("test/none", 1))
        assert await registry.get("test/a") == VersionedRecord(1, b"one")
        await registry.delete("test/a", 1)
        await registry.delete("test/a", 0)
        assert await registry.get("test/a") is None
        assert list(await registry.list("test/")) == ["test/b"]
        await raises(Conflict, registry.cas("test/a", 1, b"two"))
        assert await registry.cas("test/a", 0, b"again") == 1
        assert await registry.get("test/a") == VersionedRecord(1, b"again")

    async def check_keys_list_in_order(self) -> None:
        registry = await self.open()
        for key in ("test/b", "test/a", "test/a/%2F", "test/.c", "test/é"):
            await registry.cas(key, 0, key.encode())
        assert list(await registry.list("test/")) == [
            "test/.c", "test/a", "test/a/%2F", "test/b", "test/é",
        ]  # fmt: skip
        assert list(await registry.list("test/a")) == ["test/a", "test/a/%2F"]
        assert await registry.list("elsewhere/") == []

    async def check_an_empty_key_is_refused(self) -> None:
        registry = await self.open()
        await raises(InvalidArgument, registry.cas("", 0, b"one"))

    async def check_watch_sees_changes_from_its_creation_on(self) -> None:
        registry = await self.open()
        await registry.cas("test/a", 0, b"before")
        changes = registry.watch("test/")
        await registry.cas("test/a", 1, b"one")
        assert await _next(changes.__anext__()) == ("test/a", VersionedRecord(2, b"one"))
        await registry.cas("test/b", 0, b"two")
        assert await _next(changes.__anext__()) == ("test/b", VersionedRecord(1, b"two"))

    async def check_watch_wakes_a_waiting_reader(self) -> None:
        registry = await self.open()
        changes = registry.watch("test/a")
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_next(changes.__anext__()))
            await registry.cas("test/b", 0, b"not this")
            await registry.cas("test/a", 0, b"this")
        assert waiting.result() == ("test/a", VersionedRecord(1, b"this"))


def checks(kit: type[ABC]) -> list[str]:
    """Return the names of the kit's checks."""
    return [name for name in vars(kit) if name.startswith("check_")]


async def run(kit: ABC, check: str) -> None:
    """Run one check by its name. Raises ``AssertionError`` if the adapter breaks the contract."""
    await cast("Callable[[], Awaitable[None]]", getattr(kit, check))()


async def raises(kind: type[PenstockError], call: Awaitable[object]) -> PenstockError:
    """Return the error of class ``kind`` that ``call`` raises. Raises ``AssertionError`` if it
    raises none."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} should have been raised")


async def _next(change: Awaitable[Change]) -> Change:
    """Return the next change of a watch. Raises ``TimeoutError`` if there is none for 5 s."""
    async with asyncio.timeout(5):
        return await change


async def blocks_of(journal: Journal, first: int) -> list[tuple[int, bytes]]:
    """Return the blocks from ``first`` on with their numbers. Raises ``AssertionError`` if a block
    is damaged."""
    blocks = await journal.read(first, 10**9)
    assert all(isinstance(block, Block) for block in blocks), blocks
    return [(block.seq, bytes(block.data)) for block in blocks if isinstance(block, Block)]
