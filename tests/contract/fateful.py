"""Engines in memory whose requests have fates drawn by a check, for the contract tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.ports import Journal, StorageEngine
from penstock_testing.engine import EngineServers, LogFrame, MemoryEngine, NoAnswer
from penstock_testing.engine_contracts import EngineContract, Fates, ReopenedJournalContract

T = TypeVar("T")

FRAME_BYTES_MAX = 1_000


class FatefulCalls:
    """Executes the requests of a node according to their fates."""

    def __init__(self, fates: Fates) -> None:
        self._fates = fates
        self._late: list[Callable[[], object]] = []

    async def __call__(self, do: Callable[[], T], /) -> T:
        fate = self._fates.next()
        if fate in ("lost", "late"):
            if fate == "late":
                self._late.append(do)
            raise NoAnswer
        try:
            answer = do()
        except PenstockError:
            if fate == "answer lost":
                raise NoAnswer from None
            raise
        finally:
            self._catch_up()
        if fate == "answer lost":
            raise NoAnswer
        return answer

    def _catch_up(self) -> None:
        while self._late:
            with suppress(PenstockError):
                self._late.pop(0)()


class MemoryEngineKit(EngineContract):
    engines: type[MemoryEngine] = MemoryEngine

    def __init__(self) -> None:
        self._servers = EngineServers()

    async def engine(self, fates: Fates | None = None) -> StorageEngine:
        call = FatefulCalls(fates or Fates())
        return self.engines(self._servers, call=call, frame_bytes_max=FRAME_BYTES_MAX)


class EngineJournalKit(ReopenedJournalContract):
    engines: type[MemoryEngine] = MemoryEngine
    torn_bytes = 2 * FRAME_BYTES_MAX

    def __init__(self) -> None:
        self._servers = EngineServers()
        self._epoch = 0

    async def open(self, epoch: int) -> Journal:
        self._epoch = epoch
        return await self.engines(self._servers, frame_bytes_max=FRAME_BYTES_MAX).journal(0, epoch)

    async def tear(self, data: bytes) -> None:
        log = self._servers.log(0)
        newest = log.frames[-1]
        begun = data[:FRAME_BYTES_MAX]
        torn = LogFrame(
            "data", self._epoch, newest.writer, block=newest.block + 1, part=0, parts=2, data=begun
        )
        log.append(log.last, torn)
