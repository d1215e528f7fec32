"""The contract of storage engines for clusters, as checks to run on every engine.

The checks are run like those of :mod:`penstock_testing.contracts`; the journals, blobs and
registries of an engine must pass these, too. Use a new kit for each check.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Final, Literal, TypeVar

from penstock_cluster.storage.history_blobs import HistoryBlobs
from penstock_core.vocabulary.errors import (
    Conflict,
    Deposed,
    IllegalState,
    InvalidArgument,
    StorageFailed,
    Trimmed,
    Unknown,
)
from penstock_core.vocabulary.ports import (
    BlobSum,
    Block,
    Journal,
    Registry,
    StorageEngine,
    VersionedRecord,
    inline,
)
from penstock_server.storage.memory import MemoryBlobs
from penstock_testing.contracts import blocks_of, raises

T = TypeVar("T")

Fate = Literal["done", "lost", "answer lost", "late"]
"""The outcome of a request. A ``late`` request is executed after a later one, and its answer is
lost."""

FATES: Final[tuple[tuple[Fate, ...], ...]] = (
    ("lost",),
    ("answer lost",),
    ("late",),
    ("lost", "answer lost"),
    ("late", "late", "lost"),
    ("answer lost", "answer lost", "late"),
    ("done", "late", "answer lost"),
    ("done", "answer lost", "done", "lost"),
)
"""The fates of the first requests of a call; all later requests are executed and answered."""

PATIENCE_S: Final = 60
"""Seconds after which a call counts as stuck."""


class Fates:
    """The fates of the next requests of one node to its engine, chosen by a check.

    The adapter's kit calls :meth:`next` before each request, above all before requests that change
    something. Unless the fate is ``done``, the kit ensures that the adapter receives no answer.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """Set at each request; :meth:`draw` clears it."""
        self._next_fates: list[Fate] = []
        self._later_fate: Fate = "done"
        """The fate of all requests after those of ``_next_fates``."""

    def draw(self, fates: Sequence[Fate], then: Fate = "done") -> None:
        """Set the fates of the next requests, and the fate of all later ones."""
        self._next_fates, self._later_fate = list(fates), then
        self.requested.clear()

    def next(self) -> Fate:
        """Return the fate of the request that is made now."""
        self.requested.set()
        return self._next_fates.pop(0) if self._next_fates else self._later_fate


