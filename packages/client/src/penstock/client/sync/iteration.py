"""Iteration for blocking callers: batches are requested on the loop's thread, and their events are
delivered in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Protocol

from penstock.client.connection.threads import LoopThread
from penstock.client.reading.delivered import DeliveredBatch as AioDeliveredBatch
from penstock.client.reading.durable_subscription import (
    DurableSubscription as AioDurableSubscription,
)
from penstock.client.reading.inbox import OpenBatch
from penstock.client.reading.reader import Reader as AioReader
from penstock.client.reading.received import ReceivedBatch as AioReceivedBatch
from penstock.client.reading.subscription import Subscription as AioSubscription
from penstock.client.sync.sync_delivered import DeliveredBatch, DeliveredEvent
from penstock.client.sync.sync_received import ReceivedBatch, ReceivedEvent
from penstock_core.vocabulary.errors import IllegalState


class _Closable(Protocol):
    """A subscription or a reader."""

    def close(self) -> Coroutine[Any, Any, None]:
        """Close the subscription or reader, and raise errors of settlements."""

    def _close_quietly(self) -> Coroutine[Any, Any, None]:
        """Close the subscription or reader, and keep errors of settlements for the next flush or
        close."""


class _Closing:
    """Closes, at the end of an iteration, the subscription that the iteration has opened.

    An iteration that is left early (``break``, an error in the loop's body) ends in its generator's
    finalizer, which must not raise. Errors of settlements are then kept for the next flush or
    close.
    """

    __slots__ = ("_is_last", "_loop", "_opened")

    def __init__(self, loop: LoopThread, opened: _Closable, is_last: Callable[[], bool]) -> None:
        self._loop = loop
        self._opened = opened
        self._is_last = is_last
        """Ends this iteration's use of the subscription, and returns whether it was the last
        one."""

    def __enter__(self) -> None:
        """Do nothing: the first step of the iteration opens the subscription."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_last():
            return
        if kind is GeneratorExit:
            self._loop.call_from_finalizer(self._opened._close_quietly)
        else:
            self._loop.call(self._opened.close() if kind is None else self._opened._close_quietly())


class SubscriptionIteration:
    """Iteration over a subscription or browse."""

    _inner: AioSubscription
    _loop: LoopThread

    def batches(self) -> Iterator[ReceivedBatch]:
        """Iterate over events in batches with Arrow columns. An iteration that has opened the
        subscription closes it at its end."""
        return self._inner._loops.add(self._batches)

    def _batches(self, open_batch: OpenBatch[AioReceivedBatch]) -> Iterator[ReceivedBatch]:
        self._inner._loops.loop_started(open_batch, opens=not self._inner._opened.is_open)
        with _Closing(self._loop, self._inner, lambda: self._inner._loops.loop_ended(open_batch)):
            while (batch := self._loop.call(self._inner.next_batch())) is not None:
                yield ReceivedBatch(batch, self._loop)
                if not self._inner._opened.is_open:  # closed by the caller
                    return

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """Iterate over events. Events that one iteration does not deliver are delivered by the
        next."""
        return self._inner._loops.add(self._events)

    def _events(self, open_batch: OpenBatch[AioReceivedBatch]) -> Iterator[ReceivedEvent]:
        self._inner._loops.loop_started(open_batch, opens=not self._inner._opened.is_open)
        with _Closing(self._loop, self._inner, lambda: self._inner._loops.loop_ended(open_batch)):
            while (batch := self._loop.call(self._inner.next_batch())) is not None:
                open_batch.begin(batch)
                for event in ReceivedBatch(batch, self._loop):
                    open_batch.count += 1
                    yield event
                    if not self._inner._opened.is_open:
                        return


class DurableIteration:
    """Iteration over a subscription to a durable."""

    _inner: AioDurableSubscription
    _loop: LoopThread

    def batches(self) -> Iterator[DeliveredBatch]:
        """Iterate over events in batches with Arrow columns. With ``auto_ack``, a batch is
        acknowledged when the next one is requested. An iteration that has opened the subscription
        closes it at its end."""
        return self._inner._loops.add(self._batches)

    def _next(self) -> DeliveredBatch | None:
        batch = self._loop.call(self._inner.next_batch())
        return None if batch is None else DeliveredBatch(batch, self._loop)

    def _batches(self, open_batch: OpenBatch[AioDeliveredBatch]) -> Iterator[DeliveredBatch]:
        inner = self._inner
        inner._loops.loop_started(open_batch, opens=not inner._opened.is_open)
        with _Closing(self._loop, inner, lambda: inner._loops.loop_ended(open_batch)):
            while (batch := self._next()) is not None:
                if inner._auto_ack:
                    open_batch.begin(batch._inner, len(batch))
                yield batch
                if not inner._opened.is_open:
                    return
                if inner._auto_ack:
                    open_batch.forget()
                    self._loop.call(batch._inner._ack_in_loop())

    def __iter__(self) -> Iterator[DeliveredEvent]:
        return self._inner._loops.add(self._events)

    def _events(self, open_batch: OpenBatch[AioDeliveredBatch]) -> Iterator[DeliveredEvent]:
        inner = self._inner
        inner._loops.loop_started(open_batch, opens=not inner._opened.is_open)
        with _Closing(self._loop, inner, lambda: inner._loops.loop_ended(open_batch)):
            while (batch := self._next()) is not None:
                open_batch.begin(batch._inner, int(inner._auto_ack))
                seat = batch._inner._seat
                for event in batch:
                    if seat.may_recall and self._loop.call(seat.is_recalled(event.event_id)):
                        open_batch.count += 1
                        continue
                    if batch.is_stale or seat.has_ended:
                        break  # the rest has returned to the durable, which delivers it again
                    open_batch.count += not inner._auto_ack
                    yield event
                    if not inner._opened.is_open:  # closed by the caller: the rest has returned
                        return
                    if inner._auto_ack:  # not earlier: leaving the loop must not acknowledge
                        try:
                            event.ack()
                        except IllegalState as error:  # returned: it is delivered again
                            self._loop.soon(partial(seat.connection.report, error))
                        open_batch.count += 1


class ReaderIteration:
    """Iteration over a reader of a queue."""

    _inner: AioReader
    _loop: LoopThread

    def __iter__(self) -> Iterator[ReceivedEvent]:
        opened_here = not self._inner._seat.is_open
        inner, loop = self._inner, self._loop
        with _Closing(loop, inner, lambda: opened_here):
            while (part := loop.call(inner._next_part())) is not None:
                for event_id, event in part:
                    loop.soon(_receiving(inner, event_id, part.generation))
                    yield ReceivedEvent(event, loop)

    def batches(self) -> Iterator[ReceivedBatch]:
        """Iterate over events in batches with Arrow columns. An iteration that has opened the
        reader closes it at its end."""
        opened_here = not self._inner._seat.is_open
        with _Closing(self._loop, self._inner, lambda: opened_here):
            while (batch := self._loop.call(self._inner.next_batch())) is not None:
                yield ReceivedBatch(batch, self._loop)


def _receiving(inner: AioReader, event_id: int, generation: int) -> Callable[[], None]:
    """Return a function that counts an event as received."""
    return lambda: inner._received(event_id, generation)
