"""Iteration over subscriptions, of one channel or of all channels of a pattern."""

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
    """The attachment that a loop opens and closes."""

    is_open: bool


class Closing(ABC):
    """An object that ``async with`` or a loop closes at its end."""

    @abstractmethod
    async def close(self) -> None:
        """End the subscription."""

    async def _close_quietly(self) -> None:
        """Close, and keep errors of settlements for the next flush or close, because the caller
        raises another error or cannot raise one."""
        await self.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await (self.close() if error is None else self._close_quietly())


class Looping(Closing, Generic[B]):
    """A subscription with any number of loops over it. The first loop opens it unless it is open;
    the last one then closes it."""

    def __init__(self, opened: Openable) -> None:
        self._opened = opened
        self._loops: Loops[B] = Loops()

    @abstractmethod
    async def next_batch(self, timeout: Duration | None = None) -> B | None:
        """Return the next events; None at the end, or if none arrive in time."""

    def _looping(self, begun: OpenBatch[B]) -> _Loop[B]:
        return _Loop(self, begun)


class _Loop(Generic[B]):
    """One loop over a subscription. If the loop runs to its end, errors of closing are raised. If
    it is left early, Python finalizes it, where they could not be caught: they are kept."""

    __slots__ = ("_begun", "_subscription")

    def __init__(self, subscription: Looping[B], begun: OpenBatch[B]) -> None:
        self._subscription = subscription
        self._begun = begun

    async def __aenter__(self) -> None:
        subscription = self._subscription
        subscription._loops.begins(self._begun, opens=not subscription._opened.is_open)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        subscription = self._subscription
        if subscription._loops.ends(self._begun):
            await (subscription.close() if kind is None else subscription._close_quietly())


class ReceivingLoops(Looping[ReceivedBatch]):
    """Iteration over events that need no acknowledgement."""

    def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Iterate over events in batches with Arrow columns. An iteration that has opened the
        subscription closes it at its end."""
        return self._loops.add(self._batches)

    async def _batches(self, begun: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedBatch]:
        opened = self._opened
        async with self._looping(begun):
            while (batch := await self.next_batch()) is not None:
                yield batch
                if not opened.is_open:  # closed by the caller
                    return

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        """Iterate over events. Events that one iteration does not deliver are delivered by the
        next."""
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
