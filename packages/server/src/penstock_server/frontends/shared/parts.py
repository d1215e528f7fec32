"""Parts of a connection, which refer to it weakly.

A part that referred to its connection strongly would make a cycle of both: the connection and its
buffers would stay until the garbage collector runs, which a server has do so rarely.
"""

from __future__ import annotations

from typing import Generic, TypeVar
from weakref import ref

C = TypeVar("C")


class ConnectionPart(Generic[C]):
    """A part of a connection, which the connection alone refers to."""

    def __init__(self, connection: C) -> None:
        self._part_of = ref(connection)

    @property
    def _connection(self) -> C:
        connection = self._part_of()
        assert connection is not None, "who uses a part has its connection"
        return connection
