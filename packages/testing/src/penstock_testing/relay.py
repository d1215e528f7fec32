"""A TCP relay in front of a realm that a test can cut, delay and close.

::

    with Relay(realm.listen()) as relay, penstock.connect(relay.url) as session:
        relay.cut()
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType

from penstock.client.connection.urls import parse_url

_PIECE_BYTES = 64 << 10
"""Maximum number of bytes that are forwarded at once."""


class Relay:
    """Forwards bytes in both directions between clients and one realm."""

    def __init__(self, url: str) -> None:
        self.target = url
        """URL of the realm, used for new connections."""
        self.request_bytes = 0
        """Bytes that clients sent to the realm, over all connections."""
        self.dropped = 0
        """Connections that were closed immediately because the relay was closed for new ones."""
        self._is_accepting = True
        """Whether new connections are forwarded."""
        self._may_answer = threading.Event()
        """Set unless bytes from the realm are held back."""
        self._may_answer.set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)

    @property
    def url(self) -> str:
        """The URL for clients to connect to."""
        return f"penstock://127.0.0.1:{self._listener.getsockname()[1]}"

    def hold_answers(self) -> None:
        """Hold back all bytes from the realm to clients; the other direction stays open."""
        self._may_answer.clear()

    def release_answers(self) -> None:
        """Forward the bytes that were held back, and further ones."""
        self._may_answer.set()

    def close_door(self) -> None:
        """Close new connections immediately."""
        self._is_accepting = False

    def open_door(self) -> None:
        """Forward new connections again."""
        self._is_accepting = True

    def cut(self) -> None:
        """Close all connections now; bytes in flight are lost."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for connection in sockets:
            _end(connection)

    def close(self) -> None:
        """Close the relay and all connections, and wait for its threads."""
        _end(self._listener)
        self.cut()
        # This wakes the threads that hold back answers; they are joined next.
        self._may_answer.set()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        """Accept connections until the listener is closed; each gets two threads."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_accepting:
                _end(client)
                self.dropped += 1
                continue
            address = parse_url(self.target).addresses[0]
            try:
                realm = socket.create_connection((address.host, address.port))
            except OSError:
                _end(client)
                continue
            with self._lock:
                self._sockets += (client, realm)
            self._start(partial(self._pump, client, realm, answers=False))
            self._start(partial(self._pump, realm, client, answers=True))

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        """Forward bytes in one direction until the connection ends at one side. ``answers`` states
        whether the bytes come from the realm."""
        with contextlib.suppress(OSError):
            while chunk := source.recv(_PIECE_BYTES):
                if answers:
                    self._may_answer.wait()
                sink.sendall(chunk)
                if not answers:
                    self.request_bytes += len(chunk)
        _end(source)
        _end(sink)

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _end(connection: socket.socket) -> None:
    """Close a socket, and wake the threads that wait for its bytes."""
    with contextlib.suppress(OSError):
        # Unlike `close`, this wakes a thread that waits for bytes of the connection.
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
