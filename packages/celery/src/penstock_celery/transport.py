"""kombu's transport for ``penstock://`` and ``penstocks://``."""

from __future__ import annotations

import contextlib
import os
import socket
from queue import Empty
from time import perf_counter
from typing import Any

from kombu.transport import virtual

import penstock
from penstock import PenstockError, Session
from penstock_celery.addresses import PORT, realm_url
from penstock_celery.channel import RealmChannel
from penstock_celery.intake import WAIT_S, ArrivalSignal
from penstock_celery.names import Names
from penstock_celery.registry import SharedBindings
from penstock_core.version import __version__

RECONNECT_TIMEOUT_S = 5.0
"""Default of the transport option ``reconnect_timeout``: the seconds that a publish waits for a
lost connection."""

_DELIVERED_MAX = 100
"""Messages that are delivered before the event loop continues with its other events."""

_LOST = (
    penstock.ConnectionLost,
    penstock.CannotConnect,
    penstock.SessionClosed,
    penstock.RealmStopping,
    penstock.NoQuorum,
    penstock.Elsewhere,
    OSError,
)
"""Errors after which a client has to connect again."""


class Transport(virtual.Transport):
    """One session with a realm. kombu connects again when it is lost."""

    Channel = RealmChannel
    default_port = PORT
    driver_type = "penstock"
    driver_name = "penstock"
    connection_errors = recoverable_connection_errors = _LOST
    channel_errors = (*virtual.Transport.channel_errors, PenstockError)
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )
    scheme = "penstock"

    session: Session
    _loop: Any = None
    """Kombu's event loop that delivers the messages, if any."""
    _receiver: socket.socket
    """The socket that the event loop watches."""
    arrivals: ArrivalSignal
    names: Names
    registry: SharedBindings

    def driver_version(self) -> str:
        """Return the version of Penstock."""
        return __version__

    def establish_connection(self) -> Any:
        """Connect to the realm. Raises ``CannotConnect``, ``AuthenticationFailed``,
        ``AccessDenied``."""
        client = self.client
        options = client.transport_options
        self._process_id = os.getpid()
        self.arrivals = arrivals = ArrivalSignal()
        self.session = penstock.connect(
            realm_url(self.scheme, client.info(), options),
            reconnect_timeout=options.get("reconnect_timeout", RECONNECT_TIMEOUT_S),
            token=options.get("token"),
        )
        try:
            # Unacknowledged messages return to their queues with the connection, so consumers have
            # to begin again even if the session itself reconnects.
            self.session.on_interruption(lambda error: arrivals.notify(error))
            self.names = Names(client.virtual_host or "")
            self.registry = SharedBindings(self.session, self.names.registry)
            return super().establish_connection()
        except BaseException:
            self._end_session()
            raise

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the next message. Raises ``socket.timeout`` if none arrives within ``timeout``
        seconds, and the error of a lost connection."""
        end_s = float("inf") if timeout is None else perf_counter() + timeout
        while True:
            self.arrivals.raise_failure()
            changes = self.arrivals.changes
            with contextlib.suppress(Empty):
                self.cycle.get(self._deliver)
                return
            left_s = end_s - perf_counter()
            if left_s <= 0:
                raise socket.timeout  # noqa: UP041  the name in kombu's interface
            self._start_waiting()
            self.arrivals.wait(changes, min(left_s, WAIT_S))

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Deliver messages in kombu's event loop ``loop``, until the connection closes."""
        self._end_loop()
        self._loop = loop
        # A descriptor whose connection was lost may have the number of a new one, so the receiver
        # is removed before it is closed.
        self._receiver = self.arrivals.open_socket()
        loop.add_reader(self._receiver, self._deliver_arrived)
        loop.on_tick.add(self._start_waiting)

    def _end_loop(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._receiver)
            self._loop.on_tick.discard(self._start_waiting)
            self._loop = None

    def _start_waiting(self) -> None:
        for channel in self.channels:
            channel.start_waiting()

    def _deliver_arrived(self) -> None:
        """Deliver the messages that have arrived. Raises the error of a lost connection."""
        self.arrivals.clear_socket()
        self.arrivals.raise_failure()
        with contextlib.suppress(Empty):
            for _ in range(_DELIVERED_MAX):
                self.cycle.get(self._deliver)
            self.arrivals.notify()  # the loop calls again after its other events

    def close_connection(self, connection: Any) -> None:
        """Close the channels and the session. Does nothing in a process that was forked from the
        process that opened them."""
        if os.getpid() == self._process_id:
            super().close_connection(connection)
            self._end_session()

    def _collect(self, connection: Any) -> None:
        """Close the connection, unless it belongs to the process that this one was forked from."""
        with contextlib.suppress(PenstockError):
            self.close_connection(connection)

    def _end_session(self) -> None:
        self._end_loop()
        self.arrivals.close()
        with contextlib.suppress(PenstockError):  # unconfirmed messages are delivered again
            self.session.close()


class SecureTransport(Transport):
    """A session over TLS. The transport options ``ca``, ``certificate`` and ``key`` name files."""

    scheme = "penstocks"
