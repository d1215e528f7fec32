"""Waiting for events from several sources at once, with one thread for each wait."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from penstock import Event, PenstockError
from penstock_celery.delivery import EventSource

WAIT_S = 1.0
"""Longest time in seconds that one wait takes, and that an event which arrives after its consumer
has stopped may stay with it."""
_THREADS_MAX = 64
"""Sources on which one connection waits at the same moment; others take turns with them."""


class ArrivalSignal:
    """Notifies the consuming thread of a connection that events have arrived, that a message was
    settled, or that the connection was lost."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._failure: PenstockError | None = None
        self.changes = 0
        """Number of notifications so far."""
        self.threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="penstock-kombu")

    def notify(self, failure: PenstockError | None = None) -> None:
        """Wake the consuming thread. A ``failure`` is kept for :meth:`raise_failure`."""
        with self._changed:
            self._failure = self._failure or failure
            self.changes += 1
            self._changed.notify_all()

    def wait(self, changes: int, timeout_s: float) -> None:
        """Wait until the number of notifications exceeds ``changes``, at most ``timeout_s``
        seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes > changes, timeout_s)

    def raise_failure(self) -> None:
        """Raise the first failure, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Start no further wait."""
        self.threads.shutdown(wait=False, cancel_futures=True)


class Intake:
    """The events of one source that have arrived for a consumer."""

    def __init__(self, source: EventSource, arrivals: ArrivalSignal, *, is_shared: bool) -> None:
        """``is_shared`` tells that other consumers could have the events."""
        self.source = source
        self.is_active = True
        """Whether the consumer takes events."""
        self._arrivals = arrivals
        self._is_shared = is_shared
        self._events: deque[Event] = deque()
        self._is_waiting = False
        self._lock = threading.Lock()

    def take(self) -> Event | None:
        """Return the next event; None if the source has none now."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            if self._is_waiting:
                return None  # the wait would have brought it
        # Only the consuming thread starts a wait, so that none begins during this fetch.
        self._events.extend(self.source.fetch(0.0))
        return self._events.popleft() if self._events else None

    def start_waiting(self) -> None:
        """Wait for events in another thread, which notifies of their arrival."""
        with self._lock:
            if self._is_waiting or self._events:
                return
            self._is_waiting = True
        self._arrivals.threads.submit(self._wait)

    def give_back(self) -> None:
        """Return events that have arrived and were not taken to a queue that others consume."""
        with self._lock:
            events = [*self._events] if self._is_shared else []
            if self._is_shared:
                self._events.clear()
        for event in events:
            self.source.give_back(event)

    def close(self) -> None:
        """End the source."""
        self.is_active = False
        self.source.close()

    def _wait(self) -> None:
        """Fetch events, and notify the consuming thread; runs in a thread of the pool."""
        failure = None
        try:
            events = self.source.fetch(WAIT_S)
        except PenstockError as error:
            events, failure = [], error if self.is_active else None
        with self._lock:
            self._events.extend(events)
            self._is_waiting = False
        try:
            if not self.is_active:
                self.give_back()
        except PenstockError as error:
            failure = error
        if events or failure is not None:
            self._arrivals.notify(failure)
