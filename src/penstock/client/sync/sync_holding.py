"""A durable held as a whole, for blocking callers."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from penstock.api.durables import Outstanding
from penstock.client.connection.threads import LoopThread
from penstock.client.reading.holding import DurableHold as AioDurableHold


class DurableHold:
    """The only seat at a durable; see :class:`penstock.aio.DurableHold`."""

    def __init__(self, inner: AioDurableHold, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def open(self) -> DurableHold:
        """Take the seat. Raises ``DurableInUse``, ``NameDoesNotExist``, ``InvalidArgument`` where
        the durable has ``order_by``."""
        self._loop.call(self._inner.open())
        return self

    def take(self, start: int, end: int) -> Outstanding:
        """Have the outstanding events from ``start`` up to and including ``end`` in hands; gives
        those that are, the ones taken before among them."""
        return self._loop.call(self._inner.take(start, end))

    def ack(self, event_id: int) -> None:
        """Acknowledge everything outstanding up to and including ``event_id``, held or not;
        returns when that is on disk. Repeating it changes nothing."""
        self._loop.call(self._inner.ack(event_id))

    def bury(self, event_ids: Iterable[int], reason: str) -> int:
        """Send outstanding events to the channel's dead event store, with the ``reason`` in their
        origin (SEM T10); other durables keep them. Gives how many: what is acknowledged or buried
        already is left out. Raises ``IllegalState`` where there is no dead event store."""
        return self._loop.call(self._inner.bury(event_ids, reason))

    def close(self) -> None:
        """Leave the seat: what was held and not acknowledged goes back (SEM D13)."""
        self._loop.call(self._inner.close())

    def __enter__(self) -> DurableHold:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
