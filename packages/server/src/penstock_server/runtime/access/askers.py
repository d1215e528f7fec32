"""Identifies the client that a task works for, so that the work ends when the client
disconnects."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from penstock_core.vocabulary.errors import ConnectionLost


class Asker:
    """The client that a task works for: a connection, or a part of the same program."""

    def __init__(self) -> None:
        self.is_connected = True
        """Whether the client is still connected."""
        self._listeners: dict[object, Callable[[], None]] = {}

    def on_gone(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` once when the client disconnects; return a function that removes the
        listener."""
        key = object()
        self._listeners[key] = listener
        return lambda: _remove(self._listeners, key)

    def disconnect(self) -> None:
        """Record that the client has disconnected, and call the listeners."""
        self.is_connected = False
        # The mapping is replaced first, so that a listener that adds or removes listeners does not
        # change the mapping of this loop.
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener()

    def check(self) -> None:
        """Raise ``ConnectionLost`` if the client has disconnected."""
        if not self.is_connected:
            raise ConnectionLost("the requesting client disconnected")


def _remove(listeners: dict[object, Callable[[], None]], key: object) -> None:
    listeners.pop(key, None)


NEVER_DISCONNECTS = Asker()
"""The asker of requests without a connection, which never disconnects."""

asker: ContextVar[Asker] = ContextVar("asker", default=NEVER_DISCONNECTS)
"""The client that the current task works for."""
