"""Engines that are each broken in one way, on purpose. The contract tests have to notice each of
them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock_core.vocabulary.errors import Conflict, Deposed, StorageFailed, Trimmed
from penstock_core.vocabulary.ports import (
    READ_BYTES_MAX,
    BlobInfo,
    Block,
    Buffer,
    DamagedBlock,
    JournalInfo,
)
from penstock_server.storage.memory import MemoryRegistry
from penstock_testing.engine import (
    EngineBlobs,
    EngineJournal,
    EngineRegistry,
    FrameKind,
    LogFrame,
    MemoryEngine,
    NoAnswer,
    at_once,
)


class StoresNothing(EngineJournal):
    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        self._check_open()
        self.tail = expected + 1
        return self.tail

    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        self._check_open()
        return []


class ForgetsBlocks(EngineJournal):
    async def fence(self) -> None:
        self.log.purge(self.log.last + 1)
        await super().fence()


class ForgetsItsFloor(EngineJournal):
    async def catch_up(self) -> None:
        await super().catch_up()
        self.floor = 0


class ForgetsTheNumberOfItsTail(EngineJournal):
    async def trim(self, through: int) -> None:
        if through == self.tail > self.floor:
            self.log.purge(self.log.last + 1)
            self.floor = through
            self.places.clear()
        await super().trim(through)


class TakesTornBlocksForWhole(EngineJournal):
    async def catch_up(self) -> None:
        await super().catch_up()
        newest = self.log.frames[-1] if self.log.frames else None
        if newest is not None and newest.part + 1 < newest.parts:
            self.tail = newest.block
            self.places[self.tail] = (
                self.last - newest.part,
                newest.part + 1,
                len(newest.data),
            )


class GivesNoNumberAgain(EngineJournal):
    async def catch_up(self) -> None:
        await super().catch_up()
        if self.log.frames:
            self.tail = self.log.frames[-1].block


class GivesMarksNumbers(EngineJournal):
    async def catch_up(self) -> None:
        await super().catch_up()
        self.tail = self.log.last


class DoesNotFence(EngineJournal):
    async def fence(self) -> None:
        await self.catch_up()


class ComparesNothing(EngineJournal):
    """Relies on its lease alone: it appends at the current tail, whatever that is."""

    async def publish(self, frame: LogFrame) -> None:
        def append() -> int:
            self.log.append(self.log.last, frame)
            return self.log.last

        self.last = await self.requests.until_answered(append)


class FencesNewerOwners(EngineJournal):
    async def catch_up(self) -> None:
        epoch, self.epoch = self.epoch, 1 << 60
        try:
            await super().catch_up()
        finally:
            self.epoch = epoch


class OpensAnEpochOnce(EngineJournal):
    async def catch_up(self) -> None:
        self.epoch -= 1
        try:
            await super().catch_up()
        finally:
            self.epoch += 1


class CallsTrimmedDamaged(EngineJournal):
    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        try:
            return await super().read(first, limit, bytes_max)
        except Trimmed as error:
            return [DamagedBlock(first, "the log", str(error), size=0)]


class AppendsAgainAtTheNewTail(EngineJournal):
    """Repeats an append without an answer behind the current tail, whatever that is by then."""

    async def publish(self, frame: LogFrame) -> None:
        try:
            await self.requests.once(lambda: self.log.append(self.last, frame))
        except NoAnswer:
            await self.requests.pause()
            self.last = self.log.last
            await self.publish(frame)
        except Conflict as error:
            raise Deposed(str(error)) from error
        else:
            self.last += 1


class TakesSilenceForNo(EngineJournal):
    async def publish(self, frame: LogFrame) -> None:
        try:
            await self.requests.once(lambda: self.log.append(self.last, frame))
        except NoAnswer:
            raise StorageFailed("no answer") from None
        except Conflict as error:
            raise Deposed(str(error)) from error
        self.last += 1


class TakesSilenceForYes(EngineJournal):
    async def publish(self, frame: LogFrame) -> None:
        try:
            await self.requests.once(lambda: self.log.append(self.last, frame))
        except NoAnswer:
            pass
        except Conflict as error:
            raise Deposed(str(error)) from error
        self.last += 1


class TakesItselfForAnother(EngineJournal):
    """Takes its own frame, when it finds it at the expected place, for that of another owner."""

    async def publish(self, frame: LogFrame) -> None:
        end = self.last
        try:
            await self.requests.until_answered(lambda: self.log.append(end, frame))
        except Conflict as error:
            raise Deposed(str(error)) from error
        self.last += 1


class LosesTheEndOfLargeBlocks(EngineJournal):
    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        return await super().append(expected, [b"".join(block)[: 8 << 20]], sync=sync)


class LosesEmptyBlocks(EngineJournal):
    async def append(self, expected: int, block: Sequence[Buffer], *, sync: bool = True) -> int:
        return await super().append(expected, block, sync=sync) if any(block) else expected


class ReadsAsMuchAsThereIs(EngineJournal):
    async def read(
        self, first: int, limit: int, bytes_max: int = READ_BYTES_MAX
    ) -> list[Block | DamagedBlock]:
        return await super().read(first, limit)


class SaysItIsLocal(EngineJournal):
    def info(self) -> JournalInfo:
        return replace(super().info(), durability="local")


class LastWriterWins(EngineRegistry):
    async def cas(self, key: str, expected: int, value: bytes) -> int:
        held = await self.get(key)
        return await super().cas(key, held.version if held else 0, value) and expected + 1


class DeletesWhateverIsThere(EngineRegistry):
    async def delete(self, key: str, expected: int) -> None:
        held = await self.get(key)
        await super().delete(key, held.version if held else 0)


class LeavesWhatIsDeleted(EngineRegistry):
    async def delete(self, key: str, expected: int) -> None:
        await super().cas(key, expected, b"")


class TakesItsOwnChangeForAnothers(EngineRegistry):
    async def cas(self, key: str, expected: int, value: bytes) -> int:
        return await self.requests.until_answered(
            lambda: at_once(self._records.cas(key, expected, value))
        )


class TakesAnothersChangeForItsOwn(EngineRegistry):
    async def cas(self, key: str, expected: int, value: bytes) -> int:
        try:
            return await super().cas(key, expected, value)
        except Conflict:
            return expected + 1


class Overwrites(EngineBlobs):
    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        await self._blobs.delete(name)
        await super().put(name, chunks)


class KeepsDeletedBlobs(EngineBlobs):
    async def delete(self, name: str) -> None:
        """Delete nothing."""


class ListsNoFolders(EngineBlobs):
    """Finds nothing for a prefix that ends with a folder."""

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        return [] if prefix.endswith("/") else await super().list(prefix)


class WritesIntoFiles(EngineBlobs):
    """Lets a deposed owner write into the files of its successor."""

    async def extend(self, name: str, at: int, chunks: Sequence[Buffer]) -> None:
        before = bytes(await self.get(name, 0, at))
        await self._blobs.delete(name)
        await self._blobs.put(name, [before, *chunks])


class BeginsAtOne(MemoryEngine):
    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        return await super().journal(shard, epoch)


class ForgetsWhereItBegan(EngineJournal):
    def frame(
        self, kind: FrameKind, block: int, part: int = 0, parts: int = 1, data: bytes = b""
    ) -> LogFrame:
        return super().frame(kind, 0 if kind == "epoch" else block, part, parts=parts, data=data)


class BeginsAnew(MemoryEngine):
    """Begins an existing journal at the number that the opener wants."""

    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        journal = await super().journal(shard, epoch, begins=begins)
        if begins:
            journal.floor = begins
        return journal


class TakesAnyEpoch(MemoryEngine):
    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        return await super().journal(shard, max(epoch, 1), begins=max(begins, 0))


class HasOneLog(MemoryEngine):
    async def journal(self, shard: int, epoch: int, *, begins: int = 0) -> EngineJournal:
        return await super().journal(0, epoch, begins=begins)


class HasOneFolder(MemoryEngine):
    async def blobs(self, shard: int) -> EngineBlobs:
        return await super().blobs(0)


class HasARegisterOfItsOwn(MemoryEngine):
    async def registry(self) -> EngineRegistry:
        return EngineRegistry(MemoryRegistry(), self.requests)


class WaitsForEver(EngineJournal):
    """Does not wake an append without an answer when the journal is closed."""

    async def close(self) -> None:
        """Do nothing."""


def with_journals(broken: type[EngineJournal]) -> type[MemoryEngine]:
    return type(broken.__name__, (MemoryEngine,), {"journals": broken})


def with_registries(broken: type[EngineRegistry]) -> type[MemoryEngine]:
    return type(broken.__name__, (MemoryEngine,), {"registries": broken})


def with_stores(broken: type[EngineBlobs]) -> type[MemoryEngine]:
    return type(broken.__name__, (MemoryEngine,), {"stores": broken})
