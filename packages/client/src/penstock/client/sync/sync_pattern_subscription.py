"""Subscriptions to all channels of a pattern, for blocking callers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.connection.arguments import Duration
from penstock.client.connection.threads import LoopThread
from penstock.client.reading import pattern_subscription as aio
from penstock.client.sync.iteration import DurableIteration, SubscriptionIteration
from penstock.client.sync.sync_delivered import DeliveredBatch
from penstock.client.sync.sync_received import ReceivedBatch
from penstock_core.display import safe_repr


class _Seats:
    """The common base of both subscriptions."""

    _inner: aio.PatternSubscription | aio.PatternDurableSubscription
    _loop: LoopThread

    @safe_repr
    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def channels(self) -> list[str]:
        """The names of the channels that the subscription reads now, sorted."""
        return self._inner.channels

    def open(self) -> Self:
        """Open the subscription and return it; ``with`` and iterating do so, too. Raises
        ``InvalidSelector``, ``AccessDenied``; with a durable also ``DurableInUse``,
        ``InvalidArgument``, and ``NameDoesNotExist`` if no channel of the pattern has the
        durable."""
        self._loop.call(self._inner.open())
        return self

    def close(self) -> None:
        """End the subscription. If it is opened again, each channel continues with the first event
        that was not delivered.

        With a durable, wait until settlements are confirmed, return unsettled events to the
        durables, and raise the first refused or lost settlement that has not been raised yet.
        """
        self._loop.call(self._inner.close())

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.call(self._inner.__aexit__(kind, error, traceback))


class BlockingPatternSubscription(SubscriptionIteration, _Seats):
    """A subscription to all channels of a pattern: ``session.subscribe("orders/*")``.

    Each channel's events are delivered in the order of their ids, each once; the channels take
    turns. ``event.channel`` is the name of the channel. After a reconnect delivery continues with
    the next events. Iterate over the subscription for single events, or over :meth:`batches` for
    batches with Arrow columns, each of one channel.
    """

    _inner: aio.PatternSubscription  # type: ignore[assignment]  # it iterates alike

    def __init__(self, inner: aio.PatternSubscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        """Return the next events, all of one channel; None if none arrive within ``timeout``
        seconds (default: the subscription's timeout)."""
        batch = self._loop.call(self._inner.next_batch(timeout))
        return None if batch is None else ReceivedBatch(batch, self._loop)


class BlockingPatternDurable(DurableIteration, _Seats):
    """A subscription of a durable on several channels: it has a seat on each channel whose name
    matches the pattern and that has a durable of this name, as in
    ``session.subscribe("orders/*", durable="billing")``.

    Events are acknowledged and rolled back like those of any durable. ``event.channel`` is the name
    of their channel. Iterate over the subscription for single events, or over :meth:`batches` for
    batches with Arrow columns, each of one channel.
    """

    _inner: aio.PatternDurableSubscription  # type: ignore[assignment]  # it iterates alike

    def __init__(self, inner: aio.PatternDurableSubscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def next_batch(self, timeout: Duration | None = None) -> DeliveredBatch | None:
        """Return the next events, all of one channel; None if none arrive within ``timeout``
        seconds (default: the subscription's timeout)."""
        batch = self._loop.call(self._inner.next_batch(timeout))
        return None if batch is None else DeliveredBatch(batch, self._loop)

    def flush(self) -> None:
        """Wait until the realm has stored all settlements so far, on all channels. Raises the error
        of the first refused settlement, and ``ConnectionLost`` if the connection was lost before
        all of them were confirmed."""
        self._loop.call(self._inner.flush())


PatternSubscription = BlockingPatternSubscription
PatternDurableSubscription = BlockingPatternDurable
"""Public names, the same as in ``penstock.aio``."""
