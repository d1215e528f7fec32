"""Joins: what is published on one store is copied to another (SEM L)."""

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
        """Copy what is published on channel ``source`` from now on, and what ``selector``
        matches of it, to a channel or queue (SEM L1, L4).

        An ``archive`` join leads to a queue and keeps duplicates (SEM L3). Raises
        ``NameDoesNotExist``, ``NameAlreadyBound``, ``InvalidSelector``, ``InvalidArgument``.
        """
        message = CreateJoin(source, destination, selector, archive)
        return await self._connection.ask(message, JoinInfo, resend=False)

    async def list(self) -> list[JoinInfo]:
        """Every join as it stands, by source and destination."""
        return await self._connection.ask(ListJoins(), _INFOS)

    async def delete(self, source: str, destination: str) -> None:
        """End a join; what it copied stays. Raises ``NameDoesNotExist``."""
        message = DeleteJoin(source, destination)
        await self._connection.request(message, resend=False)
