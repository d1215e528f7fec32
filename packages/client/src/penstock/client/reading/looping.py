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

    def _looping(self, open_batch: OpenBatch[B]) -> _Loop[B]:
        return _Loop(self, open_batch)


class _Loop(Generic[B]):
    """One loop over a subscription, which may close the subscription at its end.

    If the loop runs to its end, errors of closing are raised. After a loop that was left early,
    Python closes the generator outside the caller's code, where the caller could not catch an
    error. Errors are then kept.
    """

    __slots__ = ("_open_batch", "_subscription")

    def __init__(self, subscription: Looping[B], open_batch: OpenBatch[B]) -> None:
        self._subscription = subscription
        self._open_batch = open_batch

    async def __aenter__(self) -> None:
        subscription = self._subscription
        subscription._loops.loop_started(self._open_batch, opens=not subscription._opened.is_open)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        subscription = self._subscription
        if subscription._loops.loop_ended(self._open_batch):
            await (subscription.close() if kind is None else subscription._close_quietly())


class ReceivingLoops(Looping[ReceivedBatch]):
    """Iteration over events that need no acknowledgement."""

    def batches(self) -> AsyncIterator[ReceivedBatch]:
        """Iterate over events in batches with Arrow columns. An iteration that has opened the
        subscription closes it at its end."""
        return self._loops.add(self._batches)

    async def _batches(self, open_batch: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedBatch]:
        opened = self._opened
        async with self._looping(open_batch):
            while (batch := await self.next_batch()) is not None:
                yield batch
                if not opened.is_open:  # closed by the caller
                    return

    def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        """Iterate over events. Events that one iteration does not deliver are delivered by the
        next."""
        return self._loops.add(self._events)

    async def _events(self, open_batch: OpenBatch[ReceivedBatch]) -> AsyncIterator[ReceivedEvent]:
        opened = self._opened
        async with self._looping(open_batch):
            while (batch := await self.next_batch()) is not None:
                open_batch.begin(batch)
                for event in batch:
                    open_batch.count += 1
                    yield event
                    if not opened.is_open:
                        return
