"""Reading a channel, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from penstock.client.connection.threads import LoopThread
from penstock.client.reading import subscription as aio_subscription
from penstock.client.reading.inbox import Begun
from penstock.columns.events.batch import EventBatch
from penstock.columns.events.event import Event


class Subscription:
    """Events of a channel, in id order, each once; see :class:`penstock.aio.Subscription`."""

    def __init__(self, inner: aio_subscription.Subscription, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def open(self) -> Subscription:
        """Begin. Raises what the realm refuses it with. Iterating opens it, too."""
        self._loop.call(self._inner.open())
        return self

    def next_batch(self, timeout: float | None = None) -> EventBatch | None:
        """The next events; None at the end of a browse, or when none come for ``timeout`` s."""
        return self._loop.call(self._inner.next_batch(timeout))

    @property
    def first_id(self) -> int:
        """Where ``start`` has led, once open: no event below this id is delivered."""
        return self._inner.first_id

    def batches(self) -> Iterator[EventBatch]:
        """Columns as they come; iterating to the end closes what iterating opened."""
        return self._inner.loops.add(self._batches)

    def _batches(self, begun: Begun[EventBatch]) -> Iterator[EventBatch]:
        self._inner.loops.begins(begun, opens=not self._inner.is_open)
        try:
            while (batch := self.next_batch()) is not None:
                yield batch
                if not self._inner.is_open:  # closed meanwhile
                    return
        finally:
            if self._inner.loops.ends(begun):
                self.close()

    def __iter__(self) -> Iterator[Event]:
        """Events as they come; what one iteration leaves comes with the next."""
        return self._inner.loops.add(self._events)

    def _events(self, begun: Begun[EventBatch]) -> Iterator[Event]:
        self._inner.loops.begins(begun, opens=not self._inner.is_open)
        try:
            while (batch := self.next_batch()) is not None:
                begun.begin(batch)
                for event in batch:
                    begun.count += 1
                    yield event
                    if not self._inner.is_open:
                        return
        finally:
            if self._inner.loops.ends(begun):
                self.close()

    def close(self) -> None:
        """Stop reading."""
        self._loop.call(self._inner.close())

    def __enter__(self) -> Subscription:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