class ReopenedJournalContract(ABC):
    """A journal keeps its content after its owner has closed it or was killed."""

    @abstractmethod
    async def open(self, epoch: int) -> Journal:
        """Return the journal: new and empty at the first call, later for the next owner. Earlier
        owners have ended then."""

    @abstractmethod
    async def tear(self, data: bytes) -> None:
        """Append the start of a block with these bytes, as the current owner does if it is killed
        during a write. The bytes fill at least two frames."""

    torn_bytes: int = 4 << 20
    """Size of a block that is large enough for an owner to be killed in the middle of it."""

    async def check_a_journal_opened_again_has_its_blocks(self) -> None:
        journal = await self.open(1)
        written = [b"one", b"", b"\0" * 5_000, b"four"]
        for number, block in enumerate(written):
            await journal.append(number, [block])
        await journal.close()
        journal = await self.open(2)
        info = journal.info()
        assert (info.floor, info.tail, info.cut) == (0, 4, 0), info
        assert await blocks_of(journal, 1) == list(enumerate(written, 1))
        assert await journal.append(4, [b"five"]) == 5
        await journal.close()
        assert await blocks_of(await self.open(3), 5) == [(5, b"five")]

    async def check_an_empty_journal_opened_again_is_empty(self) -> None:
        journal = await self.open(1)
        await journal.close()
        journal = await self.open(2)
        assert (journal.info().floor, journal.info().tail) == (0, 0)
        assert await journal.append(0, [b"one"]) == 1

    async def check_a_journal_opened_again_has_its_floor(self) -> None:
        journal = await self.open(1)
        for number in range(5):
            await journal.append(number, [b"%d" % number])
        await journal.trim(2)
        await journal.close()
        journal = await self.open(2)
        assert (journal.info().floor, journal.info().tail) == (2, 5)
        await raises(Trimmed, journal.read(2, 1))
        assert await blocks_of(journal, 3) == [(3, b"2"), (4, b"3"), (5, b"4")]

    async def check_a_journal_trimmed_to_its_tail_keeps_its_number(self) -> None:
        journal = await self.open(1)
        for number in range(3):
            await journal.append(number, [b"%d" % number])
        await journal.trim(3)
        await journal.close()
        for epoch in (2, 3):
            journal = await self.open(epoch)
            assert (journal.info().floor, journal.info().tail) == (3, 3), epoch
            await journal.close()
        assert await (await self.open(4)).append(3, [b"four"]) == 4

    async def check_a_torn_block_is_dropped_and_its_number_is_used_again(self) -> None:
        journal = await self.open(1)
        await journal.append(0, [b"one"])
        await self.tear(b"torn" * (self.torn_bytes // 4))
        journal = await self.open(2)
        assert (journal.info().floor, journal.info().tail) == (0, 1), journal.info()
        assert await blocks_of(journal, 1) == [(1, b"one")]
        assert await journal.append(1, [b"two"]) == 2
        await journal.close()
        assert await blocks_of(await self.open(3), 1) == [(1, b"one"), (2, b"two")]

    async def check_a_torn_first_block_leaves_an_empty_journal(self) -> None:
        await self.open(1)
        await self.tear(b"torn" * (self.torn_bytes // 4))
        journal = await self.open(2)
        assert (journal.info().floor, journal.info().tail) == (0, 0), journal.info()
        assert await journal.append(0, [b"one"]) == 1
        await journal.close()
        assert await blocks_of(await self.open(3), 1) == [(1, b"one")]


class EngineContract(ABC):
    """An engine has one owner for each shard, whatever other nodes believe, and each request has
    one outcome."""

    @abstractmethod
    async def engine(self, fates: Fates | None = None) -> StorageEngine:
        """Return the engine for another node; it is empty for the first node. ``fates`` decides on
        the requests of this node."""

    async def check_a_newer_owner_deposes_the_older(self) -> None:
        older, newer = await self.engine(), await self.engine()
        old = await older.journal(0, 1)
        await old.append(0, [b"one"])
        new = await newer.journal(0, 2)
        for again in range(2):
            await raises(Deposed, old.append(1, [b"late %d" % again]))
        assert await new.append(1, [b"two"]) == 2
        await raises(Deposed, old.append(1, [b"later"]))
        third = await (await self.engine()).journal(0, 3)
        assert await blocks_of(third, 1) == [(1, b"one"), (2, b"two")]

    async def check_an_idle_owner_is_deposed_too(self) -> None:
        older, newer = await self.engine(), await self.engine()
        old = await older.journal(0, 1)
        new = await newer.journal(0, 2)
        await raises(Deposed, old.append(0, [b"late"]))
        assert await new.append(0, [b"one"]) == 1

    async def check_an_older_epoch_cannot_open_after_a_newer(self) -> None:
        newer, older = await self.engine(), await self.engine()
        new = await newer.journal(0, 3)
        await raises(Deposed, older.journal(0, 2))
        assert await new.append(0, [b"one"]) == 1
        await raises(Deposed, older.journal(0, 1))
        await new.trim(1)
        await raises(Deposed, older.journal(0, 2))
        assert await new.append(1, [b"two"]) == 2
        reopened = await older.journal(0, 4)
        assert await blocks_of(reopened, 2) == [(2, b"two")]

    async def check_the_newest_of_concurrent_owners_wins(self) -> None:
        engines = [await self.engine() for _ in range(3)]
        opened: dict[int, Journal] = {}

        async def open_as(engine: StorageEngine, epoch: int) -> None:
            try:
                opened[epoch] = await engine.journal(0, epoch)
            except Deposed:
                assert epoch < 3, "no epoch is newer"

        async with asyncio.TaskGroup() as group:
            for engine, epoch in zip(engines, (2, 3, 1), strict=True):
                group.create_task(open_as(engine, epoch))
        for epoch in {1, 2} & opened.keys():
            await raises(Deposed, opened[epoch].append(0, [b"late"]))
        assert await opened[3].append(0, [b"one"]) == 1

    async def check_an_epoch_may_be_opened_again(self) -> None:
        engine = await self.engine()
        journal = await engine.journal(0, 5)
        await journal.append(0, [b"one"])
        again = await (await self.engine()).journal(0, 5)
        assert await again.append(1, [b"two"]) == 2
        await raises(Deposed, journal.append(1, [b"other"]))
        assert await blocks_of(again, 1) == [(1, b"one"), (2, b"two")]

    async def check_a_deposed_owner_reads_blocks_or_raises_trimmed(self) -> None:
        old = await (await self.engine()).journal(0, 1)
        for number in range(4):
            await old.append(number, [b"%d" % number])
        new = await (await self.engine()).journal(0, 2)
        await new.trim(3)
        try:
            blocks = await old.read(1, 10)
        except Trimmed:
            blocks = await old.read(4, 10)
        assert all(isinstance(block, Block) for block in blocks), blocks

    async def check_a_journal_begins_at_the_given_number(self) -> None:
        journal = await (await self.engine()).journal(0, 1, begins=41)
        assert (journal.info().floor, journal.info().tail) == (41, 41)
        await raises(Trimmed, journal.read(41, 1))
        again = await (await self.engine()).journal(0, 2)
        assert (again.info().floor, again.info().tail) == (41, 41)
        assert await again.append(41, [b"first"]) == 42
        third = await (await self.engine()).journal(0, 3, begins=7)
        assert (third.info().floor, third.info().tail) == (41, 42)
        assert await blocks_of(third, 42) == [(42, b"first")]

    async def check_a_reader_of_a_journal_does_not_fence_its_owner(self) -> None:
        engine = await self.engine()
        assert await engine.open_read_only(0) is None, "the journal does not exist yet"
        journal = await engine.journal(0, 3, begins=7)
        await journal.append(7, [b"one"])
        seen = await (await self.engine()).open_read_only(0)
        assert seen is not None
        assert (seen.info().floor, seen.info().tail) == (7, 8)
        assert await blocks_of(seen, 8) == [(8, b"one")]
        await raises(Deposed, seen.append(8, [b"not mine"]))
        assert await journal.append(8, [b"two"]) == 9, "its owner goes on"
        seen = await (await self.engine()).open_read_only(0)
        assert seen is not None
        assert await blocks_of(seen, 8) == [(8, b"one"), (9, b"two")]

    async def check_epochs_and_beginnings_have_bounds(self) -> None:
        engine = await self.engine()
        await raises(InvalidArgument, engine.journal(0, 0))
        await raises(InvalidArgument, engine.journal(0, 1, begins=-1))

    async def check_shards_are_apart(self) -> None:
        engine = await self.engine()
        first, second = await engine.journal(0, 9), await engine.journal(1, 1)
        await first.append(0, [b"of 0"])
        await second.append(0, [b"of 1"])
        await first.trim(1)
        assert await blocks_of(second, 1) == [(1, b"of 1")]
        blobs, others = await engine.blobs(0), await engine.blobs(1)
        await blobs.put("segments/a", [b"of 0"])
        await others.put("segments/a", [b"of 1"])
        await others.delete("segments/a")
        assert bytes(await blobs.get("segments/a")) == b"of 0"

    async def check_nodes_see_the_same_blobs_which_do_not_grow(self) -> None:
        blobs, others = [await (await self.engine()).blobs(0) for _ in range(2)]
        await blobs.put("segments/a", [b"one"])
        assert bytes(await others.get("segments/a")) == b"one"
        assert not blobs.grows
        await raises(IllegalState, others.extend("segments/a", 3, [b"more"]))
        await raises(Conflict, others.put("segments/a", [b"two"]))
        await others.delete("segments/a")
        assert await blobs.list() == []

    async def check_a_reader_of_files_does_not_change_them(self) -> None:
        blobs, elsewhere = [await (await self.engine()).blobs(0) for _ in range(2)]
        await blobs.put("segments/a", [b"one"])
        reading = HistoryBlobs(MemoryBlobs(), elsewhere, offload=inline)
        assert [info.name for info in await reading.list("segments/")] == ["segments/a"]
        assert bytes(await reading.get("segments/a", 1, 1)) == b"n"
        await raises(IllegalState, reading.put("segments/b", [b"two"]))
        await reading.delete("segments/a")
        assert bytes(await blobs.get("segments/a")) == b"one"
        reading.check_against(lambda name: BlobSum(3, 7))
        await raises(StorageFailed, reading.get("segments/a"))

    async def check_one_of_concurrent_writers_of_a_key_wins(self) -> None:
        registries = [await (await self.engine()).registry() for _ in range(3)]
        for version in range(3):
            winner = await _race(registries, "test/a", version)
            record = await registries[0].get("test/a")
            assert record == VersionedRecord(version + 1, winner), (record, winner)

    async def check_a_deleted_key_is_deleted_for_all_nodes(self) -> None:
        registry, second = [await (await self.engine()).registry() for _ in range(2)]
        await registry.cas("test/a", 0, b"one")
        await second.delete("test/a", 1)
        assert await registry.get("test/a") is None
        assert list(await registry.list()) == []
        await raises(Conflict, registry.cas("test/a", 1, b"two"))
        assert await registry.cas("test/a", 0, b"two") == 1

    async def check_an_append_without_an_answer_has_one_outcome(self) -> None:
        fates = Fates()
        journal = await (await self.engine(fates)).journal(0, 1)
        written = []
        for number, drawn in enumerate(FATES):
            written.append(b"%d: " % number + b"x" * 100 * number)
            fates.draw(drawn)
            assert await _in_time(journal.append(number, [written[-1]])) == number + 1, drawn
            assert journal.info().tail == number + 1, drawn
        fates.draw(())
        assert await blocks_of(journal, 1) == list(enumerate(written, 1))
        reopened = await (await self.engine()).journal(0, 2)
        assert await blocks_of(reopened, 1) == list(enumerate(written, 1))

    async def check_an_append_without_an_answer_and_a_newer_owner_have_one_outcome(self) -> None:
        # Each case needs a journal without earlier owners, so each uses another shard.
        for shard, drawn in enumerate(FATES):
            fates = Fates()
            old = await (await self.engine(fates)).journal(shard, 1)
            await old.append(0, [b"before"])
            fates.draw(drawn)
            async with asyncio.TaskGroup() as group:
                append = group.create_task(_outcome(old, 1, b"open"))
                await fates.requested.wait()
                new = await (await self.engine()).journal(shard, 2)
            await _in_time(new.append(new.info().tail, [b"behind"]))
            stored = [data for _, data in await blocks_of(new, 1)]
            # Both outcomes are allowed, but a reported success must be true.
            assert stored in ([b"before", b"behind"], [b"before", b"open", b"behind"]), drawn
            if append.result() is not None:
                assert (append.result(), stored[1]) == (2, b"open"), drawn

    async def check_opening_without_an_answer_fences_all_the_same(self) -> None:
        for shard, drawn in enumerate(FATES):
            old = await (await self.engine()).journal(shard, 1)
            await old.append(0, [b"one"])
            fates = Fates()
            engine = await self.engine(fates)
            fates.draw(drawn)
            new = await _in_time(engine.journal(shard, 2))
            fates.draw(())
            await raises(Deposed, old.append(1, [b"late"]))
            assert await new.append(1, [b"two"]) == 2
            assert await blocks_of(new, 1) == [(1, b"one"), (2, b"two")], drawn

    async def check_a_journal_closed_without_an_answer_does_not_know(self) -> None:
        fates = Fates()
        journal = await (await self.engine(fates)).journal(0, 1)
        fates.draw((), then="lost")
        async with asyncio.TaskGroup() as group:
            append = group.create_task(raises(Unknown, _in_time(journal.append(0, [b"open"]))))
            await fates.requested.wait()
            await journal.close()
        assert append.result().code == "unknown"

    async def check_a_change_without_an_answer_is_made_once(self) -> None:
        fates = Fates()
        registry = await (await self.engine(fates)).registry()
        second = await (await self.engine()).registry()
        for number, drawn in enumerate(FATES):
            key, value = f"test/{number}", b"mine %d" % number
            fates.draw(drawn)
            assert await _in_time(registry.cas(key, 0, value)) == 1, drawn
            assert await second.get(key) == VersionedRecord(1, value), drawn
            fates.draw(drawn)
            assert await _in_time(registry.cas(key, 1, value)) == 2, drawn
            assert await second.get(key) == VersionedRecord(2, value), drawn
            fates.draw(drawn)
            await _in_time(registry.delete(key, 2))
            assert await second.get(key) is None, drawn

    async def check_a_change_that_came_too_late_is_a_conflict_without_an_answer_too(self) -> None:
        fates = Fates()
        registry = await (await self.engine(fates)).registry()
        second = await (await self.engine()).registry()
        for number, drawn in enumerate(FATES):
            key = f"test/{number}"
            await second.cas(key, 0, b"theirs")
            fates.draw(drawn)
            await raises(Conflict, _in_time(registry.cas(key, 0, b"mine")))
            fates.draw(drawn)
            await raises(Conflict, _in_time(registry.delete(key, 7)))
            assert await second.get(key) == VersionedRecord(1, b"theirs"), drawn

    async def check_health_and_durability_are_reported(self) -> None:
        engine = await self.engine()
        health = await engine.health()
        assert health.kind
        assert health.version
        assert health.has_quorum
        assert 0 < health.present <= health.servers
        journal = await engine.journal(0, 1)
        assert journal.info().durability == "quorum"
        assert journal.info().waiting_us == 0
        appends = journal.info().appends
        assert appends is not None
        before = sum(appends.counts)
        await journal.append(0, [b"a block"])
        assert sum(appends.counts) == before + 1
        # The second call must do nothing.
        await engine.close()
        await engine.close()


async def _race(registries: Sequence[Registry], key: str, version: int) -> bytes:
    """Let all writers change a key at the same time, and return the value of the winner."""
    winning_values: list[bytes] = []

    async def change(registry: Registry, value: bytes) -> None:
        try:
            assert await registry.cas(key, version, value) == version + 1
        except Conflict:
            return
        winning_values.append(value)

    async with asyncio.TaskGroup() as group:
        for number, registry in enumerate(registries):
            group.create_task(change(registry, b"by %d" % number))
    assert len(winning_values) == 1, f"{len(winning_values)} writers believe that they have won"
    return winning_values[0]


async def _outcome(journal: Journal, expected: int, data: bytes) -> int | None:
    """Append a block, and return its number, or None if the owner was deposed."""
    try:
        return await _in_time(journal.append(expected, [data]))
    except Deposed:
        return None


async def _in_time(call: Awaitable[T]) -> T:
    """Return the result of a call. Raises ``TimeoutError`` if it is stuck."""
    async with asyncio.timeout(PATIENCE_S):
        return await call
