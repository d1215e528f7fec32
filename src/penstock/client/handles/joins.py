"""Joins: events published on one store are copied to another (SEM L)."""

from __future__ import annotations

from typing import Any

from penstock.api.joins import CreateJoin, DeleteJoin, JoinInfo, ListJoins
from penstock.client.connection.connection import RealmConnection

_INFOS: Any = list[JoinInfo]


class Joins:
    """The joins of a realm: ``session.joins``."""

    def __init__(self, connection: RealmConnection) -> None:
        self._connection = connection

    async def create(
        self, source: str, destination: str, *, selector: str = "", archive: bool = False
    ) -> JoinInfo:
        """Create a join: from now on, events published on channel ``source`` that match
        ``selector`` are copied to a channel or queue (SEM L1, L4).

        An ``archive`` join leads to a queue and keeps duplicates (SEM L3). Raises
        ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidSelector``, ``InvalidArgument``.
        """
        message = CreateJoin(source, destination, selector, archive)
        return await self._connection.ask(message, JoinInfo, resend=False)

    async def list(self) -> list[JoinInfo]:
        """Descriptions of all joins, by source and destination."""
        return await self._connection.ask(ListJoins(), _INFOS)

    async def delete(self, source: str, destination: str) -> None:
        """Delete a join; copies that were made stay. Raises ``NameDoesNotExist``."""
        message = DeleteJoin(source, destination)
        await self._connection.request(message, resend=False)
