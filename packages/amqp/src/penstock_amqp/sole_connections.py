"""Connections that claim to be the only one of their container."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from penstock_amqp.open_frame import CLOSE
from penstock_core.vocabulary.errors import NameAlreadyBound


class SoleConnection(Struct, frozen=True, eq=False):
    """A connection that claims to be the only one of its container."""

    user: str
    policy: int
    """`REFUSE` a later connection, or `CLOSE` this one for it."""
    close: Callable[[], None]
    """Function that closes the connection, because its container has opened a new one."""
    released: asyncio.Event
    """Set once the connection has ended and all its events have been given back."""


class SoleConnections:
    """The connections of a realm that claim to be the only one, by container."""

    def __init__(self) -> None:
        self._by_container: dict[str, SoleConnection] = {}

    def enter(self, container: str, connection: SoleConnection) -> SoleConnection | None:
        """Register a connection. Return the older connection that was closed for it, or None.

        Raises ``NameAlreadyBound`` if the older connection's policy is not `CLOSE`, or it belongs
        to another user.
        """
        older = self._by_container.get(container)
        if older is not None:
            if older.policy != CLOSE or older.user != connection.user:
                raise NameAlreadyBound(
                    f"client {container} is already connected; close its connection or use another "
                    "container id"
                )
            older.close()
        self._by_container[container] = connection
        return older

    def leave(self, container: str, connection: SoleConnection) -> None:
        """Forget a connection that is over."""
        if self._by_container.get(container) is connection:
            del self._by_container[container]
