"""Joins, for blocking callers."""

from __future__ import annotations

from penstock.api.joins import JoinInfo
from penstock.client.connection.threads import LoopThread
from penstock.client.handles import joins as aio_joins


class Joins:
    """The joins of a realm: ``session.joins``."""

    def __init__(self, inner: aio_joins.Joins, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    def create(
        self, source: str, destination: str, *, selector: str = "", archive: bool = False
    ) -> JoinInfo:
        """Copy what is published on a channel from now on to a channel or queue (SEM L); see
        :meth:`penstock.aio.Joins.create`."""
        return self._loop.call(
            self._inner.create(source, destination, selector=selector, archive=archive)
        )

    def list(self) -> list[JoinInfo]:
        """Every join as it stands, by source and destination."""
        return self._loop.call(self._inner.list())

    def delete(self, source: str, destination: str) -> None:
        """End a join; what it copied stays. Raises ``NameDoesNotExist``."""
        self._loop.call(self._inner.delete(source, destination))
