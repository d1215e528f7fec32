"""Loops over what a subscription receives, of one channel or of all channels of a pattern."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sized
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from penstock.client.connection.arguments import Duration
from penstock.client.reading.inbox import Loops, OpenBatch
from penstock.client.reading.received import ReceivedBatch, ReceivedEvent

B = TypeVar("B", bound=Sized)


class Openable(Protocol):
    """What a loop opens and closes at the realm."""

    is_open: bool


class Closing(ABC):
    """An object that a block or a loop closes at its end."""

    @abstractmethod
    async def close(self) -> None:
        """Stop reading."""

    async def _close_quietly(self) -> None:
        """Close, and keep errors of settlements for the next flush or close: the caller has another
        error, or nobody to raise one to."""
        await self.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await (self.close() if error is None else self._close_quietly())


class Looping(Closing, Generic[B]):
    """A subscription with any number of loops over it. It opens with the first one; the last one
    closes what loops have opened."""

    def __init__(self, opened: Openable) -> None:
        self._opened = opened
        self._loops: Loops[B] = Loops()

    @abstractmethod
    async def next_batch(self, timeout: Duration | None = None) -> B | None:
        """The next events; None when there are none."""

    def _looping(self, begun: OpenBatch[B]) -> _Loop[B]:
        return _Loop(self, begun)


class _Loop(Generic[B]):
    """One loop over a subscription. If it ends by itself, the close it ends with raises errors; if
    it is left early, Python finalizes it, and nobody could catch them."""

    __slots__ = ("_begun", "_over")

    def __init__(self, over: Looping[B], begun: OpenBatch[B]) -> None:
        self._over = over
        self._begun = begun

    async def __aenter__(self) -> None:
        self._over._loops.begins(self._begun, opens=not self._over._opened.is_open)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._over._loops.ends(self._begun):
            await (self._over.close() if kind is None else self._over._close_quietly())


class ReceivingLoops(Looping[ReceivedBatch]):
    """Loops over events that nobody has to acknowledge."""

    def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Iterate over arriving columns; at its end the iteration closes what it has opened."""
        return self._loops.add(self._batches)

    async def _batches(self, begun: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedBatch]:
        opened = self._opened
        async with self._looping(begun):
            while (batch := await self.next_batch()) is not None:
                yield batch
                if not opened.is_open:  # closed meanwhile
                    return

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        """Iterate over arriving events; those that one iteration leaves come with the next."""
        return self._loops.add(self._events)

    async def _events(self, begun: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedEvent]:
        opened = self._opened
        async with self._looping(begun):
            while (batch := await self.next_batch()) is not None:
                begun.begin(batch)
                for event in batch:
                    begun.count += 1
                    yield event
                    if not opened.is_open:
                        return
