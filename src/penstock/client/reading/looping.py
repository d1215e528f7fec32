"""Loops over what a subscription receives, of one channel or of all channels of a pattern."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sized
from typing import Generic, TypeVar

from penstock.client.reading.inbox import Loops, OpenBatch
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent

B = TypeVar("B", bound=Sized)


class Looping(ABC, Generic[B]):
    """A subscription with any number of loops over it. It opens with the first one; the last one
    closes what loops have opened."""

    _is_open: bool

    def __init__(self) -> None:
        self._loops: Loops[B] = Loops()

    @abstractmethod
    async def next_batch(self, timeout: float | None = None) -> B | None:
        """The next events; None when there are none."""

    @abstractmethod
    async def close(self) -> None:
        """Stop reading."""

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _begins(self, begun: OpenBatch[B]) -> None:
        self._loops.begins(begun, opens=not self._is_open)

    async def _ends(self, begun: OpenBatch[B]) -> None:
        if self._loops.ends(begun):
            await self.close()


class ReceivingLoops(Looping[ReceivedBatch]):
    """Loops over events that nobody has to acknowledge."""

    def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Iterate over arriving columns; at its end the iteration closes what it has opened."""
        return self._loops.add(self._batches)

    async def _batches(self, begun: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedBatch]:
        self._begins(begun)
        try:
            while (batch := await self.next_batch()) is not None:
                yield batch
                if not self._is_open:  # closed meanwhile
                    return
        finally:
            await self._ends(begun)

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        """Iterate over arriving events; those that one iteration leaves come with the next."""
        return self._loops.add(self._events)

    async def _events(self, begun: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedEvent]:
        self._begins(begun)
        try:
            while (batch := await self.next_batch()) is not None:
                begun.begin(batch)
                for event in batch:
                    begun.count += 1
                    yield event
                    if not self._is_open:
                        return
        finally:
            await self._ends(begun)
