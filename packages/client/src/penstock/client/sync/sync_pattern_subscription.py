"""Reading all channels of a pattern, for blocking callers."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.connection.arguments import Duration
from penstock.client.connection.threads import LoopThread
from penstock.client.reading import pattern_subscription as aio
from penstock.client.sync.iteration import DurableIteration, SubscriptionIteration
from penstock.client.sync.sync_delivered import DeliveredBatch
from penstock.client.sync.sync_received import ReceivedBatch


class _Seats:
    """What both have in common."""

    _inner: aio.PatternSubscription | aio.PatternDurableSubscription
    _loop: LoopThread

    @property
    def channels(self) -> list[str]:
        """The names of the channels that are read now, sorted."""
        return self._inner.channels

    def open(self) -> Self:
        """Begin. Raises what the realm refuses it with. Iterating opens it, too."""
        self._loop.call(self._inner.open())
        return self

    def close(self) -> None:
        """Stop reading; of a durable, confirm settlements and give back the rest."""
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
    """Events of all channels of a pattern, each channel in id order, the channels in turn;
    ``event.channel`` tells where each came from. Goes on after a reconnect where it was.

    Iterate it for events, or :meth:`batches` for columns, each of one channel.
    """

    _inner: aio.PatternSubscription  # type: ignore[assignment]  # it iterates alike

    def __init__(self, inner: aio.PatternSubscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def next_batch(self, timeout: Duration | None = None) -> ReceivedBatch | None:
        """The next events, all of one channel; None when none come for ``timeout`` s."""
        found = self._loop.call(self._inner.next_batch(timeout))
        return None if found is None else ReceivedBatch(found, self._loop)


class BlockingPatternDurable(DurableIteration, _Seats):
    """A seat at the durable of one name on each channel of a pattern that has it. Events are
    acknowledged and rolled back as those of any durable; ``event.channel`` tells their channel.

    Iterate it for events, or :meth:`batches` for columns, each of one channel.
    """

    _inner: aio.PatternDurableSubscription  # type: ignore[assignment]  # it iterates alike

    def __init__(self, inner: aio.PatternDurableSubscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def next_batch(self, timeout: Duration | None = None) -> DeliveredBatch | None:
        """The next events, all of one channel; None if none come for ``timeout`` seconds."""
        found = self._loop.call(self._inner.next_batch(timeout))
        return None if found is None else DeliveredBatch(found, self._loop)

    def flush(self) -> None:
        """Wait until everything settled so far is on disk, on all channels. Raises the first
        refusal, and ``ConnectionLost`` when some of it was on its way as the connection was
        lost."""
        self._loop.call(self._inner.flush())


PatternSubscription = BlockingPatternSubscription
PatternDurableSubscription = BlockingPatternDurable
"""The names that both clients have for them."""
