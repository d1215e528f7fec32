"""The pipelined producer for blocking callers: gathers in the caller's thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from penstock.client.connection.threads import LoopThread
from penstock.client.publishing import producer as aio_producer
from penstock.client.publishing.batching import ColumnLists
from penstock_core.vocabulary.errors import SessionClosed


class Producer:
    """Sends without waiting; :meth:`flush` waits until everything sent so far is safe.

    May be shared by several threads. See :class:`penstock.aio.Producer`.
    """

    def __init__(self, inner: aio_producer.Producer, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self._gathering = inner._another_gathering()
        self._lock = threading.Lock()
        self._lingering = False
        self._closed = False

    @property
    def acknowledged(self) -> int:
        """Events known to be safe."""
        return self._inner.acknowledged

    def send(
        self,
        data: bytes = b"",
        *,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        ttl: int = 0,
        persistent: bool | None = None,
        priority: int | None = None,
    ) -> None:
        """Queue an event; waits only when too much is under way."""
        with self._lock:
            if self._closed:
                raise SessionClosed("the producer is closed")
            if not self._loop.is_usable:
                raise SessionClosed("the session is closed")
            full = self._gathering.add(
                data, tag, properties, ttl=ttl, persistent=persistent, priority=priority
            )
            if full:
                gathered = self._gathering.take()
                assert gathered is not None, "an event was just added"
                self._hand_over(gathered)
            elif not self._lingering:
                self._lingering = True
                self._loop.later(self._inner._linger_s, self._linger_over)

    def _hand_over(self, gathered: ColumnLists) -> None:
        """Called with the lock held, so that batches leave in the order they were filled."""
        self._loop.call(self._inner._publish_gathered(gathered))

    def _linger_over(self) -> None:
        """Send, on the loop's thread, what has lingered long enough, unless a sender is doing
        so."""
        self._lingering = False
        if not self._lock.acquire(blocking=False):
            self._lingering = True
            self._loop.later(self._inner._linger_s, self._linger_over)
            return
        try:
            gathered = self._gathering.take()
        finally:
            self._lock.release()
        if gathered is not None:
            self._inner._publish_soon(gathered)

    def flush(self) -> None:
        """Wait until everything sent so far is safe or has been reported as refused."""
        with self._lock:
            gathered = self._gathering.take()
            if gathered is not None:
                self._hand_over(gathered)
        self._loop.call(self._inner.flush())

    def close(self) -> None:
        """Flush, and take no more."""
        self._closed = True
        self.flush()

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
