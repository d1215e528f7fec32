"""Waiting for events from several sources at once, with one thread for each wait."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from penstock import Event, PenstockError
from penstock_celery.delivery import EventSource

WAIT_S = 1.0
"""Longest time of one wait, in seconds. An event that arrives after its consumer has stopped stays
with the consumer up to this time."""
_CLEARED_BYTES = 4096
"""Bytes that one call reads from the socket of an :class:`ArrivalSignal`."""
_THREADS_MAX = 64
"""Largest number of sources that one connection waits for at the same time; further sources take
turns with them."""


class ArrivalSignal:
    """Notifies the consuming thread of a connection that events have arrived, that a message was
    settled, or that the connection was lost."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._failure: PenstockError | None = None
        self.changes = 0
        """Number of notifications so far."""
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        """Receiver and sender of a byte for each notification, once an event loop watches them."""
        self.threads = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="penstock-kombu")

    def notify(self, failure: PenstockError | None = None) -> None:
        """Wake the consuming thread. A ``failure`` is kept for :meth:`raise_failure`."""
        with self._changed:
            self._failure = self._failure or failure
            self.changes += 1
            self._changed.notify_all()
            if self._sockets is not None:
                with contextlib.suppress(BlockingIOError):  # full of bytes: it is readable
                    self._sockets[1].send(b"\0")

    def wait(self, changes: int, timeout_s: float) -> None:
        """Wait until the number of notifications exceeds ``changes``, at most ``timeout_s``
        seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self.changes > changes, timeout_s)

    def open_socket(self) -> socket.socket:
        """Return a socket that is readable after a notification, until :meth:`clear_socket`. It is
        readable at first, because events may have arrived before."""
        if self._sockets is None:
            receiver, sender = socket.socketpair()
            receiver.settimeout(0.0)
            sender.settimeout(0.0)
            self._sockets = receiver, sender
        self.notify()
        return self._sockets[0]

    def clear_socket(self) -> None:
        """Make the socket unreadable until the next notification."""
        if self._sockets is not None:
            with contextlib.suppress(BlockingIOError):
                while self._sockets[0].recv(_CLEARED_BYTES):
                    pass

    def raise_failure(self) -> None:
        """Raise the first failure, if any."""
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Start no further wait, and close the socket."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        with self._changed:  # a wait that still runs may notify
            sockets, self._sockets = self._sockets or (), None
        for end in sockets:
            end.close()


class Intake:
    """The events of one source that have arrived for a consumer."""

    def __init__(self, source: EventSource, arrivals: ArrivalSignal, *, is_shared: bool) -> None:
        """``is_shared`` states whether other consumers can receive the events instead."""
        self.source = source
        self.is_active = True
        """Whether the consumer still wants events."""
        self._arrivals = arrivals
        self._is_shared = is_shared
        self._events: deque[Event] = deque()
        self._is_waiting = False
        self._lock = threading.Lock()

    def take(self, count: int) -> Event | None:
        """Return the next event; None if the source has none now. If no event has arrived, up to
        ``count`` are fetched, and the others are kept for the next calls."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            if self._is_waiting:
                return None  # the wait in progress will fetch the next event
        # Only the consuming thread starts a wait, so that none begins during this fetch.
        self._events.extend(self.source.fetch(count, 0.0))
        return self._events.popleft() if self._events else None

    def start_waiting(self) -> None:
        """Start a thread that waits for events and notifies the consuming thread when they
        arrive."""
        with self._lock:
            if self._is_waiting or self._events:
                return
            self._is_waiting = True
        self._arrivals.threads.submit(self._wait)

    @property
    def arrived(self) -> int:
        """Number of events that have arrived and were not taken."""
        return len(self._events)

    def give_back(self) -> None:
        """Return the events that have arrived, but were not delivered to the consumer, to their
        queue. Does nothing if other consumers cannot receive them."""
        with self._lock:
            events = [*self._events] if self._is_shared else []
            if self._is_shared:
                self._events.clear()
        for event in events:
            self.source.give_back(event)

    def close(self) -> None:
        """Close the source. Its unsettled events are delivered again."""
        self.is_active = False
        self.source.close()

    def _wait(self) -> None:
        """Fetch an event, and notify the consuming thread that the wait has ended; runs in a thread
        of the pool."""
        failure = None
        try:
            # One event only: other priorities of the queue wait as well, and together they must not
            # take more than the prefetch count allows.
            events = self.source.fetch(1, WAIT_S)
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
        self._arrivals.notify(failure)
