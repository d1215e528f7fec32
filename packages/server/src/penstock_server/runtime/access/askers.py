"""The client a task works for: the work ends when that client hangs up."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from penstock_core.vocabulary.errors import ConnectionLost


class Asker:
    """The connection, or the part of a program, that a piece of work is done for."""

    def __init__(self) -> None:
        self.is_there = True
        self._listeners: dict[object, Callable[[], None]] = {}

    def on_gone(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called once when the asker goes; gives the way to end that."""
        key = object()
        self._listeners[key] = listener
        return lambda: _forget(self._listeners, key)

    def go(self) -> None:
        """Note that the connection has ended, so that nobody waits for the answer."""
        self.is_there = False
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener()

    def check(self) -> None:
        """Raise ``ConnectionLost`` if the client has disconnected."""
        if not self.is_there:
            raise ConnectionLost("who has asked has hung up")


def _forget(listeners: dict[object, Callable[[], None]], key: object) -> None:
    listeners.pop(key, None)


NOBODY_GOES = Asker()
"""The asker for requests without a connection; it never disconnects."""

asker: ContextVar[Asker] = ContextVar("asker", default=NOBODY_GOES)
"""The asker of the present task."""
