"""Connections that want to be the only one of their container."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from penstock_amqp.open_frame import CLOSE
from penstock_core.vocabulary.errors import NameAlreadyBound


class SoleConnection(Struct, frozen=True, eq=False):
    """A connection that wants to be the only one of its container."""

    user: str
    policy: int
    """Whether a later one is refused, or this one is closed for it."""
    close: Callable[[], None]
    """Closes it, because its container has connected again."""
    left: asyncio.Event
    """Set once it is over and everything that it held has been given back."""


class SoleConnections:
    """The connections of a realm that want to be the only one, by container."""

    def __init__(self) -> None:
        self._by_container: dict[str, SoleConnection] = {}

    def enter(self, container: str, connection: SoleConnection) -> SoleConnection | None:
        """Register a connection. Gives the older one that was closed for it, if that agreed to it
        and belongs to the same user. Raises ``NameAlreadyBound`` if it did not."""
        older = self._by_container.get(container)
        if older is not None:
            if older.policy != CLOSE or older.user != connection.user:
                raise NameAlreadyBound(f"client {container} is already connected")
            older.close()
        self._by_container[container] = connection
        return older

    def leave(self, container: str, connection: SoleConnection) -> None:
        """Forget a connection that is over."""
        if self._by_container.get(container) is connection:
            del self._by_container[container]
