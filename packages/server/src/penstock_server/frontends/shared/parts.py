"""Parts of a connection, which hold a weak reference to it.

With a strong reference, connection and part would form a cycle, and the connection and its buffers
would stay in memory until the garbage collector runs, which is rare in a server.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

C = TypeVar("C")


class ConnectionPart(Generic[C]):
    """A part of a connection; only the connection refers to it."""

    def __init__(self, connection: C) -> None:
        self._part_of = ref(connection)

    @property
    def _connection(self) -> C:
        connection = self._part_of()
        assert connection is not None, "a part is used only while its connection exists"
        return connection
